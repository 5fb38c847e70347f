"""What of the transport does no I/O: URLs and names, POPs to send, a broker's clock, deliveries, heartbeats, judgements."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework.errors import BadName, BadSetting
from framework.transports.contract import Limits, NodeInfo
from framework.transports.rocketmq import administration, judgement, routes, urls
from framework.transports.rocketmq.administration import Broker
from framework.transports.rocketmq.clock import FAR, WINDOW, Born, BrokerClock
from framework.transports.rocketmq.delivery import APART, Delivery
from framework.transports.rocketmq.heartbeat import Subscription, heartbeat, java_hash
from framework.transports.rocketmq.pops import AT_ONCE, MOST, WORTH, Pops
from framework.transports.rocketmq.urls import Names
from framework.transports.rocketmq.wire.codes import Request
from framework.transports.rocketmq.wire.errors import JavaException
from framework.transports.rocketmq.wire.frames import Frame
from framework.transports.rocketmq.wire.handles import NORMAL, Handle

# --- URLs and names ----------------------------------------------------------------------------------------


def test_a_url_names_name_servers_and_options() -> None:
    found = urls.read(["rocketmq://AK:s%2Fk@a,b:9999?lease=30s&poll=500ms&tags=a||b&namespace=n", "rocketmq://AK:s%2Fk@[::1]"])
    assert found.name_servers == ("a:9876", "b:9999", "[::1]:9876")
    assert (found.options.lease, found.options.poll, found.options.tags, found.options.namespace) == (30.0, 0.5, "a||b", "n")
    assert (found.secrets.access_key, found.secrets.secret, found.options.tls) == ("AK", "s/k", False)
    assert urls.read(["rocketmq+tls://a"]).options.tls
    assert urls.read(["rocketmq://a?tls=true"]).options.tls


def test_a_star_for_tags_asks_for_all_as_it_does_everywhere_in_rocketmq() -> None:
    assert urls.read(["rocketmq://a?tags=*"]).options.tags == ""


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["rocketmq://me@host"], "access key:secret"),
        (["rocketmq://a:secret@host", "rocketmq://b:secret@host"], "another access key"),
        (["rocketmq://host?lease=soon"], "lease='soon'"),
        (["rocketmq://host?poll=31s"], "0.1s to 30s"),
        (["rocketmq://host?tags=a b"], "tags='a b'"),
        (["rocketmq://host?namespace=a.b"], "namespace='a.b'"),
        (["rocketmq://host?tls=yes"], "write true or false"),
        (["rocketmq://host?tls_key=k"], "without tls_cert"),
        (["rocketmq://host?leese=1s"], "did you mean lease"),
    ],
)
def test_a_wrong_url_is_refused_in_a_sentence_without_its_secret(given: list[str], words: str) -> None:
    with pytest.raises(BadSetting, match=words) as refused:
        urls.read(given)
    assert ":secret" not in str(refused.value).replace("access key:secret", "")


ours = st.from_regex(r"[.a-zA-Z0-9_-]{1,31}", fullmatch=True)


@given(ours, st.sampled_from(["", "shop"]))
def test_names_come_back_as_they_were_and_have_no_dot_there(name: str, namespace: str) -> None:
    names = Names(namespace)
    assert "." not in names.mapped(name)
    assert names.unmapped(names.mapped(name)) == name


def test_names_of_another_namespace_are_not_ours() -> None:
    assert Names("shop").unmapped("other%orders") is None
    assert Names("").unmapped("shop%orders") is None


@pytest.mark.parametrize(
    ("topic", "channels", "words"),
    [
        ("a#ephemeral", [], "keeps every topic"),
        ("a", ["b#ephemeral"], "keeps every channel"),
        ("." * 43, [], "this has 129 there"),
    ],
)
def test_names_that_rocketmq_cannot_have_are_refused(topic: str, channels: list[str], words: str) -> None:
    with pytest.raises(BadName, match=words):
        Names().accept(topic, channels)
    Names().accept("." * 42, ["a"])


# --- POPs --------------------------------------------------------------------------------------------------


def test_one_pop_waits_where_nothing_is_known_to_be_there() -> None:
    pops = Pops()
    assert pops.wanted(200) == [MOST]
    assert (pops.wanted(200), pops.outstanding, bool(pops)) == ([], MOST, True)


def test_others_go_beside_it_for_what_the_broker_has() -> None:
    pops = Pops()
    pops.rest = 80
    assert pops.wanted(200) == [MOST, MOST, MOST]
    assert Pops().wanted(5) == [5]


def test_for_a_few_messages_no_other_goes_beside_one() -> None:
    pops = Pops()
    pops.rest = 500
    assert pops.wanted(MOST + WORTH - 1) == [MOST]
    assert pops.wanted(MOST + WORTH) == [WORTH]


def test_what_was_answered_makes_room_again() -> None:
    pops = Pops()
    assert pops.wanted(3) == [3]
    pops.ended(3)
    assert (pops.outstanding, bool(pops), pops.wanted(0)) == (0, False, [])


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 500), st.booleans()), max_size=30))
def test_never_more_may_come_than_there_is_room_for(steps: list[tuple[int, int, bool]]) -> None:
    pops, under_way = Pops(), []
    for room, rest, ends in steps:
        if ends and under_way:
            pops.ended(under_way.pop(), rest)
        before = pops.outstanding
        asked = pops.wanted(room)
        under_way += asked
        assert pops.outstanding == sum(under_way) <= max(room, before)
        assert all(1 <= count <= MOST for count in asked)
        assert len(under_way) <= AT_ONCE


# --- clocks and deliveries ---------------------------------------------------------------------------------


def test_a_brokers_clock_is_read_by_what_arrived_fastest() -> None:
    clock = BrokerClock()
    assert clock.at(1_000_000, 50.0, 40.0) == 50.0
    assert clock.at(1_001_000, 50.9, 40.0) == pytest.approx(50.9)  # it arrived faster
    assert clock.at(1_002_000, 57.0, 40.0) == pytest.approx(51.9)  # and this five seconds later than it could


def test_a_brokers_clock_that_falls_behind_is_followed_and_one_that_is_set_forward_never_into_the_future() -> None:
    clock = BrokerClock()
    clock.at(1_000_000, 50.0, 0.0)
    assert clock.at(1_100_000, 50.5, 0.0) == 50.5
    clock = BrokerClock()
    clock.at(1_000_000, 50.0, 0.0)
    assert clock.at(991_000, 51.0, 0.0) == pytest.approx(41.0)  # believed to be long ago
    assert clock.at(1_000_000 + round(WINDOW * 1000), 60.0 + WINDOW, 0.0) == pytest.approx(50.0 + WINDOW)
    late = 60.0 + 2 * WINDOW
    clock.at(1_000_000 + round(2 * WINDOW * 1000), late, 0.0)
    assert clock.at(1_000_000 + round(3 * WINDOW * 1000), late + WINDOW, 0.0) == late + WINDOW


def test_a_brokers_clock_that_is_set_back_is_followed_at_once_because_nothing_happens_before_it_is_asked_for() -> None:
    clock = BrokerClock()
    assert clock.at(1_000_000, 50.0, 49.9) == 50.0
    assert clock.at(701_000, 51.0, 50.5) == 50.5  # 300 s back: this POP may have been parked meanwhile
    assert clock.at(702_500, 52.5, 52.0) == pytest.approx(52.5)
    assert clock.at(703_000, 58.0, 52.6) == pytest.approx(53.0)  # what arrives late is told again


@given(st.floats(0, 100), st.floats(0, 5), st.floats(0, 5), st.floats(-1e6, 1e6))
def test_what_happened_at_a_broker_is_not_before_it_was_asked_for_nor_after_it_was_heard_of(
    asked: float, way: float, back: float, behind: float
) -> None:
    clock = BrokerClock()
    clock.at(2_000_000_000, 0.0, 0.0)
    heard = asked + way + back
    found = clock.at(2_000_000_000 + round(1000 * (asked + way - behind)), heard, asked)
    assert asked <= found <= heard


def test_a_pop_that_must_say_when_it_was_made_says_it_by_its_brokers_clock() -> None:
    assert Born(told=False).of_pop(1000.0, 2.0) == (0, 2.0)
    born = Born(told=True)
    assert born.of_pop(1000.0, 2.0) == (FAR, 0.0)
    born.answered({"popTime": "4600000"}, "", 1000.0)  # an hour later there
    assert born.of_pop(1001.0, 2.0) == (4_601_000, 2.0)
    born.answered({"popTime": "0"}, "the broker[b] pop message is timeout too much", 1002.0)
    assert born.of_pop(1003.0, 2.0) == (FAR, 0.0)


def test_a_change_in_the_millisecond_of_the_one_before_is_to_be_made_again() -> None:
    one = Delivery(Handle(5, 1000, 60000, 0, NORMAL, "b", 0, 6), 7, 10.0, 10.0, 10.0, b"id")
    assert one.ready == 10.0 + APART
    assert not one.changed(1000, 3000, 1, 11.0, 11.1)
    assert (one.handle.start, one.handle.invisible, one.handle.revive_queue, one.ready) == (7, 3000, 1, 11.1 + APART)
    assert one.changed(1002, 3000, 1, 11.2, 11.3)
    assert (one.began, one.handle.pop_time) == (11.2, 1002)


# --- heartbeats, versions, judgements ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "found"), [("", 0), ("a", 97), ("TagA", 2598919), ("hello world", 1794106052), ("grüße", 98712572)]
)
def test_a_tag_has_the_hash_that_java_gives_it(text: str, found: int) -> None:
    total = 0
    for unit in text.encode("utf-16-be").hex(" ", 2).split():
        total = (31 * total + int(unit, 16)) % 2**32
    assert java_hash(text) == (total - 2**32 if total >= 2**31 else total)
    if text.isascii():
        assert java_hash(text) == found


def test_a_heartbeat_says_who_reads_what() -> None:
    body = heartbeat("me", [Subscription("t", "g", "a||b"), Subscription("t2", "g"), Subscription("t", "g", "a||b")]).decode()
    assert body.count('"groupName":"g"') == 1
    assert body.count('"topic":"t"') == body.count('"topic":"t2"') == 1
    assert '"tagsSet":["a","b"],"codeSet":[97,98]' in body


@pytest.mark.parametrize(
    ("number", "name"), [(479, "5.3.3"), (413, "5.0.0"), (475, "5.3.1"), (401, "4.9.4"), (411, "4.9.9"), (393, "4.9.0")]
)
def test_versions_have_names(number: int, name: str) -> None:
    assert administration.version_name(number) == name
    assert administration.version_name(121).startswith("before 4.9")
    assert administration.version_name(391) == "before 4.9 (391)"
    assert administration.version_name(478) == "a snapshot (478)"


def info() -> NodeInfo:
    return NodeInfo("broker-a", "RocketMQ", Limits(57.0, 60.0, 10))


def judged_by_pop(found: NodeInfo, broker: Broker, missing: tuple[str, str] | None = None) -> NodeInfo:
    return judgement.judged(found, broker, missing, pulls=False)


def test_a_broker_without_pop_or_timers_cannot_serve_a_handler() -> None:
    assert "which has no POP" in judged_by_pop(info(), Broker("4.9.4", {})).obstacles[0]
    assert "timerWheelEnable=false" in judged_by_pop(info(), Broker("5.3.3", {"timerWheelEnable": "false"})).obstacles[0]
    assert judged_by_pop(info(), Broker("5.3.3", {}), ("orders", "orders")).obstacles == ()
    closed = Broker("5.3.3", {"autoCreateTopicEnable": "false"})
    (words,) = judged_by_pop(info(), closed, ("orders.new", "orders%2Enew")).obstacles
    assert words.startswith("broker-a has no topic for orders.new and makes none")
    assert words.endswith("mqadmin updateTopic -t orders%2Enew"), "with a dot it refuses it"
    assert judged_by_pop(info(), closed).obstacles == ()


def test_a_broker_that_is_read_by_pull_needs_neither_and_says_what_that_means() -> None:
    old = Broker("4.9.4", {"timerWheelEnable": "false", "popConsumerKVServiceEnable": "false"})
    judged = judgement.judged(info(), old, None, pulls=True)
    assert judged.obstacles == ()
    assert ["read by PULL" in note for note in judged.notes] == [True]


def test_a_broker_that_is_late_by_its_settings_says_so() -> None:
    assert "2 to 5 s late" in judged_by_pop(info(), Broker("5.3.3", {"popConsumerKVServiceEnable": "false"}), "").notes[0]
    assert judged_by_pop(info(), Broker("5.3.3", {"popConsumerKVServiceEnable": "true"}), "").notes == ()


@pytest.mark.parametrize(
    "topic", ["%RETRY%g_t", "%DLQ%g", "rmq_sys_wheel_timer", "RMQ_SYS_TRACE_TOPIC", "DefaultCluster_REPLY_TOPIC", "TBW102"]
)
def test_topics_of_rocketmq_are_not_an_apps(topic: str) -> None:
    assert urls.is_own(topic)
    assert not urls.is_own("orders")
    with pytest.raises(BadName, match="RocketMQ keeps something of its own there"):
        Names().accept(topic, [])
    Names("shop").accept("TBW102", [])


def test_javas_numbers_in_place_of_names_are_quoted_outside_of_texts() -> None:
    assert routes.standard(b'{"a":{0:"x{1:",-2:"y"},"b":[1,2]}') == b'{"a":{"0":"x{1:","-2":"y"},"b":[1,2]}'
    assert routes.standard(b"") == b"{}"


def test_the_group_of_a_channel_that_is_read_by_pull_is_of_one_topic_and_not_too_long() -> None:
    names = Names("shop")
    assert names.pull_group("orders.new", "billing.eu") == "shop%orders%2Enew|billing%2Eeu"
    assert names.channel_of("orders.new", "shop%orders%2Enew|billing%2Eeu") == "billing.eu"
    assert names.channel_of("orders.new", "shop%billing") == "billing"
    assert names.channel_of("orders", "shop%orders%2Enew|billing") is None
    with pytest.raises(BadName, match="of which RocketMQ takes 120 characters"):
        names.accept_pull("a" * 64, ["b" * 64])


def test_who_pulls_says_so_in_its_heartbeat_and_reads_what_was_sent_back() -> None:
    said = json.loads(heartbeat("me", [Subscription("orders", "orders|billing", "a||b", pulls=True)]))
    assert said["producerDataSet"] == [{"groupName": "orders|billing"}]
    (consumer,) = said["consumerDataSet"]
    assert consumer["consumeType"] == "CONSUME_PASSIVELY"
    read = {data["topic"]: data["subString"] for data in consumer["subscriptionDataSet"]}
    assert read == {"orders": "a||b", "%RETRY%orders|billing": "*"}


def test_who_lets_go_of_its_queues_says_so_until_it_has_none() -> None:
    said = json.loads(heartbeat("me", [], ["orders|billing"]))
    assert (said["producerDataSet"], said["consumerDataSet"]) == ([{"groupName": "orders|billing"}], [])


class Starting:
    """As much of a session as is asked for counts, with a broker that has just begun."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def ask(self, code: int, fields: dict[str, str]) -> Frame:
        self.asked.append(code)
        if code == Request.GET_BROKER_RUNTIME_INFO:
            if len(self.asked) < 3:
                raise JavaException("java.util.NoSuchElementException, java.base/java.util.LinkedList.getLast")
            return Frame(0, body=b'{"table":{"dispatchBehindBytes":"0"}}')
        return Frame(0)


def test_what_is_unread_is_counted_also_by_a_broker_that_has_just_begun() -> None:
    session = Starting()
    assert administration.unread(session, ["orders"], "billing") == 0  # type: ignore[arg-type]
    assert session.asked == [Request.GET_BROKER_RUNTIME_INFO] * 3 + [Request.GET_TOPIC_STATS_INFO]
