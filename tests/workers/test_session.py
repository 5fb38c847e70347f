"""The memory that a JVM of the job's own is started with, and who says it. That Spark heeds it is seen in benchmarks.job."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from workers.api_requests.stream import session as sessions

SMALL = "-XX:+UseSerialGC -XX:ReservedCodeCacheSize=128m -XX:CompileThresholdScaling=4"


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """``started(master)``: what the JVM would be told: its heap, and the options that the job chooses."""
    ours = (*sessions._SMALL_MEMORY, "SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED", *sessions._SAY_OPTIONS, sessions._SUBMITTED)
    for name in ours:
        monkeypatch.setenv(name, "")  # so that what the job sets ends with the test
        monkeypatch.delenv(name)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    monkeypatch.setattr(sessions.SparkSession, "getActiveSession", lambda: None)
    monkeypatch.setattr(sessions, "launch_gateway", lambda conf, _: conf)
    monkeypatch.setattr(sessions, "SparkConf", _Conf)
    monkeypatch.setattr(sessions, "_begun", lambda name, gateway_of, *_: gateway_of())

    def start(master: str | None) -> tuple[str | None, str | None]:
        for name in sessions._SMALL_MEMORY:
            os.environ.pop(name, None)
        conf: Any = sessions.start("test", tmp_path, master=master)
        assert ("SPARK_DRIVER_MEMORY" in os.environ) == ("MALLOC_ARENA_MAX" in os.environ)
        return os.environ.get("SPARK_DRIVER_MEMORY"), conf.get("spark.driver.defaultJavaOptions")

    return start


class _Conf(dict[str, str]):
    def __init__(self, **_: Any) -> None:
        super().__init__()

    def set(self, name: str, value: str) -> _Conf:
        self[name] = value
        return self

    def setMaster(self, master: str) -> None:
        self["spark.master"] = master


def test_a_driver_of_few_cores_is_small_and_one_of_many_or_of_a_cluster_is_not(
    started: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert started("local[2]") == started("local") == started("local[2, 4]") == ("480m", SMALL)
    assert started("local[3]") == started("spark://host:7077") == (None, None)
    for cores, expected in ((2, ("480m", SMALL)), (8, (None, None))):
        monkeypatch.setattr(os, "cpu_count", lambda cores=cores: cores)
        assert started("local[*]") == started(None) == expected


@pytest.mark.parametrize(
    ("where", "said"),
    [("PYSPARK_SUBMIT_ARGS", "--driver-java-options -XX:+UseG1GC pyspark-shell"), ("JAVA_TOOL_OPTIONS", "-XX:+UseZGC"), ("", "")],
)
def test_a_garbage_collector_that_the_user_has_chosen_stays(
    tmp_path: Path, started: Any, monkeypatch: pytest.MonkeyPatch, where: str, said: str
) -> None:
    if where:
        monkeypatch.setenv(where, said)
    else:
        (tmp_path / "spark-defaults.conf").write_text("spark.driver.extraJavaOptions -XX:+UseParallelGC\n")
    assert started("local[2]")[1] is None
