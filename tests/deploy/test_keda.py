"""KEDA takes what is in deploy/kubernetes/keda.yaml: its own schemas of the objects, and what its scaler reads of a trigger."""

from __future__ import annotations

import copy
import json
import os
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tests.conftest import missing
from tests.deploy.test_deploy import documents

VERSION, SUM = "v2.17.2", "h1:xlrcK5TKABJF9PebK79sgL07s/csGjL3H4m72OkZXxk="
DOCUMENTS = documents("keda.yaml")
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@pytest.fixture(scope="module")
def keda(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its source, which Go keeps once it has fetched it."""
    if shutil.which("go") is None:
        missing("KEDA's schemas come with its Go module, and there is no `go` on the PATH")
    done = subprocess.run(
        ["go", "mod", "download", "-json", f"github.com/kedacore/keda/v2@{VERSION}"], cwd=tmp_path_factory.mktemp("keda"),
        env=os.environ | {"GOSUMDB": "off", "GOFLAGS": "-mod=mod"}, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    if done.returncode:
        missing(f"KEDA's Go module cannot be fetched: {done.stdout}{done.stderr}")
    found = json.loads(done.stdout)
    assert found["Sum"] == SUM
    return Path(found["Dir"])


@cache
def definitions(keda: Path) -> list[Any]:
    return [yaml.load(file.read_bytes(), LOADER) for file in (keda / "config" / "crd" / "bases").glob("keda.sh_*.yaml")]


def validate(document: Any, keda: Path) -> None:
    """As the API server does where it is strict: what the schema does not name is refused."""
    (definition,) = [one for one in definitions(keda) if one["spec"]["names"]["kind"] == document["kind"]]
    group = definition["spec"]["group"]
    (version,) = [one for one in definition["spec"]["versions"] if f"{group}/{one['name']}" == document["apiVersion"]]
    jsonschema.Draft7Validator(_strict(version["schema"]["openAPIV3Schema"])).validate(document)


def _strict(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: _strict(value) for key, value in schema.items()}
    return {"additionalProperties": False, **made} if isinstance(made.get("properties"), dict) and "type" in made else made


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda one: one["kind"])
def test_its_schemas_take_the_objects(document: Any, keda: Path) -> None:
    validate(document, keda)


@pytest.mark.parametrize(
    ("part", "wrong"),
    [(("minReplicaCount",), "1"), (("pollInterval",), 15), (("triggers",), None), (("scaleTargetRef",), {"nam": "shop-workers"})],
)
def test_an_object_that_is_wrong_is_seen(part: tuple[str], wrong: Any, keda: Path) -> None:
    document = copy.deepcopy(DOCUMENTS[0])
    document["spec"][part[0]] = wrong
    with pytest.raises(jsonschema.ValidationError):
        validate(document, keda)


def test_its_scaler_reads_each_word_of_the_trigger(keda: Path) -> None:
    source = (keda / "pkg" / "scalers" / "metrics_api_scaler.go").read_text()
    (trigger,) = DOCUMENTS[0]["spec"]["triggers"]
    assert set(trigger["metadata"]) <= set(re.findall(r'TriggerMetadata\["(\w+)"\]', source))
    (token,) = DOCUMENTS[1]["spec"]["secretTargetRef"]
    assert f'AuthParams["{token["parameter"]}"]' in source
