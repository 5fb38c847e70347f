"""Every block of README.md and docs is run as it stands there; lines are short, links lead somewhere, and readers are named."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from framework.engine import guardian
from framework.handler import _registry
from framework.message import Message
from framework.middleware.dead_letter import letters
from framework.testing import servers
from framework.testing.fixtures import memory_broker, runner
from framework.testing.rocketmq import RocketMQ
from framework.testing.servers import ROOT, Server, free_port, running
from tests.house.pages import LANGUAGES, PAGES, anchors, blocks, links, name_of
from tests.house.story import Story

LONGEST = 120
_OTHERS = ("CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/README.md", "data/NOTICE.md", "framework/nsqd/store/INVARIANTS.md")
OTHERS = [ROOT / name for name in _OTHERS]
BLOCKS = [block for page in PAGES for block in blocks(page)]
STORIES = {page: [block for block in blocks(page) if not block.not_run and not block.run_by] for page in PAGES}

NOT_RUN: Counter[str] = Counter()
"""How many blocks of each page nobody runs. One more is one too many."""

SHOP = """
from framework import handler

@handler("orders", "billing")
def bill(order: dict) -> None: ...
"""


# -- what can be read


@pytest.mark.parametrize("page", [*PAGES, *OTHERS], ids=name_of)
def test_no_line_is_longer_than_an_editor_is_wide(page: Path) -> None:
    lines = page.read_text().splitlines()
    assert [f"line {n}: {len(line)}" for n, line in enumerate(lines, 1) if len(line) > LONGEST] == []


@pytest.mark.parametrize("page", [page for page in PAGES if page != ROOT / "README.md"], ids=name_of)
def test_a_page_says_at_its_top_who_it_is_for(page: Path) -> None:
    assert re.match(r"# .+\n\n\*For .+\.\*\n", page.read_text())


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    for link in links(page):
        path, _, anchor = link.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), link
        assert not anchor or anchor in anchors(there), link


def test_every_block_says_what_it_is_written_in() -> None:
    assert [str(block) for block in BLOCKS if block.language not in LANGUAGES] == []


def test_a_block_that_nobody_runs_is_counted() -> None:
    assert Counter(name_of(block.page) for block in BLOCKS if block.not_run) == NOT_RUN


def test_no_name_in_the_code_of_a_page_is_undefined(tmp_path: Path) -> None:
    """The body of a handler is not run where it is only declared."""
    for page in PAGES:
        texts = [block.text for block in blocks(page) if block.language == "python"]
        (tmp_path / f"{page.stem}.py").write_text("\n".join(texts))
    ruff = [Path(sys.executable).parent / "ruff", "check", "--isolated", "--no-cache", "--select=F821,E9"]
    done = subprocess.run([*ruff, "--config=builtins=['spark']", tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


LETS_IN = re.compile(r"\b(?:lets?|letting) (?:\w+ ){0,2}in\b(?! (?:a|one|two|order|turn|its|the)\b)|\btakes? us in\b")


def test_a_broker_accepts_or_rejects_and_lets_nobody_in() -> None:
    """One word for one thing, in the pages and in what the code says."""
    files = [*PAGES, *(ROOT / "framework").rglob("*.py")]
    lines = [(file, line.strip()) for file in files for line in file.read_text().splitlines()]
    assert [f"{name_of(file)}: {line}" for file, line in lines if LETS_IN.search(line)] == []


# -- what is run


@pytest.fixture(scope="module")
def places() -> Iterator[dict[str, str]]:
    """The servers that pages name, each by what it is here: our own, and beanstalkd where there is one."""
    with ExitStack() as stack:
        lookupd = stack.enter_context(running(servers.own_nsqlookupd()))
        yield {
            "lookup1:4161": lookupd.http_address,
            "lookup2:4161": lookupd.http_address,
            "127.0.0.1:4161": lookupd.http_address,
            "127.0.0.1:4160": lookupd.address,
        }


@pytest.fixture
def nsqd_here(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Starts an nsqd of ours, its HTTP on the next port, as where it has its own."""
    with ExitStack() as stack:

        def start(*flags: str) -> Server:
            tcp = free_port(2)
            addresses = [f"--tcp-address=127.0.0.1:{tcp}", f"--http-address=127.0.0.1:{tcp + 1}"]
            made = servers.own_nsqd(tmp_path / "data", *addresses, *flags)
            made.tcp_port, made.http_port = tcp, tcp + 1
            return stack.enter_context(running(made))

        yield start


@pytest.fixture
def story(tmp_path: Path, places: dict[str, str]) -> Iterator[Story]:
    """A project with one handler in a fresh folder. What it declares in this process is forgotten afterwards."""
    folder = tmp_path / "project"
    (folder / "shop").mkdir(parents=True)
    (folder / "shop" / "handlers.py").write_text(SHOP)
    tcp, http = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    here = {
        **places,
        "127.0.0.1:4150": tcp,
        "127.0.0.1:4151": http,
        "/srv/shop/.venv/bin": str(Path(sys.executable).parent),
        "/srv/shop": str(folder),
        "/data/": f"{tmp_path}/data/",
    }
    variables = {"WORKERS_NSQD_TCP_ADDRESS": tcp, "WORKERS_NSQD_HTTP_ADDRESS": http}
    module = ModuleType("page")
    declared = dict(_registry.entries)
    sys.modules["page"] = module
    made = Story(folder, here, variables, module)
    try:
        yield made
    finally:
        made.kill()
        del sys.modules["page"]
        _registry.entries.clear()
        _registry.entries.update(declared)


def play(story: Story, page: str) -> None:
    for block in STORIES[ROOT / page]:
        try:
            story.play(block)
        except Exception as error:
            error.add_note(f"in {block}")
            raise
    story.end()


_ALONE = ("beanstalkd", "failure", "how-to", "nats", "nats-route", "nsq", "nsqd", "rocketmq", "spark", "tutorial")
ALONE = {f"docs/{name}.md" for name in _ALONE}
"""Pages with a test of their own below."""


@pytest.mark.parametrize("page", [name_of(page) for page in PAGES if STORIES[page] and name_of(page) not in ALONE])
def test_a_page_does_what_it_says(story: Story, page: str) -> None:
    play(story, page)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_tutorial(story: Story) -> None:
    play(story, "docs/tutorial.md")


def use(story: Story, nsqd: Server) -> None:
    """The nsqd of the page's publishers and workers."""
    story.places = {**story.places, "127.0.0.1:4150": nsqd.address, "127.0.0.1:4151": nsqd.http_address}
    story.variables = {**story.variables, "BROKER_URL": f"nsq://{nsqd.address}"}


def make_channel(nsqd: Server, name: str = "billing") -> None:
    nsqd.http("/topic/create?topic=orders", b"")
    nsqd.http(f"/channel/create?topic=orders&channel={name}", b"")


def test_the_page_about_nsq(story: Story, nsqd_here: Callable[..., Server], capsys: pytest.CaptureFixture[str]) -> None:
    nsqd = nsqd_here(f"--lookupd-tcp-address={story.places['127.0.0.1:4160']}")
    make_channel(nsqd)
    use(story, nsqd)
    play(story, "docs/nsq.md")
    assert "orders 0 ['billing']" in capsys.readouterr().out
    assert nsqd.channel_stats("orders", "billing")["paused"]


def dead_letter(number: int) -> bytes:
    origin = SimpleNamespace(topic="orders", channel="billing", node="a:4150")
    message = Message(b"%016x" % number, 1_700_000_000_000_000_000, 4, b"body %d" % number, origin)
    return next(letters(message, "HandlerTimeout: over 60 s", ""))


@pytest.mark.slow
def test_the_page_about_failure(story: Story, nsqd_here: Callable[..., Server]) -> None:
    nsqd = nsqd_here()
    use(story, nsqd)
    make_channel(nsqd)
    nsqd.http("/pub?topic=orders.billing.dead", dead_letter(0x0C4A7E5D1B2F3A60))
    play(story, "docs/failure.md")
    assert nsqd.channel_stats("orders", "billing")["depth"] == 1


def test_the_page_of_short_answers(story: Story, nsqd_here: Callable[..., Server], places: dict[str, str]) -> None:
    nsqd = nsqd_here(f"--lookupd-tcp-address={places['127.0.0.1:4160']}")
    make_channel(nsqd)
    nsqd.http("/topic/create?topic=orders.billing.dead", b"")
    use(story, nsqd)
    with memory_broker() as broker, publishing(nsqd), runner(broker) as worker:
        play(story, "docs/how-to.md")
        page = vars(story.module)
        broker.publish("mails", {"to": "one"})
        broker.publish("mails", {"to": "two"})
        broker.publish("readings", "none")
        ends = {name: worker.run(page[name]) for name in ("send", "bill", "store")}
    assert (ends["send"].finished, ends["send"].requeued) == (2, 1)
    assert ends["bill"].finished == 1
    assert (ends["store"].finished, ends["store"].dead) == (1002, 1)
    assert page["database"].execute("SELECT count(*) FROM readings").fetchone() == (1002,)


@contextmanager
def publishing(nsqd: Server) -> Iterator[None]:
    """Messages of ``orders`` come every moment."""
    over = threading.Event()

    def publish() -> None:
        while not over.wait(0.1):
            nsqd.http("/pub?topic=orders", b"{}")

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_the_page_about_the_embedded_nsqd(story: Story, nsqd_here: Callable[..., Server]) -> None:
    with running(servers.own_nsqd(story.folder / "var" / "nsqd")) as embedded:
        make_channel(embedded)
        embedded.http("/mpub?topic=orders", b"\n".join(b"order %d" % n for n in range(90)))
        embedded.http("/mpub?topic=invoices", b"one\ntwo")
        embedded.stop()
    moved_to = nsqd_here()
    story.places = {**story.places, "10.0.0.5:4150": moved_to.address}
    play(story, "docs/nsqd.md")
    assert moved_to.channel_stats("orders", "billing")["depth"] == 90


def test_the_page_about_beanstalkd(story: Story, start_beanstalkd: Callable[..., Server]) -> None:
    one, two = start_beanstalkd(), start_beanstalkd()
    story.places = {**story.places, "queue1,queue2:11300": f"{one.address},{two.address}", "queue1:11300": one.address}
    story.places["queue1?"] = f"{one.address}?"
    play(story, "docs/beanstalkd.md")


def test_the_page_about_nats(story: Story, start_nats: Callable[..., Server]) -> None:
    story.places = {**story.places, "queue1,queue2:4222": start_nats().address}
    play(story, "docs/nats.md")


@pytest.mark.real
@pytest.mark.slow
def test_the_page_about_rocketmq(story: Story, rocketmq: RocketMQ) -> None:
    story.places = {**story.places, "names1,names2:9876": rocketmq.address}
    play(story, "docs/rocketmq.md")


@pytest.mark.real
def test_the_page_about_routes_of_nats(story: Story, start_nats: Callable[..., Server]) -> None:
    ports = [free_port() for _ in range(2)]
    routes = ", ".join(f'"nats-route://127.0.0.1:{port}"' for port in ports)
    for port in ports:
        start_nats(f'cluster {{ name: C1, listen: "127.0.0.1:{port}", routes: [{routes}] }}')
    story.places = {**story.places, "nats1,nats2:6222": ",".join(f"127.0.0.1:{port}" for port in ports)}
    play(story, "docs/nats-route.md")


@pytest.mark.long_run
@pytest.mark.slow
@pytest.mark.spark
def test_the_page_about_spark(story: Story, nsqd_here: Callable[..., Server], spark: Any) -> None:
    nsqd = nsqd_here()
    make_channel(nsqd, "archive")
    nsqd.http("/pub?topic=orders", b"one")
    use(story, nsqd)
    vars(story.module)["spark"] = spark
    try:
        play(story, "docs/spark.md")
        (query,) = spark.streams.active
        while not query.lastProgress or not query.lastProgress["numInputRows"]:
            assert query.isActive, query.exception()
            time.sleep(0.1)
    finally:
        for query in spark.streams.active:
            query.stop()


# -- what no reader runs


def test_the_warning_about_a_blocked_hub_is_the_one_that_is_logged() -> None:
    (shown,) = (block.text for block in BLOCKS if block.page.name == "slots.md" and block.language == "text")
    said = guardian.HUB % ("handler uploads/thumbnails", 1.0, "…")
    assert shown.split() == f"WARNING {guardian.__name__} {said}".split()


def test_the_house_is_drawn_as_it_is() -> None:
    (drawn,) = (block.text for block in BLOCKS if block.page.name == "architecture.md" and block.language == "text")
    assert [path for path in drawn_paths(drawn) if not exists(path)] == []


def drawn_paths(drawn: str) -> Iterator[str]:
    """Every name of the drawing with the folders that it is drawn in: ``framework/engine/slots``."""
    folders: list[str] = []
    for line in drawn.splitlines():
        if line.startswith(" " * 20):  # more words about the line above
            continue
        names, _, _ = line.strip().partition("  ")
        depth = (len(line) - len(line.lstrip())) // 2
        del folders[depth:]
        for name in names.split(", "):
            yield "/".join([*folders, name.rstrip("/")])
        folders.append(names.rstrip("/"))


def exists(path: str) -> bool:
    return (ROOT / path).is_dir() or (ROOT / f"{path}.py").is_file()


def test_the_index_names_every_page() -> None:
    index = ROOT / "docs" / "README.md"
    named = {index, *((index.parent / link.partition("#")[0]).resolve() for link in links(index))}
    assert [name_of(page) for page in PAGES if page.parent == index.parent and page not in named] == []
