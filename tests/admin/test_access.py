"""Who may ask for what, each condition alone: the Host, the Origin, where a browser says that it comes from, and the token."""

from __future__ import annotations

import pytest

from framework.admin.access import OPEN, Access, access_for
from framework.admin.requests import Refused, Request
from framework.errors import BadSetting

LINK = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
TOKEN = {"authorization": "Bearer a-token"}


def status(access: Access, path: str = "/api/snapshot", *, asset: bool = False, **headers: str) -> int:
    """200, or what it is refused with."""
    try:
        access.check(
            Request("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()}), asset=asset
        )
    except Refused as refused:
        return refused.status
    return 200


@pytest.mark.parametrize("local", [True, False])
@pytest.mark.parametrize(
    ("host", "is_local"),
    [
        ("localhost", True), ("localhost:9464", True), ("127.0.0.1:1", True), ("127.9.9.9", True), ("[::1]:9464", True),
        ("", True),
        ("rebound.example", False), ("localhost.rebound.example", False), ("127.0.0.1.rebound.example:80", False),
        ("10.0.0.1:9464", False), ("localhost:", False),
    ],
)  # fmt: skip
def test_on_loopback_only_its_own_names_are_served(local: bool, host: str, is_local: bool) -> None:
    assert status(Access(local), host=host) == (200 if is_local or not local else 403)


@pytest.mark.parametrize(
    ("origin", "may"),
    [
        ("http://localhost:9464", 200), ("https://localhost:9464", 200), ("http://localhost:9465", 403),
        ("http://evil.example", 403), ("null", 403),
    ],
)  # fmt: skip
def test_only_a_page_of_the_same_host_may_ask(origin: str, may: int) -> None:
    assert status(Access(local=True), host="localhost:9464", origin=origin) == may


@pytest.mark.parametrize("asset", [True, False])
@pytest.mark.parametrize("site", ["same-origin", "none", "same-site", "cross-site"])
def test_what_a_browser_asks_for_another_site_is_refused_but_for_a_link_to_the_page(site: str, asset: bool) -> None:
    access = Access(local=True)
    own = site in ("same-origin", "none")
    assert status(access, asset=asset, sec_fetch_site=site) == (200 if own else 403)
    linked = {**LINK, "sec-fetch-site": site}
    assert status(access, asset=asset, **linked) == (200 if own or asset else 403)
    for name, value in (("sec-fetch-mode", "no-cors"), ("sec-fetch-dest", "iframe")):
        assert status(access, asset=asset, **{**linked, name: value}) == (200 if own else 403), "in the page of another"


@pytest.mark.parametrize(
    ("given", "knows"),
    [
        ("Bearer a-token", True), ("bearer a-token", True), ("Bearer  a-token ", True), ("Bearer other", False),
        ("Bearer ", False), ("Basic a-token", False), ("a-token", False), ("", False), ("Bearer a-tokeñ", False),
    ],
)  # fmt: skip
def test_all_but_probes_and_the_page_need_the_token_where_there_is_one(given: str, knows: bool) -> None:
    access = Access(local=True, token="a-token")
    assert status(access, authorization=given) == (200 if knows else 401)
    assert status(access, asset=True, authorization=given) == 200
    assert {status(access, path, authorization=given) for path in OPEN} == {200}
    assert status(Access(local=True), authorization=given) == 200


def test_nothing_is_changed_where_it_is_only_read_nor_by_what_any_page_can_send() -> None:
    for access, kind, refused in (
        (Access(local=True, read_only=True), "application/json", 403),
        (Access(local=True), "text/plain", 415),
        (Access(local=True), "", 415),
        (Access(local=True), "application/json;charset=utf-8", 0),
    ):
        request = Request("POST", "/api/actions", headers={"content-type": kind} if kind else {})
        if not refused:
            access.check_change(request)
            continue
        with pytest.raises(Refused) as caught:
            access.check_change(request)
        assert caught.value.status == refused


@pytest.mark.parametrize("loopback", [True, False])
@pytest.mark.parametrize("token", ["a-token", None])
def test_beyond_loopback_a_token_must_be_set(loopback: bool, token: str | None) -> None:
    if not (loopback or token):
        with pytest.raises(BadSetting, match="can be reached from other machines"):
            access_for("0.0.0.0:1", loopback=loopback, token=token, read_only=True)
        return
    assert access_for("0.0.0.0:1", loopback=loopback, token=token, read_only=True) == Access(loopback, token or "", True)
