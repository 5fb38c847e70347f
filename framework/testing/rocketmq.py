"""A real RocketMQ for tests: a name server and a broker on free loopback ports, from the jars that Maven has copied once."""

from __future__ import annotations

import socket
import ssl
import struct
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from framework.testing import java
from framework.testing.certificates import Pair
from framework.testing.servers import ROOT, Server, free_port
from framework.transports.rocketmq.wire.codes import Answer, Request
from framework.transports.rocketmq.wire.frames import Decoder, Frame, encode

VERSION, OLDER = "5.3.3", "4.9.7"
"""The second has no POP, and no timers."""
_POM = ROOT / "tests" / "servers" / "rocketmq" / "pom.xml"
_CACHE = ROOT / ".cache"
_LOGGING = """<configuration>
  <statusListener class="org.apache.rocketmq.logging.ch.qos.logback.core.status.NopStatusListener"/>
  <appender name="STDERR" class="org.apache.rocketmq.logging.ch.qos.logback.core.ConsoleAppender">
    <target>System.err</target><encoder><pattern>%d %p %c - %m%n</pattern></encoder>
  </appender>
  <root level="WARN"><appender-ref ref="STDERR"/></root>
</configuration>
"""
_OLDER_LOGGING = """<configuration>
  <appender name="STDERR" class="ch.qos.logback.core.ConsoleAppender">
    <target>System.err</target><encoder><pattern>%d %p %c - %m%n</pattern></encoder>
  </appender>
  <root level="WARN"><appender-ref ref="STDERR"/></root>
</configuration>
"""
_BROKER = """brokerClusterName=DefaultCluster
brokerId=0
brokerIP1=127.0.0.1
brokerIP2=127.0.0.1
bindAddress=127.0.0.1
mappedFileSizeCommitLog=67108864
mappedFileSizeConsumeQueue=600000
mappedFileSizeTimerLog=16777216
maxHashSlotNum=50000
maxIndexNum=200000
flushDiskType=ASYNC_FLUSH
fileReservedTime=1
diskMaxUsedSpaceRatio=95
diskSpaceWarningLevelRatio=97
waitTimeMillsInSendQueue=2000
reviveQueueNum=1
transactionMetricFlushInterval=200
"""
# The last of these: for that long after its start, 3 s by itself, a broker's TransactionMetricsFlushService asks for the time
# again and again.
PROMPT = {
    "popConsumerKVServiceInit": "true", "popConsumerKVServiceEnable": "true", "enableRetryTopicV2": "true",
    "retrieveMessageFromPopRetryTopicV1": "false",
}  # fmt: skip
"""Settings with which what is requeued comes within half a second of its time, and not within five."""
READY = 100.0
"""Seconds that a start may take, on a machine that does much else. Half a dozen are usual."""


class Broker(Server):
    """It is up when its name server has a route to it, which is later than when its port listens."""

    def __init__(
        self, command: list[str], *, port: int, data: Path, name_server: int, name: str, tls: bool, shown: Pair | None = None
    ) -> None:
        """``tls``: it and its name server speak nothing else. ``shown``: what they ask their clients for."""
        super().__init__(command, tcp_port=port, data=data)
        self.name_server = name_server
        self.name = name
        self.tls = tls
        self._shown = shown

    def start(self, *, deadline: float = READY) -> None:
        until = time.monotonic() + deadline
        super().start(deadline=deadline)
        while not self._routed():
            if time.monotonic() > until:
                self.kill()
                raise RuntimeError(f"the name server has no route to the broker after {deadline:g} s: {self.log[-5:]}")
            time.sleep(0.05)

    def _routed(self) -> bool:
        """A broker skips its first registration every other time, and comes ten seconds later unless it is nudged."""
        found = self._ask(self.name_server, Request.GET_ROUTEINFO_BY_TOPIC, {"topic": "TBW102"})
        if found is not None and found.code == Answer.SUCCESS and f'"{self.name}"'.encode() in found.body:
            return True
        self._ask(self.tcp_port, Request.UPDATE_BROKER_CONFIG, {}, b"brokerPermission=6\n")
        return False

    def _ask(self, port: int, code: int, fields: Mapping[str, str], body: bytes = b"") -> Frame | None:
        """The answer to a request; None where there is none."""
        decoder = Decoder()
        try:
            with socket.create_connection(("127.0.0.1", port), 2.0) as plain, self._wrapped(plain) as sock:
                sock.sendall(encode(Frame(code, 1, fields, body)))
                while data := sock.recv(65536):
                    for frame in decoder.feed(data):
                        return frame
        except (OSError, struct.error):
            pass
        return None

    def _wrapped(self, sock: socket.socket) -> socket.socket:
        """With TLS, whoever is there: these are our own processes."""
        if not self.tls:
            return sock
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if self._shown is not None:
            context.load_cert_chain(self._shown.cert, self._shown.key)
        return context.wrap_socket(sock)


class RocketMQ:
    """One name server and one broker, or several (``add``), which can each be killed and started again as themselves."""

    def __init__(
        self, data: Path, settings: Mapping[str, str], *flags: str, name: str = "broker-a", version: str = VERSION,
        shown: Pair | None = None,
    ) -> None:  # fmt: skip
        """``settings``: of the broker; ``flags``: of both Java machines; ``shown``: what they ask their clients for."""
        (data / "conf").mkdir()
        (data / "conf" / "rmq.logback.xml").write_text(_LOGGING)
        for part in ("broker", "namesrv"):
            (data / "conf" / f"logback_{part}.xml").write_text(_OLDER_LOGGING)
        self.name = name
        self.data = data
        self._java = [*java_command(data, version), *flags]
        self._tls = ENFORCING <= set(flags)
        self._shown = shown
        port = free_port()
        names = _written(data / "ns.conf", f"listenPort={port}\nbindAddress=127.0.0.1\n")
        self.name_server = Server(
            [*self._java, "-Xmx128m", "org.apache.rocketmq.namesrv.NamesrvStartup", "-c", names], tcp_port=port, data=data
        )
        self.brokers: list[Broker] = []
        self.broker = self.add(name, settings)

    def add(self, name: str, settings: Mapping[str, str]) -> Broker:
        """One more broker, which is a master of the same cluster. Not started."""
        vip = free_port(4)  # the port two below its own is opened by a broker too, and that after it
        port, store = vip + 2, self.data / f"store-{name}"
        own = f"brokerName={name}\nnamesrvAddr={self.address}\nlistenPort={port}\nhaListenPort={port + 1}\n"
        own += f"storePathRootDir={store}\nstorePathCommitLog={store}/commitlog\n"
        own += "".join(f"{key}={value}\n" for key, value in settings.items())
        conf = _written(self.data / f"{name}.conf", _BROKER + own)
        memory = ["-Xmx256m", "-XX:MaxDirectMemorySize=256m"]
        command = [*self._java, *memory, "org.apache.rocketmq.broker.BrokerStartup", "-c", conf]
        made = Broker(command, port=port, data=self.data, name_server=self.name_server.tcp_port, name=name, tls=self._tls,
                      shown=self._shown)  # fmt: skip
        self.brokers.append(made)
        return made

    @property
    def address(self) -> str:
        """Of the name server."""
        return self.name_server.address

    def start(self) -> None:
        """All at once; returns when messages can be published. Where one fails, none is left."""
        with ThreadPoolExecutor(1 + len(self.brokers)) as pool:
            starting = [pool.submit(self.name_server.start, deadline=READY)]
            starting += [pool.submit(broker.start) for broker in self.brokers]
        failures = [error for each in starting if (error := each.exception()) is not None]
        if failures:
            self.kill()
            raise failures[0]

    def kill(self) -> None:
        """kill -9 of all."""
        for broker in self.brokers:
            broker.kill()
        self.name_server.kill()


ENFORCING = {"-Dtls.server.mode=enforcing", "-Dtls.enable=true"}
"""Flags by which both serve nobody in clear, and the broker asks its name server by TLS."""


def with_certificate(pair: Pair) -> tuple[str, ...]:
    """Flags by which a server shows ``pair`` to who asks for TLS; others are served in clear."""
    return "-Dtls.test.mode.enable=false", f"-Dtls.server.keyPath={pair.key}", f"-Dtls.server.certPath={pair.cert}"


def asking_for(pair: Pair, authority: Pair) -> tuple[str, ...]:
    """Flags by which a server takes only clients that show what ``authority`` has signed; it shows ``pair`` itself where it is
    one."""
    return (
        "-Dtls.server.need.client.auth=require", "-Dtls.server.authClient=true", f"-Dtls.server.trustCertPath={authority.cert}",
        f"-Dtls.client.certPath={pair.cert}", f"-Dtls.client.keyPath={pair.key}",
    )  # fmt: skip


def real_rocketmq(
    data: Path, settings: Mapping[str, str] | None = None, *flags: str, version: str = VERSION, shown: Pair | None = None
) -> RocketMQ:
    """A real RocketMQ, not started yet, that keeps its messages in ``data``. ``shown``: to whom asks for a certificate
    (``asking_for``).

    Raises ServerMissing where there is no Java 17, or no Maven to copy its jars by."""
    return RocketMQ(data, settings or {}, *flags, version=version, shown=shown)


def java_command(data: Path, version: str = VERSION) -> list[str]:
    """The command of a Java machine with RocketMQ's jars, which writes its logs below ``data``. Raises ServerMissing."""
    return [
        "env", f"ROCKETMQ_HOME={data}", java_binary(), "-Xms64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
        "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED", "--add-opens=java.base/java.nio=ALL-UNNAMED",
        "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED", "--add-opens=java.base/jdk.internal.ref=ALL-UNNAMED",
        f"-Duser.home={data}", "-cp", f"{data}/conf:{jars(version)}/*",
    ]  # fmt: skip


def _written(file: Path, text: str) -> str:
    file.write_text(text)
    return str(file)


def java_binary() -> str:
    """JAVA_HOME's, or the PATH's. Raises ServerMissing unless it is 17 or newer."""
    return java.binary("RocketMQ")


def jars(version: str = VERSION) -> Path:
    """The folder of RocketMQ's jars, which Maven copies there once, as it is configured here: 83 MB. Raises ServerMissing."""
    return java.jars("RocketMQ", _POM, _CACHE / f"rocketmq-{version}", f"-Drocketmq.version={version}")
