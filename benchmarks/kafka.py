"""A real Kafka broker for benchmarks, one node by KRaft, and Spark's connector: jars that Maven copies into .cache, once."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from framework.testing.servers import ROOT, Server, ServerMissing, free_port

POMS = Path(__file__).parent / "clients" / "kafka"
_SETTINGS = """process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
log.dirs={data}/log
num.partitions=2
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
"""
_LOGGING = """log4j.rootLogger=WARN, stderr
log4j.appender.stderr=org.apache.log4j.ConsoleAppender
log4j.appender.stderr.Target=System.err
log4j.appender.stderr.layout=org.apache.log4j.PatternLayout
"""


def jars(name: str) -> Path:
    """The folder of the jars that ``name``.xml asks for. Raises ServerMissing."""
    lib = ROOT / ".cache" / "kafka" / name
    if not lib.exists():
        maven = shutil.which("mvn")
        if maven is None:
            raise ServerMissing("Kafka's jars are copied by Maven, and there is no `mvn` on the PATH")
        lib.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=lib.parent) as fresh:  # nobody sees half of them
            what = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={fresh}/lib"]
            command = [maven, "-q", "-B", "-f", str(POMS / f"{name}.xml"), *what]
            copied = subprocess.run(command, capture_output=True, text=True, check=False)
            if copied.returncode != 0:
                raise ServerMissing(f"mvn could not copy the jars of {name}.xml: {copied.stdout.strip()[-800:]}")
            os.replace(f"{fresh}/lib", lib)
    return lib


def connector() -> list[Path]:
    """The jars of Spark's that Spark itself does not bring."""
    return [one for one in sorted(jars("connector").iterdir()) if one.name.startswith(("spark-", "kafka-", "commons-pool"))]


class Kafka(Server):
    """A broker on loopback."""

    def __init__(self, data: Path) -> None:
        data.mkdir()
        port, controller = free_port(), free_port()
        self._classes = f"{jars('broker')}/*"
        self._settings = data / "server.properties"
        self._settings.write_text(_SETTINGS.format(port=port, controller=controller, data=data))
        logging = data / "log4j.properties"
        logging.write_text(_LOGGING)
        self._java = ["java", "-Xmx1g", f"-Dlog4j.configuration=file:{logging}", "-cp", self._classes]
        super().__init__([*self._java, "kafka.Kafka", str(self._settings)], tcp_port=port, data=data)

    def start(self, *, deadline: float = 100.0) -> None:
        self._tool("kafka.tools.StorageTool", "format", "-t", "bm90IGEgcmFuZG9tIGlkIQ", "-c", str(self._settings))
        super().start(deadline=deadline)

    def _tool(self, *words: str) -> None:
        done = subprocess.run([*self._java, *words], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{words[0]}: {done.stdout[-500:]}{done.stderr[-1500:]}")


@contextmanager
def running(broker: Kafka) -> Iterator[Kafka]:
    """Started, and killed at the end."""
    try:
        broker.start()
        yield broker
    finally:
        broker.kill()
