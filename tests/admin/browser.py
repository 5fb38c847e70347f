"""Chromium without a window, driven by its own protocol over two pipes: opens a page, runs JavaScript in it, takes pictures."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--remote-debugging-pipe",
)  # fmt: skip


class Browser:
    """One tab. ``complaints``: what its console said of errors; ``asked``: the URLs that it asked for."""

    def __init__(self, to: Any, of: Any) -> None:
        self._to, self._of = to, of
        self._count = 0
        self._session: str | None = None
        self.complaints: list[str] = []
        self.asked: list[str] = []
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")

    def open(self, url: str, *, width: int = 1280, height: int = 800, dark: bool = False) -> None:
        self.size(width, height, dark=dark)
        self._call("Page.navigate", url=url)
        self.until(f"location.href.startsWith({url!r}) && document.readyState === 'complete'")

    @contextmanager
    def beginning_with(self, code: str) -> Iterator[None]:
        """Each page that is opened meanwhile runs ``code`` first."""
        made = self._call("Page.addScriptToEvaluateOnNewDocument", source=code)["identifier"]
        yield
        self._call("Page.removeScriptToEvaluateOnNewDocument", identifier=made)

    def size(self, width: int, height: int, *, dark: bool = False) -> None:
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self._call("Emulation.setEmulatedMedia", features=features)

    def js(self, code: str) -> Any:
        """The value of an expression; a promise is awaited."""
        found = self._call("Runtime.evaluate", expression=code, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def until(self, code: str, seconds: float = 20.0) -> Any:
        """Its value, once it is true."""
        end = time.monotonic() + seconds
        while not (found := self.js(code)):
            assert time.monotonic() < end, (code, self.complaints, self.js("document.body.innerText")[:2000])
            time.sleep(0.05)
        return found

    def text(self, selector: str) -> str:
        return str(self.js(f"document.querySelector({selector!r})?.innerText ?? ''"))

    def click(self, selector: str, words: str = "") -> None:
        """The first one that is in sight, and has these words where they are given."""
        find = (
            f"[...document.querySelectorAll({selector!r})].find((one) => one.offsetParent && one.innerText.includes({words!r}))"
        )
        self.until(f"Boolean({find})")
        self.js(f"{find}.click()")

    def key(self, key: str) -> None:
        more = {"text": key} if len(key) == 1 else {}
        self._call("Input.dispatchKeyEvent", type="keyDown", key=key, **more)
        self._call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def type(self, text: str) -> None:
        self._call("Input.insertText", text=text)

    def picture(self, file: Path) -> None:
        file.write_bytes(base64.b64decode(self._call("Page.captureScreenshot", format="png")["data"]))

    def _call(self, method: str, **params: Any) -> Any:
        self._count += 1
        session = {"sessionId": self._session} if self._session else {}
        self._to.write(json.dumps({"id": self._count, "method": method, "params": params, **session}).encode() + b"\0")
        self._to.flush()
        while (heard := self._hear()).get("id") != self._count:
            self._note(heard)
        assert "error" not in heard, (method, heard["error"])
        return heard["result"]

    def _hear(self) -> Any:
        text = bytearray()
        while (byte := self._of.read(1)) != b"\0":
            assert byte, "Chromium has ended"
            text += byte
        return json.loads(text)

    def _note(self, event: Any) -> None:
        params = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(str(params["exceptionDetails"].get("exception", {}).get("description") or params))
        elif event.get("method") == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.complaints.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
        elif event.get("method") == "Network.requestWillBeSent":
            self.asked.append(params["request"]["url"])


@contextmanager
def browsing(profile: Path, *flags: str) -> Iterator[Browser]:
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("the page is opened in Chromium, and there is none on the PATH")
    reads, to = os.pipe()
    of, writes = os.pipe()
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 64) for fd in (reads, writes)]  # none of them is 3 or 4 by chance
    pid = os.posix_spawn(
        program, [program, *_FLAGS, *flags, f"--user-data-dir={profile}"], os.environ, setpgroup=0,
        file_actions=[
            *((os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in (0, 1, 2)),
            (os.POSIX_SPAWN_DUP2, high[0], 3), (os.POSIX_SPAWN_DUP2, high[1], 4),
        ],
    )  # fmt: skip
    for fd in (reads, writes, *high):
        os.close(fd)
    try:
        with os.fdopen(to, "wb") as sending, os.fdopen(of, "rb") as hearing, suppress(BrokenPipeError):
            yield Browser(sending, hearing)
    finally:
        os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
