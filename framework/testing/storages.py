"""Real storages for tests of spools: an S3 gateway over a folder, on a free loopback port."""

from __future__ import annotations

from pathlib import Path

from framework.testing.servers import ROOT, Server, built_by_go, free_port

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


def environment() -> dict[str, str]:
    """The credentials that the gateway takes."""
    return {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}


def real_s3(data: Path) -> Gateway:
    """A real S3 gateway, not started yet, that keeps its buckets in ``data``. Raises ServerMissing where there is no Go."""
    program = built_by_go(
        "versitygw",
        "github.com/versity/versitygw/cmd/versitygw",
        ROOT / "tests" / "servers" / "s3",
        ROOT / ".cache" / f"versitygw-{_VERSION}",
    )
    port = free_port()
    command = [
        "env", f"ROOT_ACCESS_KEY={KEY}", f"ROOT_SECRET_KEY={SECRET}", str(program), "--port", f"127.0.0.1:{port}", "--quiet",
        "posix", str(data),
    ]  # fmt: skip
    return Gateway(command, tcp_port=port, data=data)
