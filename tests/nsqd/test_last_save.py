"""An nsqd that cannot save at its end says of which folder, and leaves nothing that says that it runs."""

from __future__ import annotations

import gc
from pathlib import Path

import gevent
import pytest

from framework.nsqd.journal import NotStored
from framework.nsqd.options import parse
from framework.nsqd.server import RUNNING, Server


def test_what_could_not_be_saved_at_the_end_is_raised_with_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    near = "127.0.0.1:0"
    server = Server(parse([f"--data-path={tmp_path}", f"--tcp-address={near}", f"--http-address={near}"]))

    def full() -> None:
        raise NotStored("no space is left on the device")

    saved = server.broker.stop
    monkeypatch.setattr(server.broker, "stop", full)
    running = gevent.spawn(server.run)
    try:
        with gevent.Timeout(20):
            while not (tmp_path / RUNNING).exists():
                gevent.sleep(0.005)
        server.stop()
        with pytest.raises(NotStored, match=f"{tmp_path} has not what was finished.*comes again: no space is left"):
            running.get(timeout=20)
        assert not (tmp_path / RUNNING).exists()
    finally:
        gc.unfreeze()  # the server froze what this process has, too
        saved()
