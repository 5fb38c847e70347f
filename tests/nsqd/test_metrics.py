"""What /metrics says of an nsqd, its topics and their channels, line by line. On paper."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

from framework.nsqd import metrics

TOPIC = {
    "depth": 1,
    "unfinished": 2,
    "message_count": 3,
    "message_bytes": 4,
    "refused_count": 5,
    "expired_count": 6,
    "paused": True,
}
CHANNEL = {
    "depth": 11, "in_flight_count": 12, "deferred": [0] * 13, "message_count": 14, "requeue_count": 15, "timeout_count": 16,
    "expired_count": 17, "clients": [0] * 18, "paused": False,
}  # fmt: skip


def broker(**channels: list[str]) -> Any:
    """Topics with channels."""
    topics = {
        topic: SimpleNamespace(name=topic, **TOPIC, channels={one: SimpleNamespace(name=one, **CHANNEL) for one in names})
        for topic, names in channels.items()
    }
    return SimpleNamespace(topics=topics, wrong="", start_time=1_700_000_000.9, log_size=lambda: (3, 4096))


def values(text: str) -> dict[str, str]:
    return dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))


def test_each_number_is_under_its_name_with_its_topic_and_channel() -> None:
    found = values(metrics.text(broker(t=["c"]), 7))
    of_nsqd = {"up": "1", "start_time_seconds": "1700000000", "clients": "7", "log_segments": "3", "log_bytes": "4096"}
    of_topic = {
        "depth": "1", "unfinished": "2", "messages_total": "3", "bytes_total": "4", "refused_total": "5", "expired_total": "6",
        "paused": "1",
    }  # fmt: skip
    of_channel = {
        "depth": "11", "in_flight": "12", "deferred": "13", "messages_total": "14", "requeued_total": "15",
        "timed_out_total": "16", "expired_total": "17", "clients": "18", "paused": "0",
    }  # fmt: skip
    assert found == {
        **{f"nsqd_{name}": value for name, value in of_nsqd.items()},
        **{f'nsqd_topic_{name}{{topic="t"}}': value for name, value in of_topic.items()},
        **{f'nsqd_channel_{name}{{topic="t",channel="c"}}': value for name, value in of_channel.items()},
    }


def test_an_nsqd_that_is_not_well_is_not_up() -> None:
    unwell = broker()
    unwell.wrong = "DISK: it has not answered for 12 s"
    assert values(metrics.text(unwell, 0))["nsqd_up"] == "0"


def test_topics_and_channels_stand_by_name_below_what_they_mean() -> None:
    lines = metrics.text(broker(b=["d", "c"], a=["e"]), 0).splitlines()
    at = lines.index("# HELP nsqd_channel_depth Messages that could be delivered now.")
    assert lines[at + 1 : at + 5] == [
        "# TYPE nsqd_channel_depth gauge", 'nsqd_channel_depth{topic="a",channel="e"} 11',
        'nsqd_channel_depth{topic="b",channel="c"} 11', 'nsqd_channel_depth{topic="b",channel="d"} 11',
    ]  # fmt: skip
    named = re.findall(r"^# TYPE (\S+) (\S+)$", "\n".join(lines), re.M)
    assert len(named) == len(dict(named)) == 5 + 7 + 9
    assert all(kind == ("counter" if name.endswith("_total") else "gauge") for name, kind in named)
