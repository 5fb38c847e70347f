"""What a client is granted, without a server: nsqd's bounds and words."""

from __future__ import annotations

from typing import Any

import pytest

from framework.nsqd import identify
from framework.nsqd.identify import Wishes
from framework.nsqd.options import Options


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
