"""Real storages for tests of spools, on free loopback ports: an S3 gateway over a folder, HDFS with one datanode, and Azurite,
which is Microsoft's own server of Azure's blobs for tests."""

from __future__ import annotations

import base64
import email.utils
import hmac
import json
import re
import shutil
import subprocess
import time
import urllib.request
from pathlib import Path

from framework.testing import java
from framework.testing.servers import ROOT, Server, ServerMissing, built_by_go, free_port, made_once

_VERSION = "1.8.0"
KEY, SECRET = "tests-key", "tests-secret-value"


class Gateway(Server):
    """A versitygw: its buckets are the folders of ``data``, and what it has said yes to survives its kill -9."""

    def bucket(self, name: str) -> str:
        """The URL of a new bucket."""
        (self.data / name).mkdir()
        return f"s3://{name}"

    def url(self, bucket: str, folder: str) -> str:
        """Of a spool, with where the gateway is."""
        return f"s3://{bucket}/{folder}?endpoint=http://{self.address}&region=us-east-1"

    def reads(self) -> list[str]:
        """The key of each object that it was asked for, in turn. It writes one down just after its answer."""
        lines = access_log(self.data).read_text().splitlines()
        return [match[1] for match in map(_READ.search, lines) if match is not None]


_READ = re.compile(r" s3_GetObject (\S+) ")


def access_log(data: Path) -> Path:
    """Where a gateway over ``data`` writes down each request."""
    return data.with_name(f"{data.name}-access.log")


def environment() -> dict[str, str]:
    """The credentials that the gateway takes."""
    return {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}


def s3_binary() -> Path:
    """The path of the real gateway, built by Go once and kept in ``.cache``. Raises ServerMissing where there is no Go."""
    module, folder = ROOT / "tests" / "servers" / "s3", ROOT / ".cache" / f"versitygw-{_VERSION}"
    return built_by_go("versitygw", "github.com/versity/versitygw/cmd/versitygw", module, folder)


def real_s3(data: Path) -> Gateway:
    """A real S3 gateway, not started yet, that keeps its buckets in ``data``. Raises ServerMissing where there is no Go."""
    program = s3_binary()
    port = free_port()
    command = [
        "env", f"ROOT_ACCESS_KEY={KEY}", f"ROOT_SECRET_KEY={SECRET}", str(program), "--port", f"127.0.0.1:{port}", "--quiet",
        "--access-log", str(access_log(data)), "posix", str(data),
    ]  # fmt: skip
    return Gateway(command, tcp_port=port, data=data)


_AZURITE = "3.35.0"
ACCOUNT = "devstoreaccount1"
ACCOUNT_KEY = base64.b64encode(b"the key of the account of the tests").decode()


class Azurite(Server):
    """What it has said yes to does not survive its kill -9."""

    @property
    def endpoint(self) -> str:
        return f"http://{self.address}/{ACCOUNT}"

    def url(self, container: str, folder: str) -> str:
        """Of a spool, with where the server is."""
        return f"az://{container}/{folder}?endpoint={self.endpoint}&account={ACCOUNT}"

    def container(self, name: str) -> None:
        """Make it."""
        now = email.utils.formatdate(usegmt=True)
        headers = {"x-ms-date": now, "x-ms-version": "2021-10-04"}
        lines = "".join(f"{name}:{value}\n" for name, value in headers.items())
        signed = "PUT" + "\n" * 12 + f"{lines}/{ACCOUNT}/{ACCOUNT}/{name}\nrestype:container"
        digest = hmac.digest(base64.b64decode(ACCOUNT_KEY), signed.encode(), "sha256")
        headers["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}"
        asked = urllib.request.Request(f"{self.endpoint}/{name}?restype=container", method="PUT", headers=headers)
        with urllib.request.urlopen(asked, timeout=10):
            pass


def azure_environment() -> dict[str, str]:
    """The credentials that Azurite takes."""
    return {"AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT, "AZURE_STORAGE_ACCOUNT_KEY": ACCOUNT_KEY}


def azurite_modules() -> Path:
    """The folder of Azurite's modules, which npm installs once. Raises ServerMissing where it cannot."""

    def install(fresh: Path) -> None:
        npm = shutil.which("npm")
        if npm is None:
            raise ServerMissing("Azurite is installed by npm, and there is no `npm` on the PATH")
        shutil.copy(ROOT / "tests" / "servers" / "azure" / "package.json", fresh)
        done = subprocess.run(
            [npm, "install", "--no-fund", "--no-audit", "--no-package-lock"],
            cwd=fresh,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise ServerMissing(f"npm install of Azurite failed: {done.stderr.strip()[-800:]}")

    return made_once(ROOT / ".cache" / f"azurite-{_AZURITE}", "node_modules", install)


def real_azure(data: Path) -> Azurite:
    """An Azurite, not started yet, that keeps its containers in ``data``. Raises ServerMissing where it cannot be installed."""
    program = azurite_modules() / ".bin" / "azurite-blob"
    port = free_port()
    command = [
        "env", f"AZURITE_ACCOUNTS={ACCOUNT}:{ACCOUNT_KEY}", str(program), "--blobHost", "127.0.0.1",
        "--blobPort", str(port), "--location", str(data), "--skipApiVersionCheck", "--disableTelemetry", "--silent",
    ]  # fmt: skip
    return Azurite(command, tcp_port=port, data=data)


_HADOOP = "3.5.0"
_POM = ROOT / "tests" / "servers" / "hdfs" / "pom.xml"
_SERVERS = "org.apache.hadoop.hdfs.server"
_READY = 60.0
"""Seconds that a start may take on a busy machine; four are usual."""


def hdfs_jars() -> Path:
    """The folder of HDFS's jars, which Maven copies there once. Raises ServerMissing."""
    return java.jars("HDFS", _POM, ROOT / ".cache" / f"hdfs-{_HADOOP}", f"-Dhadoop.version={_HADOOP}")


class Hdfs:
    """A namenode and a datanode, each a process of its own; what they have said yes to survives their kill -9."""

    def __init__(self, data: Path, **settings: str) -> None:
        """Raises ServerMissing where there is no Java 17, or no Maven to copy the jars by."""
        rpc, http, *ports = (free_port() for _ in range(5))
        self._settings = {
            "dfs.namenode.name.dir": (data / "name").as_uri(), "dfs.datanode.data.dir": (data / "blocks").as_uri(),
            "dfs.namenode.rpc-address": f"127.0.0.1:{rpc}", "dfs.namenode.http-address": f"127.0.0.1:{http}",
            "dfs.datanode.address": f"127.0.0.1:{ports[0]}", "dfs.datanode.http.address": f"127.0.0.1:{ports[1]}",
            "dfs.datanode.ipc.address": f"127.0.0.1:{ports[2]}", "dfs.datanode.hostname": "127.0.0.1", "dfs.replication": "1",
            "dfs.namenode.safemode.extension": "0", "dfs.namenode.safemode.min.datanodes": "1", "dfs.heartbeat.interval": "1",
            "fs.defaultFS": f"hdfs://127.0.0.1:{rpc}", "hadoop.tmp.dir": str(data / "tmp"),
            "dfs.permissions.superusergroup": "nobody", "dfs.datanode.du.reserved": "0",
            **settings,
        }  # fmt: skip
        conf = data / "conf"
        conf.mkdir()
        lines = "".join(
            f"<property><name>{name}</name><value>{value}</value></property>" for name, value in self._settings.items()
        )
        for name in ("core-site.xml", "hdfs-site.xml"):
            (conf / name).write_text(f"<configuration>{lines}</configuration>\n")
        self._java = [
            java.binary("HDFS"), "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", f"-Dhadoop.log.dir={data}",
            "-cp", f"{conf}:{hdfs_jars()}/*",
        ]  # fmt: skip
        self.address = f"127.0.0.1:{http}"
        self.namenode = Server([*self._java, f"{_SERVERS}.namenode.NameNode"], tcp_port=http, data=data)
        self.datanode = Server([*self._java, f"{_SERVERS}.datanode.DataNode"], tcp_port=ports[1], data=data)

    def url(self, folder: str) -> str:
        return f"webhdfs://{self.address}/{folder}"

    def format(self) -> None:
        """Make an empty one; before its first start."""
        command = [*self._java, f"{_SERVERS}.namenode.NameNode", "-format", "-nonInteractive", "-force"]
        subprocess.run(command, capture_output=True, check=True)

    def start(self) -> None:
        """Return when files can be written."""
        for server in (self.namenode, self.datanode):
            if server.process is None:
                server.start(deadline=_READY)
        until = time.monotonic() + _READY
        while not self._is_ready():
            if time.monotonic() > until:
                raise RuntimeError("HDFS is not ready")
            time.sleep(0.1)

    def kill(self) -> None:
        """kill -9 of both."""
        for server in (self.namenode, self.datanode):
            server.kill()

    def _is_ready(self) -> bool:
        bean = "Hadoop:service=NameNode,name=FSNamesystemState"
        try:
            with urllib.request.urlopen(f"http://{self.address}/jmx?qry={bean}", timeout=5) as answer:
                (state,) = json.load(answer)["beans"]
        except (OSError, ValueError):
            return False
        # A datanode is live before it has said that it has room: what is written in between is refused.
        return bool(state["FSState"] == "Operational" and state["NumLiveDataNodes"] == 1 and state["CapacityTotal"] > 0)
