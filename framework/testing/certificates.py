"""Certificates for tests of TLS: an authority of its own, and what it signs, made by openssl. Not for anything else."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from framework.testing.servers import ServerMissing

_DAYS = "2"


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key, both files in PEM."""

    cert: Path
    key: Path


class Authority:
    """``Authority(folder)`` makes a key and a certificate of its own; ``sign`` makes others. Raises ServerMissing."""

    def __init__(self, folder: Path, name: str = "tests") -> None:
        self._folder = folder
        self.pair = self._made(f"ca-{name}", f"/CN={name}", ["-x509"], "basicConstraints=critical,CA:TRUE")

    @property
    def cert(self) -> Path:
        return self.pair.cert

    def sign(
        self, name: str, *, names: Sequence[str] = ("DNS:localhost", "IP:127.0.0.1", "IP:::1"), organization: str = ""
    ) -> Pair:
        """A certificate with the common name ``name`` for ``names``; good for servers and for clients."""
        by = ["-x509", "-CA", str(self.pair.cert), "-CAkey", str(self.pair.key)]
        subject = f"/O={organization}/CN={name}" if organization else f"/CN={name}"
        return self._made(name, subject, by, f"subjectAltName={','.join(names)}")

    def _made(self, file: str, subject: str, how: Sequence[str], extension: str) -> Pair:
        openssl = shutil.which("openssl")
        if openssl is None:
            raise ServerMissing("certificates are made by openssl, and there is none on the PATH")
        pair = Pair(self._folder / f"{file}.pem", self._folder / f"{file}.key")
        subprocess.run(
            [
                openssl, "req", *how, "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", _DAYS,
                "-subj", subject, "-addext", extension, "-keyout", str(pair.key), "-out", str(pair.cert),
            ],
            check=True, capture_output=True,
        )  # fmt: skip
        return pair
