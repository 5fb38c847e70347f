"""Starts workers with an admin endpoint for tests, and asks it."""

from __future__ import annotations

import http.client
import json
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families as parsed

from framework.testing.workers import working

SHOP = """
    import time
    from gevent import monkey
    from framework import Batch, Message, Reject, handler

    blocking = monkey.get_original("time", "sleep")

    @handler("orders", "bill", timeout=TIMEOUT, concurrency=2, slots="SLOTS")
    def bill(message: Message):
        text = message.body.decode()
        if text == "wait": time.sleep(60)
        if text == "block": blocking(3)
        if text == "hang": blocking(60)
        if text == "slow": time.sleep(0.03)
        if text == "bad": raise ValueError("bad")
        if text == "reject": raise Reject("no")
"""


def run(
    folder: Path, broker: str, *more: str, timeout: float = 60, slots: str = "greenlet", shop: str = SHOP,
    env: dict[str, str] | None = None,
) -> Any:  # fmt: skip
    (folder / "shop.py").write_text(textwrap.dedent(shop).replace("TIMEOUT", f"{timeout}").replace("SLOTS", slots))
    return working("run", "shop", "--broker", broker, "--admin", "127.0.0.1:0", *more, cwd=folder, env=env)


def port_of(worker: Any) -> int:
    worker.wait_for("admin endpoint at")
    [line] = [one for one in worker.err if "admin endpoint at" in one]
    return int(line.rpartition(":")[2])


def get(port: int, path: str, *, method: str = "GET", host: str = "") -> tuple[int, str]:
    """The status and the words. It has to come within a second."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1)
    connection.request(method, path, headers={"Host": host} if host else {})
    answer = connection.getresponse()
    words = answer.read().decode()
    connection.close()
    return answer.status, words


def soon(ask: Callable[[], tuple[int, str]], status: int, *, seconds: float = 1.0) -> str:
    """Its words, when the answer is ``status``, within ``seconds``, with room for a busy machine."""
    until = time.monotonic() + seconds + 4
    while (answer := ask())[0] != status and time.monotonic() < until:
        time.sleep(0.05)
    assert answer[0] == status, answer
    return answer[1]


def until(port: int, *key: str, is_: Callable[[float], bool]) -> None:
    """Ask now and then until the value of the metric is as it shall be."""
    end = time.monotonic() + 20
    while not is_(values(port).get(key, -1.0)):
        assert time.monotonic() < end, values(port)
        time.sleep(0.2)


def values(port: int) -> dict[tuple[str, ...], float]:
    """Metric, and for some labels their values -> the value."""
    found = {}
    for family in parsed(get(port, "/metrics")[1]):
        for one in family.samples:
            labels = [one.labels[name] for name in ("channel", "outcome", "le") if name in one.labels]
            found[one.name, *labels] = one.value
    return found


def api(port: int, path: str, command: object = None, **headers: str) -> tuple[int, Any]:
    """The status and the JSON; with a ``command``, of a POST."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    if command is None:
        connection.request("GET", path, headers=given)
    else:
        body = command if isinstance(command, bytes) else json.dumps(command)
        connection.request("POST", path, body=body, headers={"Content-Type": "application/json", **given})
    answer = connection.getresponse()
    found = json.loads(answer.read())
    connection.close()
    return answer.status, found


def shown(port: int, part: str, is_: Callable[[Any], object], *, seconds: float = 20.0) -> Any:
    """What the API has of ``part``, once it is as it shall be."""
    end = time.monotonic() + seconds
    while not is_(found := api(port, f"/api/{part}")[1]):
        assert time.monotonic() < end, found
        time.sleep(0.1)
    return found
