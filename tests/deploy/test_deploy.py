"""What is in deploy/ is taken by the tools that read it, and agrees with the code: ports, paths, signals, times, files, flags."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import kubernetes_validate
import pytest
import yaml

from framework.admin.access import OPEN
from framework.master.master import MARGIN
from framework.settings import TABLE, Settings
from framework.systemd import EXTENSION
from framework.testing.servers import ROOT, free_port
from framework.testing.workers import call

DEPLOY = ROOT / "deploy"
UNIT = (DEPLOY / "workers.service").read_text()
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
LONGEST_STOP = Settings().drain + MARGIN

SHOP = "from framework import handler\n@handler('orders', 'billing')\ndef f(m: bytes): ...\n"


def documents(name: str) -> list[Any]:
    return list(yaml.safe_load_all((DEPLOY / "kubernetes" / name).read_text()))


def option(name: str) -> str:
    (value,) = re.findall(rf"^{name}=(.*)$", UNIT, re.M)
    return str(value)


def checked(arguments: list[str], folder: Path, **environ: str) -> None:
    """``workers check`` takes what ``workers run`` is given there; nobody answers where it looks for a broker."""
    (folder / "shop").mkdir(exist_ok=True)
    (folder / "shop" / "handlers.py").write_text(SHOP)
    assert arguments[0] == "run"
    done = call("check", *arguments[1:], "--connect-deadline", "0", cwd=folder, env=environ)
    assert (done.returncode, "ok    handler  orders/billing" in done.stdout) == (3, True), done.stdout + done.stderr


# -- systemd


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    verify = shutil.which("systemd-analyze")
    if verify is None:
        pytest.skip("there is no systemd-analyze to read the unit")
    unit = UNIT.replace("/srv/shop/.venv/bin", str(Path(sys.executable).parent)).replace("/srv/shop", str(tmp_path))
    file = tmp_path / "workers.service"
    file.write_text(unit.replace("User=workers\n", "User=root\n"))
    done = subprocess.run([verify, "verify", file], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, [line for line in done.stderr.splitlines() if "workers" in line]) == (0, []), done.stderr


def test_the_unit_is_what_the_code_does(tmp_path: Path) -> None:
    (tmp_path / "workers.yaml").write_text(f"brokers: nsq://127.0.0.1:{free_port()}\n")
    _, *arguments = shlex.split(option("ExecStart"))
    checked(arguments, tmp_path)
    assert "--processes" in arguments
    assert option("Type") == "notify"
    assert option("ExecReload") == "/bin/kill -HUP $MAINPID"
    assert option("KillMode") == "mixed"
    assert float(option("TimeoutStopSec")) > LONGEST_STOP
    assert float(option("WatchdogSec")) / 2 > EXTENSION
    assert option("RestartPreventExitStatus") == "2"
    assert option("RuntimeDirectory") == Path(arguments[arguments.index("--admin") + 1]).parent.name


# -- Docker


def instructions(name: str) -> list[str]:
    joined = DOCKERFILE.replace("\\\n", " ")
    return [line.removeprefix(f"{name} ") for line in joined.splitlines() if line.startswith(f"{name} ")]


def copied_from_the_clone() -> list[tuple[list[str], str]]:
    found = [shlex.split(line) for line in instructions("COPY") if not line.startswith("--from=")]
    return [(words[:-1], words[-1]) for words in found]


def test_every_line_of_the_dockerfile_is_known_and_what_it_copies_exists() -> None:
    known = {"FROM", "WORKDIR", "COPY", "RUN", "ENV", "USER", "EXPOSE", "STOPSIGNAL", "ENTRYPOINT", "CMD"}
    lines = [line for line in DOCKERFILE.replace("\\\n", " ").splitlines() if line and not line.startswith("#")]
    assert {line.split()[0] for line in lines} == known
    assert [name for names, _ in copied_from_the_clone() for name in names if not (ROOT / name).exists()] == []
    bases = [line.split()[0] for line in instructions("FROM")]
    assert set(bases) == {"python:3.12-slim"}
    assert instructions("COPY")[-1] == "--from=build /opt/workers /opt/workers"
    assert "/opt/workers/bin/pip install --no-cache-dir ." in instructions("RUN")[0]
    assert instructions("ENV") == ["PATH=/opt/workers/bin:$PATH PYTHONUNBUFFERED=1"]
    assert instructions("ENTRYPOINT") == ['["workers"]']
    assert instructions("STOPSIGNAL") == ["SIGTERM"]
    (wait,) = re.findall(r"docker stop --time (\d+)", DOCKERFILE)
    assert float(wait) > LONGEST_STOP


@pytest.mark.slow
def test_what_the_image_is_built_of_can_be_installed_and_has_the_command(tmp_path: Path) -> None:
    """As the Dockerfile does, from what it copies and nothing else; offline, by the setuptools of the tests."""
    clone = tmp_path / "build"
    clone.mkdir()
    for names, target in copied_from_the_clone():
        for name in names:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, clone / target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / name, clone / target)
    pip = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--disable-pip-version-check", "-q"]
    done = subprocess.run([*pip, "-w", tmp_path, "."], cwd=clone, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    done = subprocess.run(
        [sys.executable, "-m", "zipfile", "-l", wheel], capture_output=True, text=True, timeout=60, check=True
    )  # fmt: skip
    assert "workers_command.py" in done.stdout
    assert "entry_points.txt" in done.stdout


# -- Kubernetes


@pytest.mark.parametrize("file", MANIFESTS, ids=lambda path: path.name)
def test_kubernetes_takes_the_manifests(file: Path) -> None:
    for document in yaml.safe_load_all(file.read_text()):
        if document["apiVersion"].startswith("keda.sh/"):
            continue
        kubernetes_validate.validate(document, "1.34", strict=True)


def test_a_manifest_that_is_wrong_is_seen() -> None:
    (deployment,) = documents("deployment.yaml")
    deployment["spec"]["template"]["spec"]["containers"][0]["livenessProbe"]["httpGet"]["pth"] = "/livez"
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(deployment, "1.34", strict=True)


def test_the_deployment_is_what_the_code_does(tmp_path: Path) -> None:
    (deployment,) = documents("deployment.yaml")
    template = deployment["spec"]["template"]
    pod = template["spec"]
    (container,) = pod["containers"]
    environ = {one["name"]: one.get("value", "0123456789abcdef") for one in container["env"]}
    assert set(environ) <= {row.env for row in TABLE.values()}
    arguments = list(container["args"])
    admin = arguments[arguments.index("--admin") + 1]
    port = int(admin.rpartition(":")[2])
    drain = arguments[arguments.index("--drain") + 1]
    assert drain == f"{Settings().drain:g}s"
    assert pod["terminationGracePeriodSeconds"] > LONGEST_STOP
    for probe in ("livenessProbe", "readinessProbe", "startupProbe"):
        asked = container[probe]["httpGet"]
        assert asked["path"] in OPEN
        assert asked["port"] == "admin"
    assert container["ports"] == [{"name": "admin", "containerPort": port}]
    assert template["metadata"]["annotations"]["prometheus.io/port"] == str(port)
    assert str(port) in instructions("EXPOSE")
    assert pod["securityContext"]["runAsUser"] == int(instructions("USER")[0])
    assert template["metadata"]["labels"] == deployment["spec"]["selector"]["matchLabels"]
    deadline = arguments.index("--connect-deadline")
    del arguments[deadline : deadline + 2]
    checked(arguments, tmp_path, **{**environ, "BROKER_URL": f"nsq+lookupd://127.0.0.1:{free_port()}"})


def test_the_service_and_keda_find_the_admin_endpoint() -> None:
    (deployment,) = documents("deployment.yaml")
    (service,) = documents("service.yaml")
    scaled, secret = documents("keda.yaml")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    (port,) = service["spec"]["ports"]
    assert port["targetPort"] == container["ports"][0]["name"]
    assert service["spec"]["selector"] == deployment["spec"]["selector"]["matchLabels"]
    assert scaled["apiVersion"] == secret["apiVersion"] == "keda.sh/v1alpha1"
    assert (scaled["kind"], secret["kind"]) == ("ScaledObject", "TriggerAuthentication")
    spec = scaled["spec"]
    assert set(spec) == {"scaleTargetRef", "minReplicaCount", "maxReplicaCount", "pollingInterval", "cooldownPeriod", "triggers"}
    assert spec["scaleTargetRef"] == {"name": deployment["metadata"]["name"]}
    assert spec["minReplicaCount"] >= 1, "it is the workers that are asked"
    (trigger,) = spec["triggers"]
    assert trigger["type"] == "metrics-api"
    metadata = trigger["metadata"]
    assert set(metadata) == {"url", "valueLocation", "targetValue", "authMode"}
    assert all(isinstance(value, str) for value in metadata.values()), "KEDA takes strings only"
    url = urlsplit(metadata["url"])
    assert (url.hostname, url.port, url.path) == (service["metadata"]["name"], port["port"], "/scale")
    assert parse_qs(url.query)["handler"] == ["orders/billing"]
    assert metadata["valueLocation"] == "value"
    assert trigger["authenticationRef"]["name"] == secret["metadata"]["name"]
    (token,) = secret["spec"]["secretTargetRef"]
    (known,) = (one["valueFrom"]["secretKeyRef"] for one in container["env"] if one["name"] == TABLE["admin_token"].env)
    assert (metadata["authMode"], token["parameter"]) == ("bearer", "token")
    assert {"name": token["name"], "key": token["key"]} == known
