"""A broker URL finds its transport by its scheme, in the framework or in whatever package brings one."""

from __future__ import annotations

from pathlib import Path

import pytest

from framework.errors import BadSetting
from framework.transports import open_transports


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that brings transports, as pip would have left it."""
    info = tmp_path / "thing_broker-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: thing-broker\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[workers.transports]\nthing = thing_broker:Thing\nthing+tls = thing_broker:Thing\nbroken = thing_broker:nobody\n"
    )
    (tmp_path / "thing_broker.py").write_text("class Thing:\n    def __init__(self, urls):\n        self.urls = urls\n")
    monkeypatch.syspath_prepend(tmp_path)


def test_a_package_brings_a_transport_by_an_entry_point(installed: None) -> None:
    thing, memory = open_transports(["thing://a", "memory://", "thing+tls://b"])
    assert (type(thing).__name__, vars(thing)) == ("Thing", {"urls": ["thing://a", "thing+tls://b"]})
    assert type(memory).__name__ == "MemoryTransport"


def test_a_scheme_that_nobody_brings_is_refused_with_those_that_there_are(installed: None) -> None:
    with pytest.raises(BadSetting, match=r"'amqp://host': the scheme must be one of nsq://, .*memory://, broken://, thing://"):
        open_transports(["amqp://host"])


def test_a_package_that_cannot_be_imported_is_named(installed: None) -> None:
    with pytest.raises(
        BadSetting, match=r"'broken://x': its transport thing_broker:nobody \(of thing-broker\) cannot be imported"
    ):
        open_transports(["broken://x"])


@pytest.mark.parametrize("url", ["amqp://bob:secret@host", "amqp://bob:sec/ret@host?a=b", "broken://secret@host"])
def test_a_url_that_is_refused_for_its_scheme_is_shown_without_its_password(installed: None, url: str) -> None:
    with pytest.raises(BadSetting, match="://…@host") as refused:
        open_transports([url])
    assert not any(part in str(refused.value) for part in ("secret", "sec/ret", "bob"))


@pytest.mark.parametrize(
    "url", ["nsq://{}", "nsq+lookupd://{}", "beanstalkd://{}", "nats://{}", "nats-route://{}", "rocketmq://{}"]
)
def test_a_host_whose_name_no_resolver_takes_is_refused(url: str) -> None:
    """Its label is too long for IDNA, which says so by a UnicodeError: a traceback at each dial."""
    with pytest.raises(BadSetting, match=r"x{64}") as refused:
        open_transports([url.format("x" * 64)])
    assert "\n" not in str(refused.value)
