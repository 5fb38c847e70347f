"""Broker URLs of beanstalkd: what they mean, which tubes they make of topics, and the sentence for one that means nothing."""

from __future__ import annotations

import pytest

from framework.errors import BadName, BadSetting, WrongUse
from framework.transports import open_transports
from framework.transports.beanstalkd.urls import Options, read, tube_of, tubes_of


def test_addresses_and_options():
    assert read(["beanstalkd://a,b:1,[::1]", "beanstalkd://b:1"]).nodes == ("a:11300", "b:1", "[::1]:11300")
    assert read(["beanstalkd://a"]).options == Options(60, 65535, {})
    given = read(["beanstalkd://a?ttr=2m&max_job_size=1000000&fanout=o/x,o/y,p/z,o/x"]).options
    assert given == Options(120, 1_000_000, {"o": ("x", "y"), "p": ("z",)})


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("beanstalkd://user:secret@host", "beanstalkd has no user and password; leave out what is before the @"),
        ("beanstalkd://host/orders", "topics are named by handlers"),
        ("beanstalkd://host?ttl=1s", "no option 'ttl'; did you mean ttr"),
        ("beanstalkd://host?heartbeat=1s", "there is no option 'heartbeat'"),
        ("beanstalkd://host?ttr=500ms", "whole seconds from 1s"),
        ("beanstalkd://host?ttr=1500ms", "whole seconds from 1s"),
        ("beanstalkd://host?ttr=60", "such as ttr=60s"),
        ("beanstalkd://host?ttr=9999999h", "whole seconds"),
        ("beanstalkd://host?max_job_size=64k", "number of bytes"),
        ("beanstalkd://host?max_job_size=2000000000", "goes up to 1073741824"),
        ("beanstalkd://host?fanout=orders", "'orders' is no topic/channel"),
        ("beanstalkd://host?fanout=orders/a,", "'' is no topic/channel"),
        ("beanstalkd://host?fanout=orders/a/b", "is no topic/channel"),
        ("beanstalkd://host:0", "port from 1 to 65535, such as :11300"),
        ("beanstalkd://", "is not an address; write host:11300"),
    ],
)
def test_a_url_that_cannot_be_used_is_refused_by_one_sentence(url, words):
    with pytest.raises(BadSetting, match=words) as caught:
        open_transports([url])
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_fanout_to_a_tube_that_is_none_is_refused():
    with pytest.raises(BadName, match="'-orders/a' is no name for beanstalkd"):
        open_transports(["beanstalkd://host?fanout=-orders/a"])


def test_a_topic_is_a_tube_and_with_fanout_one_for_each_channel():
    options = read(["beanstalkd://a?fanout=o/x,o/y"]).options
    assert (tube_of("o", "x", options), tube_of("p", "x", options)) == ("o/x", "p")
    assert (tubes_of("o", options), tubes_of("p", options)) == (["o/x", "o/y"], ["p"])


def transport(options: str = ""):
    return open_transports([f"beanstalkd://host{options}"])[0]


def test_what_beanstalkd_carries_is_accepted():
    transport().accept("orders", ["billing"])
    transport().accept("orders.billing.dead", [])
    transport("?fanout=orders/billing,orders/shipping").accept("orders", ["billing", "shipping"])


def test_several_channels_are_refused_with_what_publishes_to_both():
    with pytest.raises(WrongUse, match=r"fanout=orders/billing,orders/shipping in the broker URL") as caught:
        transport().accept("orders", ["shipping", "billing"])
    assert "\n" not in str(caught.value)
    transport("?fanout=orders/billing,orders/shipping").accept("orders", ["shipping", "billing"])  # as it says


def test_a_channel_that_gets_no_copy_is_refused():
    with pytest.raises(WrongUse, match=r"makes no copy for it; add orders/audit"):
        transport("?fanout=orders/billing").accept("orders", ["billing", "audit"])


@pytest.mark.parametrize("topic", ["orders#ephemeral", "-orders"])
def test_topics_that_are_no_tubes_are_refused(topic):
    with pytest.raises(BadName, match="is no name for beanstalkd"):
        transport().accept(topic, ["billing"])


def test_options_go_as_far_as_beanstalkd_does():
    for given, options in [
        ("ttr=1s", Options(ttr=1)),
        ("ttr=4294967295s", Options(ttr=4_294_967_295)),
        ("max_job_size=1", Options(max_job_size=1)),
        ("max_job_size=1073741824", Options(max_job_size=1_073_741_824)),
        ("headers=true", Options(headers=True)),
        ("headers=false", Options(headers=False)),
    ]:
        assert read([f"beanstalkd://a?{given}"]).options == options
    for beyond in ("ttr=4294967296s", "ttr=0s", "max_job_size=1073741825", "headers=yes", "headers="):
        with pytest.raises(BadSetting, match=beyond.partition("=")[0]):
            read([f"beanstalkd://a?{beyond}"])
