"""The Spark session that the job works in: the one that it is given, else one of its own that ends with it."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext, find_spark_home
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

import pyspark_nsq
from framework import WrongUse
from workers.api_requests.processes import descendants, kill
from workers.api_requests.stream.queries import Failed, words_of

_DYING = 0.5  # seconds from the end of a JVM's connections to its own
_SUBMITTED = "PYSPARK_GATEWAY_PORT"  # in the environment of what spark-submit runs: its JVM is there already

_CONTEXT = {
    "spark.ui.showConsoleProgress": "false",
    "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    # A trigger that comes late is no news where the machine is small.
    "spark.log.level": "ERROR",
    # With each function of a column Spark would be told which line of Python called it: more than half of all that it is told.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
}
_SQL = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.streaming.forceDeleteTempCheckpointLocation": "true",
    # The expressions of a line make a method so long that the JVM does not compile it: 23 us of CPU a line, in place of 17.
    "spark.sql.codegen.wholeStage": "false",
}
"""What is set where nobody has set it. The time zone among them: hours and days are UTC's unless somebody says otherwise."""
_LOCAL = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
_BEGIN_ANEW = "begin anew with an empty --state and an empty --output"
_SHUFFLES = "spark.sql.shuffle.partitions"
_TIMES, _WITH_ZONE = "spark.sql.timestampType", "TIMESTAMP_LTZ"
SHORT = {
    "spark.ui.enabled": "false",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
}
"""What compiles and plans for long runs never gives its time back within a minute: 66 CPU seconds in place of 35."""
_FEW_CORES = 2
_SMALL_MEMORY = {
    "SPARK_DRIVER_MEMORY": "480m",  # Spark wants 450 besides the room of a survivor
    # What the JVM frees outside of its heap goes back to the system.
    "MALLOC_ARENA_MAX": "2",
    "MALLOC_TRIM_THRESHOLD_": "131072",
}
_SMALL = "-XX:+UseSerialGC -XX:ReservedCodeCacheSize=128m -XX:CompileThresholdScaling=4"
"""With these a driver of few cores that is all there is stays under 1 GB of memory, and each line takes less CPU than by G1.
The second compiler takes a method only when it has run four times as often as by default: 19 s of CPU over 1.6 M lines in place
of 33, and lines are no dearer after that."""
_SAY_OPTIONS = ("PYSPARK_SUBMIT_ARGS", "SPARK_SUBMIT_OPTS", "JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS")


class Session:
    """``spark``, and its JVM if the job has started it: only then does ``stop`` end both."""

    def __init__(self, spark: SparkSession, *, jvm: subprocess.Popen[bytes] | None = None, ours: bool = False) -> None:
        self.spark = spark
        self._jvm = jvm
        self._ours = ours
        if (said := spark.conf.get(_TIMES, None)) not in (None, _WITH_ZONE):
            raise WrongUse(f"{_TIMES} is {said}, and lines' times have a zone: give the job a session with {_WITH_ZONE}")
        for name, value in _SQL.items():
            if spark.conf.get(name, None) is None:
                spark.conf.set(name, value)
        self._shuffles_are_ours = spark.conf.get(_SHUFFLES, None) is None

    def source_of(self, query: str) -> str:
        """The name of the source that ``query`` reads with, now: no other query does, nor did an earlier one of its name."""
        source = pyspark_nsq.named(f"nsq_{query}", spool="--spool", lost=_BEGIN_ANEW)
        self.spark.dataSource.register(source)
        return source.name()

    @property
    def zone(self) -> str:
        """Whose hours and days are counted."""
        return str(self.spark.conf.get("spark.sql.session.timeZone"))

    @property
    def parallelism(self) -> int:
        """How many tasks can run at once, as far as the executors have come."""
        return self.spark.sparkContext.defaultParallelism

    def fit(self, spark: SparkSession) -> None:
        """Have as many partitions in a shuffle as tasks can run at once now, unless somebody has said how many."""
        if self._shuffles_are_ours:
            spark.conf.set(_SHUFFLES, str(self.parallelism))

    def fitted(self) -> SparkSession:
        """Our session, after ``fit``."""
        self.fit(self.spark)
        return self.spark

    def be_quiet(self) -> None:
        """Log no more, in a session of ours: what a stop breaks off is a failed query to Spark, which it logs at length."""
        if self._ours:
            with suppress(Exception):  # the JVM may have been killed
                self.spark.sparkContext.setLogLevel("OFF")

    def stop(self) -> None:
        """End a session of ours and its JVM; returns when the JVM has gone. One that was given goes on."""
        if not self._ours:
            return
        with suppress(Exception):  # the JVM may have been killed
            self.spark.stop()
        if self._jvm is None:  # spark-submit's, which ends by itself after us
            return
        if self._jvm.stdin is not None:
            self._jvm.stdin.close()
        try:
            self._jvm.wait(10)
        except subprocess.TimeoutExpired:
            self._jvm.kill()
            self._jvm.wait()

    def death(self) -> str:
        """How the JVM ended by itself, in words; empty where it has not, within half a second, and where it is not ours."""
        return _death(self._jvm)


def given() -> SparkSession | None:
    """The session that there is already, as in a notebook."""
    return SparkSession.getActiveSession()


def start(name: str, scratch: Path, *, master: str | None = None, short: bool = False, log: Path | None = None) -> Session:
    """The session there is already, as in a notebook; else one in the JVM of spark-submit; else one in a JVM of our own.

    What the user has set, by whatever way Spark has for it, stays; the rest is set as this job needs it. A JVM of our own is in
    a process group of its own, so that a signal to ours lets the queries end in order, and ends by itself when this process does.

    ``master``: None for what Spark's settings say, ``local[*]`` where they say none. ``short``: settings for a run of a minute.
    ``scratch``: a folder that may stay. ``log``: where the messages of a JVM of our own go, in place of stderr. Raises WrongUse
    for a session of Spark Connect, or one whose times have no zone, PySparkException where Java is missing, and Failed where the
    JVM does not get as far as a session.
    """
    _refuse_connect()
    logging.getLogger().addFilter(is_news)
    if (found := given()) is not None:
        return Session(found)
    settings = {**_CONTEXT, **(SHORT if short else {})}
    if _SUBMITTED in os.environ:
        return _begun(name, launch_gateway, settings, master)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    is_local = master is None or master.startswith("local")
    if is_local and "SPARK_HOME" not in os.environ:
        os.environ["SPARK_HOME"] = str(home_without_zip(scratch))
    options: dict[str, object] = {"start_new_session": True}
    if log is not None:
        options |= {"stdout": log.open("ab"), "stderr": subprocess.STDOUT}
    # Spark takes what starts so for a shell, and would show its progress there before we could say anything.
    launching = SparkConf(loadDefaults=False).set("spark.ui.showConsoleProgress", "false")
    if short:
        launching.setAll(list(SHORT.items()))
    if master is not None:
        launching.setMaster(master)
    if is_local and _cores(master) <= _FEW_CORES:
        for variable, value in _SMALL_MEMORY.items():  # which yield to every other way of saying it
            os.environ.setdefault(variable, value)
        if not _says_collector():
            launching.set("spark.driver.defaultJavaOptions", _SMALL)
    before = descendants(os.getpid())
    try:
        return _begun(name, lambda: launch_gateway(launching, options), settings, master)  # type: ignore[no-untyped-call]
    except BaseException:
        # A JVM that is still starting does not see that we end.
        kill([one for one in descendants(os.getpid()) if one not in before])
        raise


def _cores(master: str | None) -> int:
    """How many tasks a local master runs at once, at the least."""
    said = re.search(r"\[(\d+)", master or "")
    return int(said[1]) if said else 1 if master == "local" else os.cpu_count() or 1


def _says_collector() -> bool:
    """Whether the user has chosen a garbage collector: Java refuses two."""
    conf = Path(os.environ.get("SPARK_CONF_DIR") or Path(os.environ["SPARK_HOME"]) / "conf") / "spark-defaults.conf"
    texts = [os.environ.get(name, "") for name in _SAY_OPTIONS]
    with suppress(OSError):
        texts.append(conf.read_text())
    return any("GC" in text or "spark.driver.defaultJavaOptions" in text for text in texts)


def _refuse_connect() -> None:
    """foreachBatch runs on the server of Spark Connect, and there is neither our output folder nor what the job remembers."""
    if os.environ.get("SPARK_REMOTE") or os.environ.get("SPARK_CONNECT_MODE_ENABLED"):
        raise WrongUse(
            "the job works beside Spark's driver, and with Spark Connect (SPARK_REMOTE) that is on another machine: "
            "start the job with spark-submit or --master there"
        )


def _path_of_ours(conf: SparkConf) -> str:
    """Where this process has the source from: so has the one beside the driver that Spark keeps for each query, to which it
    gives --py-files no more than an editable install. Executors that lack the folder take no notice."""
    here = str(Path(pyspark_nsq.__file__).parents[1])
    return os.pathsep.join(filter(None, [conf.get("spark.executorEnv.PYTHONPATH", ""), here]))


def _begun(name: str, gateway_of: Callable[[], Any], settings: dict[str, str], master: str | None) -> Session:
    gateway = gateway_of()
    try:
        SparkContext._ensure_initialized(gateway=gateway)
        conf = SparkConf(_jvm=SparkContext._jvm)  # with all that spark-submit, spark-defaults.conf and the environment say
        if master is not None and conf.get("spark.master", master) != master:
            said = conf.get("spark.master")
            raise WrongUse(f"--master {master}: spark-submit was given {said}; say it to spark-submit alone")
        conf.setIfMissing("spark.master", master or "local[*]")
        if str(conf.get("spark.master")).startswith("local["):
            settings = {**settings, **_LOCAL}
        for key, value in settings.items():
            conf.setIfMissing(key, value)
        if conf.get("spark.app.name", "") in ("", "pyspark-shell", "__main__.py"):  # what Spark says where nobody has
            conf.setAppName(name)
        context = SparkContext(conf=conf, environment={"PYTHONPATH": _path_of_ours(conf)})
        _expect_its_end(context)
        return Session(SparkSession(context), jvm=gateway.proc, ours=True)
    except (Py4JError, OSError) as error:
        raise Failed(_death(gateway.proc) or words_of(error)) from None


def _expect_its_end(context: SparkContext) -> None:
    """pyspark's server for accumulators prints a traceback when the JVM closes its connection, as it may at a stop in order."""
    server = context._accumulatorServer
    report = server.handle_error

    def report_what_is_no_end(*of_whom: Any) -> None:
        if not isinstance(sys.exception(), EOFError | ConnectionError):
            report(*of_whom)

    server.handle_error = report_what_is_no_end  # type: ignore[assignment,method-assign]


def home_without_zip(folder: Path) -> Path:
    """A SPARK_HOME in ``folder`` whose Python workers import the installed pyspark, where Spark's own has them import a zip.

    Nothing in that zip is compiled, and every worker that starts compiles it anew: 2.0 s of CPU in place of 0.6, of the 10 s
    that Spark waits. Other machines get their workers' pyspark from the zip, so it is for local masters alone.
    """
    home = folder / "spark-home"
    home.mkdir(parents=True, exist_ok=True)
    for part in ("bin", "jars"):
        link, target = home / part, Path(find_spark_home._find_spark_home()) / part
        if not link.is_symlink() or link.readlink() != target:  # of another installation; else a JVM may be using it
            link.unlink(missing_ok=True)
            link.symlink_to(target)
    return home


def is_news(record: logging.LogRecord) -> bool:
    """A filter of the root logger, to which py4j gives a traceback for each word to a JVM that has died."""
    return record.msg != "Exception while sending command."


def _death(jvm: subprocess.Popen[bytes] | None) -> str:
    if jvm is None:
        return ""
    try:
        code = jvm.wait(_DYING)
    except subprocess.TimeoutExpired:
        return ""
    how = f"was killed by signal {-code}, as where there is too little memory" if code < 0 else f"ended with code {code}"
    return f"Spark's JVM {how}; its log may say more"
