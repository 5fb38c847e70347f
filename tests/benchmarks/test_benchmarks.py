"""The benchmarks measure what they say: our own client is run for a moment, and nsqd agrees that all ended well."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from framework.testing import servers

sys.path.append(str(Path(__file__).parents[2]))  # they are part of the project, not of the package
from benchmarks import consume, crowd, idle, latency, measure, middleware, publish

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("nsqd")]  # the fixture skips where there is no real nsqd


def test_consuming_is_measured_and_ends_clean():
    result = consume.run("ours", 100_000)
    assert result.fault == ""
    assert result.rate > 1000
    assert 0 < result.client_cpu < 1000


def test_several_connections_and_bodies_of_another_size_are_measured(capsys):
    consume.main(["--clients", "ours", "--connections", "3", "--body", "20000", "--rounds", "1", "--scale", "0.01"])
    title, _, *lines = capsys.readouterr().out.splitlines()
    assert title == "consume, 20000 bytes, 1 rounds, medians"
    assert len(lines) == 1  # a second one would say what did not end clean
    assert lines[0].split()[:2] == ["ours", "x3"]


@pytest.mark.parametrize("client", ["ours", "bare-loop"])
def test_latency_is_measured(client, capsys):
    latency.main(["--clients", client, "--rates", "200", "--samples", "50"])
    name, *times = capsys.readouterr().out.splitlines()[-1].split()
    assert name == client
    assert 0 < float(times[0]) <= float(times[1]) <= float(times[2])


def test_the_waits_of_nsqds_that_take_turns_are_measured(monkeypatch):
    monkeypatch.setattr(crowd, "INTERVAL", 0.2)
    waits = crowd.run(3, seconds=2.0)
    assert len(waits) == 27
    assert min(waits) > 0


def test_the_cost_of_middleware_is_measured(capsys):
    middleware.main(["--rounds", "1", "--messages", "1000"])
    _, *lines = capsys.readouterr().out.splitlines()
    costs = {line.rsplit(maxsplit=1)[0].strip(): float(line.split()[-1]) for line in lines}
    assert costs.keys() == middleware.CASES.keys()
    assert min(costs.values()) > 0


@pytest.mark.parametrize("wrong", [["--connections", "2"], ["--clients", "ours", "--connections", "0"], ["--body", "0"]])
def test_options_that_cannot_be_measured_are_refused(wrong):
    with pytest.raises(SystemExit) as refused:
        consume.main(wrong)
    assert refused.value.code == 2


def test_a_run_that_does_not_end_clean_says_what_is_left(nsqd: servers.Server):
    measure.fill(nsqd, 10)
    assert consume._fault(nsqd, 10, patience=0.1) == "depth 10, not finished 10"


@pytest.mark.parametrize("job", publish.JOBS)
def test_publishing_is_measured(job, monkeypatch):
    monkeypatch.setattr(publish, "WINDOW", 0.3)
    monkeypatch.setattr(publish, "WARM_UP", 500)
    assert publish.run("ours", job).rate > 100


def test_the_table_compares_medians():
    def results(*rates: float) -> list[measure.Result]:
        return [measure.Result(rate, 2.0, 3.0) for rate in rates]

    text = measure.table(
        "title", {"ours": results(3000, 1000, 2000), "peer": [*results(500, 500), measure.Result(4000, 2, 3, "depth 7")]}
    )
    assert text.splitlines()[2].split() == ["ours", "2.0", "(1.0,", "3.0)", "1.00x", "2.00", "3.00"]
    assert text.splitlines()[3].split() == ["peer", "0.5", "(0.5,", "4.0)", "4.00x", "2.00", "3.00"]
    assert text.splitlines()[4].strip() == "peer: depth 7"


def test_handlers_without_messages_are_measured(capsys):
    idle.main(["--handlers", "20", "--settle", "0", "--seconds", "0.5"])
    handlers, subscribed, start_cpu, cpu, rss, stopped = map(float, capsys.readouterr().out.splitlines()[-1].split())
    assert handlers == 20
    assert subscribed > 0 < stopped
    assert start_cpu > 0
    assert 0 <= cpu < 100
    assert rss > 10
