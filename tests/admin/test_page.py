"""The page of a worker in a real browser: it shows what is so, does what is asked, and takes no message for markup."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from framework.testing.servers import Server
from framework.testing.workers import working
from tests.admin.asking import SHOP, api, port_of, run, shown
from tests.admin.browser import Browser, browsing

MARKUP = "<img src=x onerror=document.title='taken'>\u202e\0"
SHOWN = MARKUP.replace("\u202e", "\\u202e").replace("\0", "\\u0000")
"""As the page has it: what turns words around is written out."""
MORE = f"""
    @handler("odd", "channel")
    def odd(message: Message):
        raise Reject({MARKUP!r})
"""
UNSEEN = "\u061c\ufeff\u200b\u2028\u2066\u202e\x1b[2J\x07"
HOSTILE = f"""
    @handler("odd", "channel")
    def odd(message: Message):
        raise Reject({(MARKUP + UNSEEN)!r} + "x" * 100_000)
"""
AN_HOUR_AHEAD = "const now = Date.now; Date.now = () => now() + 3600_000;"
TOLD = """[...document.querySelectorAll("[title]")].map((one) => one.title).join("") + document.body.innerText"""
MANY = """
    def nothing(message: Message): ...
    for index in range(1000):
        handler(f"tenant-{index:04}", "sync")(lambda message: None)
"""
LETTERS = "document.querySelectorAll('#dead > .dead > div:nth-child(2) tbody input[type=checkbox]').length"
BUSY_ONCE = """
    const asked = window.fetch;
    window.fetch = (path, options) => {
        if (!path.startsWith("/api/dead/letters")) return asked(path, options);
        window.fetch = asked;
        return Promise.resolve(new Response('{"error": "a replay is under way"}', {status: 409}));
    };
"""
"""Somebody else's replay is over too soon to be met."""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browsing(tmp_path_factory.mktemp("profile")) as one:
        yield one


@pytest.fixture
def page(browser: Browser) -> Iterator[Browser]:
    """At the end nothing has failed in it, and nothing was asked for elsewhere."""
    browser.open("about:blank")
    browser.complaints.clear()
    browser.asked.clear()
    yield browser
    assert browser.complaints == []
    assert {url.split("/")[2].partition(":")[0] for url in browser.asked if url.startswith("http")} <= {"127.0.0.1"}


def url(nsqd: Server) -> str:
    return f"nsq://{nsqd.address}?http_port={nsqd.http_address.rpartition(':')[2]}"


def rows(page: Browser, part: str) -> Any:
    return page.js(f"[...document.querySelectorAll('#{part} tbody tr:not(.gap)')].map((row) => row.innerText)")


@pytest.mark.real
@pytest.mark.slow
def test_it_shows_what_runs_and_fails_pauses_a_handler_and_works_on_dead_letters(
    page: Browser, nsqd: Server, tmp_path: Path
) -> None:
    with run(tmp_path, url(nsqd), shop=SHOP + MORE) as worker:
        port = port_of(worker)
        nsqd.http("/mpub?topic=orders", b"wait\nbad")
        nsqd.http("/mpub?topic=odd", "\n".join([MARKUP] * 3).encode())
        page.open(f"http://127.0.0.1:{port}/")
        page.until("document.querySelectorAll('#handlers tr.row').length === 2")
        page.until("document.querySelector('#live').textContent === 'ready'")
        page.key("2")
        page.until("document.querySelector('#running').innerText.includes('shop.py:11 in bill')")
        page.key("3")
        page.until("document.querySelector('#failures').innerText.includes('ValueError: bad')")
        assert SHOWN in page.text("#failures")
        page.key("4")
        page.until(f"document.querySelector('#nodes').innerText.includes('{nsqd.address}')")
        page.until(f"document.querySelector('#processes').innerText.includes('{worker.process.pid} on ')")

        page.key("1")
        page.click("#handlers tr.row", "orders/bill")
        page.click("#detail button", "Pause")
        shown(port, "handlers?handler=orders/bill", lambda rows: rows[0]["pause"])
        page.until("document.querySelector('#handlers').innerText.includes('paused')")
        page.js("document.querySelector('#detail input[aria-label=concurrency]').value = 7")
        page.click("#detail form button", "Set")
        shown(port, "handlers?handler=orders/bill", lambda rows: rows[0]["concurrency"] == 7)
        page.key("Escape")
        page.until("document.querySelector('#detail').hidden")

        page.key("5")
        page.js(BUSY_ONCE)
        page.click("#dead tr.row", "odd/channel")
        page.until("document.querySelector('#dead').innerText.includes('a replay is under way')")
        page.until("document.querySelectorAll('#dead .grid:nth-of-type(1) tbody input[type=checkbox]').length === 3")
        page.click("#dead > .dead > div:nth-child(2) tr.row")
        assert "body" not in page.text(".letter pre")
        page.click(".letter button", "Show the body")
        page.until(f"[...document.querySelectorAll('.letter pre')].filter((one) => one.textContent === {SHOWN!r}).length === 1")
        page.js("document.querySelector('#dead > .dead > div:nth-child(2) tbody input[type=checkbox]').click()")
        page.click("#dead button", "Replay 1 chosen")
        page.until("document.querySelector('#said').textContent.includes('replayed 1')")
        shown(port, "handlers?handler=odd/channel", lambda rows: rows[0]["counts"]["dead"] == 4)
        for reason, letters in (("nothing like it", 0), ("Reject", 3)):
            page.js(f"document.querySelector('#dead [name=reason]').value = {reason!r}")
            page.click("#dead button", "Look")
            page.until(f"{LETTERS} === {letters}")
        page.click("#dead button", "Purge all that fit")
        page.until("document.querySelector('#ask').open")
        page.click("#ask button", "Purge")
        shown(port, "dead", lambda rows: not any(row["letters"] for row in rows))
        page.until("document.querySelector('#said').textContent.includes('purged 3')")
        assert page.js("document.title") == "Workers"
        worker.process.kill()
        page.until("document.querySelector('#live').classList.contains('lost')")
        page.complaints.clear()  # of the worker that is not there any more


@pytest.mark.real
@pytest.mark.slow
def test_what_a_message_says_is_written_out_and_is_as_old_as_the_worker_says(page: Browser, nsqd: Server, tmp_path: Path) -> None:
    with run(tmp_path, url(nsqd), shop=SHOP + HOSTILE) as worker, page.beginning_with(AN_HOUR_AHEAD):
        nsqd.http("/pub?topic=odd", (MARKUP + UNSEEN).encode() * 5_000)
        page.open(f"http://127.0.0.1:{port_of(worker)}/#failures")
        page.until("document.querySelector('#failures').innerText.includes('Reject: ')")
        assert page.text("#failures tbody tr:not(.gap) td").endswith("s")
        assert not set(page.js(TOLD)) & set(UNSEEN + "\0") - set("[2J")
        page.js("getSelection().selectAllChildren(document.querySelector('#failures td.mono:last-child'))")
        marked = page.js("getSelection().toString()")
        seen = page.js("document.querySelector('#spark polyline').getAttribute('points')")
        page.until(f"document.querySelector('#spark polyline').getAttribute('points') !== {seen!r}")
        assert page.js("getSelection().toString()") == marked != "", "it can be copied"
        page.js("getSelection().removeAllRanges()")
        assert page.js("document.title") == "Workers"
        page.open("about:blank")
        assert worker.stop() == 0


@pytest.mark.slow
def test_a_double_click_acts_once_keys_stay_where_they_were_and_another_worker_says_what_it_allows(
    page: Browser, tmp_path: Path
) -> None:
    with run(tmp_path, "memory://twice") as worker:
        port = port_of(worker)
        page.open(f"http://127.0.0.1:{port}/")
        page.click("#handlers tr.row", "orders/bill")
        page.until("document.querySelector('#detail .first').innerText === 'Pause'")
        page.js("document.querySelector('#detail .first').focus()")
        page.js("document.activeElement.dispatchEvent(new MouseEvent('click', {detail: 1}))")
        page.until("document.querySelector('#detail .first').innerText === 'Resume'")
        assert page.js("document.activeElement.innerText") == "Resume"
        page.js("document.activeElement.dispatchEvent(new MouseEvent('click', {detail: 2}))")
        page.js("document.body.dispatchEvent(new KeyboardEvent('keydown', {key: 'p', repeat: true, bubbles: true}))")
        assert worker.stop() == 0
    assert [line.rpartition(": ")[2] for line in worker.err if " admin: " in line] == ["paused orders/bill"]
    with working(
        "run", "shop", "--broker", "memory://b", "--admin", f"127.0.0.1:{port}", "--admin-read-only", cwd=tmp_path
    ) as next_:
        page.until("document.querySelector('#live').textContent === 'ready, read-only'")
        page.until("document.querySelector('#detail .first').disabled")
        assert next_.stop() == 0
        page.complaints.clear()  # of the time in between


@pytest.mark.slow
def test_a_thousand_handlers_are_a_table_of_those_in_sight_sorted_and_filtered(page: Browser, tmp_path: Path) -> None:
    with run(tmp_path, "memory://many", shop=SHOP + MANY) as worker:
        page.open(f"http://127.0.0.1:{port_of(worker)}/")
        page.until("document.querySelector('#tab-handlers').innerText.includes('1,001')", 40)
        page.until("document.querySelectorAll('#handlers tr.row').length > 20")
        assert page.js("document.querySelectorAll('#handlers tr.row').length") < 100
        page.click("#handlers th button", "Handler")
        assert rows(page, "handlers")[0].startswith("orders/bill")
        page.key("End")
        page.until("document.querySelector('#handlers').innerText.includes('tenant-0999/sync')")
        page.key("/")
        page.type("tenant-05 sync")
        page.until("document.querySelector('#handlers .grid').getAttribute('aria-rowcount') === '100'")
        page.key("Escape")
        page.key("Home")
        page.key("Enter")
        page.until("document.querySelector('#detail h2').textContent === 'tenant-0500/sync'")
        assert worker.stop() == 0
        page.complaints.clear()


@pytest.mark.slow
def test_it_asks_for_the_token_and_what_is_read_only_offers_nothing(page: Browser, tmp_path: Path) -> None:
    token = "a-token-of-the-tests"
    with run(tmp_path, "memory://odd", "--admin-read-only", env={"WORKERS_ADMIN_TOKEN": token}) as worker:
        port = port_of(worker)
        page.open(f"http://127.0.0.1:{port}/")
        page.until("document.querySelector('#ask').open")
        page.type("another")
        page.click("#ask button", "Go on")
        page.until("document.querySelector('#ask').innerText.includes('That is not its token.')")
        page.type(token)
        page.click("#ask button", "Go on")
        page.click("#handlers tr.row", "orders/bill")
        page.until("document.querySelector('#live').textContent === 'ready, read-only'")
        assert page.js("[...document.querySelectorAll('#detail button')].find((one) => one.innerText === 'Pause').disabled")
        page.key("p")
        assert api(port, "/api/handlers", Authorization=f"Bearer {token}")[1][0]["pause"] is None
        assert worker.stop() == 0
        page.complaints.clear()  # of the 401, and of the worker that is not there any more


def test_its_files_come_with_rules_that_let_nothing_else_in(tmp_path: Path) -> None:
    import http.client

    with run(tmp_path, "memory://files") as worker:
        connection = http.client.HTTPConnection("127.0.0.1", port_of(worker), timeout=5)
        for path in ("/", "/page.js", "/page.css", "/grid.js", "/parts.js", "/dead.js"):
            connection.request("GET", path)
            answer = connection.getresponse()
            text = answer.read().decode()
            assert answer.status == 200
            assert "default-src 'none'; script-src 'self'" in answer.headers["Content-Security-Policy"]
            assert "http://" not in text.replace("http://www.w3.org", "")
            assert "https://" not in text
            assert "innerHTML" not in text
        connection.close()
        assert worker.stop() == 0
