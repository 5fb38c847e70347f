"""What a client is granted, without a server: nsqd's bounds and words."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from framework.nsqd import identify
from framework.nsqd.identify import Wishes
from framework.nsqd.options import Options
from framework.nsqd.protocol import Client
from framework.transports.nsq.wire import OK


@pytest.mark.parametrize(
    ("wished", "granted"),
    [(0, 30.0), (-1, 0), (1000, 1.0), (60_000, 60.0)],
)
def test_a_heartbeat_is_off_at_minus_one_and_else_within_bounds(wished: int, granted: float) -> None:
    options = Options()
    found = identify.default(options)
    identify.grant(Wishes(heartbeat_interval=wished), found, options)
    assert found.heartbeat_interval == granted


@pytest.mark.parametrize("wished", [1, 999, 60_001, -2])
def test_a_heartbeat_out_of_bounds_is_refused(wished: int) -> None:
    options = Options()
    with pytest.raises(ValueError, match=rf"heartbeat interval \({wished}\) is invalid"):
        identify.grant(Wishes(heartbeat_interval=wished), identify.default(options), options)


@pytest.mark.parametrize("wishes", [{}, {"snappy": True}, {"deflate": True}])
def test_one_compression_or_none_is_granted(wishes: dict[str, Any]) -> None:
    options = Options()
    found = identify.default(options)
    identify.grant_upgrades(Wishes(**wishes), found, options)
    assert (found.snappy, found.deflate) == ("snappy" in wishes, "deflate" in wishes)


def test_both_compressions_are_refused() -> None:
    options = Options()
    with pytest.raises(ValueError, match="cannot enable both deflate and snappy compression"):
        identify.grant_upgrades(Wishes(snappy=True, deflate=True), identify.default(options), options)


def granted(**wishes: Any) -> Any:
    options = Options()
    found = identify.default(options)
    identify.grant(Wishes(**wishes), found, options)
    return found


def test_what_is_not_asked_for_is_as_the_operator_set_it() -> None:
    options, found = Options(), granted()
    assert (found.heartbeat_interval, found.msg_timeout) == (options.client_timeout / 2, options.msg_timeout)
    assert (found.output_buffer_timeout, found.output_buffer_size) == (options.output_buffer_timeout, 16 << 10)
    assert (found.sample_rate, found.tls, found.snappy, found.deflate, found.deflate_level) == (0, False, False, False, 6)


@pytest.mark.parametrize(("wished", "size", "timeout"), [
    (0, 16 << 10, 0.25), (64, 64, 0.25), (65_536, 65_536, 0.25), (-1, 1, 0),
])  # fmt: skip
def test_a_buffer_has_at_least_64_bytes_and_one_that_is_off_sends_each_at_once(wished: int, size: int, timeout: float) -> None:
    found = granted(output_buffer_size=wished)
    assert (found.output_buffer_size, found.output_buffer_timeout) == (size, timeout)


@pytest.mark.parametrize(("wished", "timeout"), [(0, 0.25), (25, 0.025), (30_000, 30.0), (-1, 0)])
def test_a_buffer_waits_for_so_long(wished: int, timeout: float) -> None:
    assert granted(output_buffer_timeout=wished).output_buffer_timeout == timeout


@pytest.mark.parametrize(
    ("wished", "timeout"), [(0, 60.0), (1, None), (999, None), (1000, 1.0), (900_000, 900.0), (900_001, None)]
)
def test_a_lease_is_within_bounds(wished: int, timeout: float | None) -> None:
    if timeout is None:
        with pytest.raises(ValueError, match=rf"msg timeout \({wished}\) is invalid"):
            granted(msg_timeout=wished)
    else:
        assert granted(msg_timeout=wished).msg_timeout == timeout


@pytest.mark.parametrize("wished", [1, 63, 65_537, -2])
def test_another_buffer_is_refused(wished: int) -> None:
    with pytest.raises(ValueError, match=rf"output buffer size \({wished}\) is invalid"):
        granted(output_buffer_size=wished)


@pytest.mark.parametrize("wished", [1, 24, 30_001, -2])
def test_another_wait_of_a_buffer_is_refused(wished: int) -> None:
    with pytest.raises(ValueError, match=rf"output buffer timeout \({wished}\) is invalid"):
        granted(output_buffer_timeout=wished)


def test_a_sample_is_of_0_to_99_percent() -> None:
    assert [granted(sample_rate=rate).sample_rate for rate in (0, 1, 99)] == [0, 1, 99]
    for rate in (-1, 100):
        with pytest.raises(ValueError, match=rf"sample rate \({rate}\) is invalid"):
            granted(sample_rate=rate)


@pytest.mark.parametrize(("wished", "level"), [(0, 6), (-1, 6), (1, 1), (3, 3), (6, 6), (9, 6)])
def test_compression_is_as_strong_as_is_asked_for_and_allowed(wished: int, level: int) -> None:
    options = Options()
    found = identify.default(options)
    identify.grant_upgrades(Wishes(deflate=True, deflate_level=wished), found, options)
    assert found.deflate_level == level
    identify.grant_upgrades(Wishes(deflate_level=3), found, options)
    assert (found.deflate, found.deflate_level) == (False, 6)


@pytest.mark.parametrize(("wished", "level"), [(0, 6), (-1, 6), (7, 7), (9, 9), (10, 9)])
def test_an_operator_may_allow_more_to_who_asks_for_it(wished: int, level: int) -> None:
    options = Options(max_deflate_level=9)
    found = identify.default(options)
    identify.grant_upgrades(Wishes(deflate=True, deflate_level=wished), found, options)
    assert found.deflate_level == level


def test_an_operator_may_allow_less() -> None:
    options = Options(snappy=False, deflate=False)
    found = identify.default(options)
    identify.grant_upgrades(Wishes(snappy=True, deflate=True, tls_v1=True), found, options)
    assert (found.snappy, found.deflate, found.tls) == (False, False, False)


def test_the_answer_has_what_the_client_got() -> None:
    options = Options()
    found = granted(msg_timeout=1500, output_buffer_timeout=25, output_buffer_size=100, sample_rate=7)
    told = msgspec.json.decode(identify.answer(found, options))
    assert {name: told[name] for name in ("msg_timeout", "output_buffer_timeout", "output_buffer_size", "sample_rate")} == {
        "msg_timeout": 1500, "output_buffer_timeout": 25, "output_buffer_size": 100, "sample_rate": 7,
    }  # fmt: skip
    assert (told["max_msg_timeout"], told["max_rdy_count"], told["auth_required"]) == (900_000, 2500, False)
    assert (told["tls_v1"], told["deflate"], told["deflate_level"], told["max_deflate_level"]) == (False, False, 6, 6)


def test_the_heartbeat_of_the_first_identify_counts() -> None:
    """A later one is answered, and has the rest of what it asks for."""
    started, answers = list[float](), list[bytes]()
    client: Any = SimpleNamespace(
        options=Options(), granted=identify.default(Options()), _identified=False, _answer=answers.append,
        connection=SimpleNamespace(start_heartbeat=started.append),
    )  # fmt: skip
    for interval in (1000, 2000):
        body = b'{"heartbeat_interval":%d,"sample_rate":%d}' % (interval, interval // 100)
        client._bodies = SimpleNamespace(body=lambda _, body=body: body)
        Client._identify(client, [b"IDENTIFY"])
    assert (started, answers, client.wishes.heartbeat_interval, client.granted.sample_rate) == ([1.0], [OK, OK], 2000, 20)
