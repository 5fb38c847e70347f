"""What pages of other sites can do to a worker, tried from real ones in a real browser: nothing, but link to its page."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.admin.asking import api, port_of, run
from tests.admin.browser import Browser, browsing

pytestmark = pytest.mark.slow

TRIES = r"""(async () => {
    const at = "http://" + WORKER, act = at + "/api/actions", pause = '{"action": "pause"}', found = {};
    addEventListener("message", (event) => { found["null"] = event.data; });
    const json = {"Content-Type": "application/json"};
    const read = async (name, made) => {
        found[name] = await Promise.race([
            Promise.resolve().then(made).then((answer) => answer.type === "opaque" ? "opaque" : answer.text(), () => "failed"),
            new Promise((done) => setTimeout(done, 5000, "nothing")),
        ]);
    };
    const framed = (name, more, html) => new Promise((done) => {
        const frame = Object.assign(document.createElement("iframe"), {name});
        for (const [key, value] of Object.entries(more)) frame.setAttribute(key, value);
        if (html) frame.srcdoc = html;
        frame.onload = () => setTimeout(done, 300);
        document.body.append(frame);
    });
    const form = (name, kind) => {
        const one = document.createElement("form");
        Object.assign(one, {method: "POST", action: act, enctype: kind, target: name});
        const field = Object.assign(document.createElement("input"), {name: '{"action": "pause", "x": "', value: '"}'});
        one.append(field); document.body.append(one); one.submit();
        return new Promise((done) => setTimeout(done, 300));
    };
    await read("no-cors text", () => fetch(act, {method: "POST", mode: "no-cors", body: pause}));
    await read("no-cors json", () => fetch(act, {method: "POST", mode: "no-cors", body: pause, headers: json}));
    await read("cors text", () => fetch(act, {method: "POST", body: pause}));
    await read("cors json", () => fetch(act, {method: "POST", body: pause, headers: json}));
    await read("cors put", () => fetch(act, {method: "PUT", body: pause}));
    await read("credentials", () => fetch(act, {method: "POST", body: pause, headers: json, credentials: "include"}));
    await read("read", () => fetch(at + "/api/snapshot"));
    await read("read opaque", () => fetch(at + "/api/snapshot", {mode: "no-cors"}).then(() => ({type: "opaque"})));
    found.beacon = navigator.sendBeacon(act, new Blob([pause], {type: "text/plain"}));
    await framed("target", {});
    for (const kind of ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"]) await form("target", kind);
    await framed("null", {sandbox: "allow-scripts allow-forms"}, `<form method=POST enctype=text/plain action="${act}">
        <input name='{"action": "pause", "x": "' value='"}'></form><script>document.forms[0].submit();
        fetch("${act}", {method: "POST", mode: "no-cors", body: '${pause}'});
        fetch("${at}/api/snapshot").then((answer) => parent.postMessage("read by null", "*"))<\/script>`);
    await framed("page", {src: at + "/"});
    try { found.frame = String(frames.page.document.body.innerText); } catch (error) { found.frame = "closed"; }
    found.frames = frames.page.length;
    found.events = await new Promise((done) => {
        const source = new EventSource(at + "/api/events");
        source.onmessage = () => done("message");
        source.onerror = () => { done("failed"); source.close(); };
    });
    found.socket = await new Promise((done) => {
        const socket = new WebSocket("ws://" + WORKER + "/api/events");
        socket.onopen = socket.onmessage = () => done("open");
        socket.onerror = () => done("failed");
    });
    found.script = await new Promise((done) => {
        const script = Object.assign(document.createElement("script"), {src: at + "/api/snapshot"});
        script.onload = () => done("loaded");
        script.onerror = () => done("failed");
        document.body.append(script);
    });
    return found;
})()"""


class _Foreign(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = f"<title>foreign</title><body><a href='http://{self.path[1:]}/'>the worker</a>".encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """``*.test`` is this machine, as whoever rebinds a name has it."""
    with browsing(tmp_path_factory.mktemp("profile"), "--host-resolver-rules=MAP *.test 127.0.0.1") as one:
        yield one


@pytest.fixture(scope="module")
def foreign() -> Iterator[int]:
    """Serves a page of another origin."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Foreign)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_address[1]
    server.shutdown()


@pytest.mark.parametrize("host", ["foreign.test", "127.0.0.1"])
def test_a_page_of_another_origin_reads_nothing_and_changes_nothing(
    host: str, browser: Browser, foreign: int, tmp_path: Path
) -> None:
    """Also one of the same machine at another port, which browsers call the same site."""
    with run(tmp_path, "memory://foreign") as worker:
        address = f"127.0.0.1:{port_of(worker)}"
        browser.open(f"http://{host}:{foreign}/{address}")
        found = browser.js(TRIES.replace("WORKER", repr(address)))
        changed = [line for line in worker.err if " admin: " in line]
        [row] = api(port_of(worker), "/api/handlers")[1]
        assert worker.stop() == 0
    assert (row["pause"], changed) == (None, [])
    assert found.pop("frame") in ("closed", "")
    assert found.pop("frames") == 0
    assert (found.pop("beacon"), found.pop("read opaque")) == (True, "opaque"), "it may ask, and gets nothing"
    assert set(found.values()) <= {"failed", "opaque"}, found


def test_a_name_that_leads_here_reads_nothing(browser: Browser, tmp_path: Path) -> None:
    """By DNS rebinding a page is of the worker's own origin, as far as a browser can see."""
    with run(tmp_path, "memory://rebound") as worker:
        port = port_of(worker)
        browser.open(f"http://rebound.test:{port}/livez")
        assert "this Host is not served here" in browser.text("body")
        found = browser.js("fetch('/api/actions', {method: 'POST', body: '{}'}).then((answer) => answer.status)")
        assert found == 403
        assert worker.stop() == 0


@pytest.mark.parametrize("host", ["foreign.test", "127.0.0.1"])
def test_a_link_elsewhere_leads_to_the_page(host: str, browser: Browser, foreign: int, tmp_path: Path) -> None:
    """Of a wiki, or an alert."""
    with run(tmp_path, "memory://linked") as worker:
        address = f"127.0.0.1:{port_of(worker)}"
        browser.open(f"http://{host}:{foreign}/{address}")
        browser.js("document.querySelector('a').click()")
        browser.until("document.querySelector('#live')?.textContent === 'ready'")
        browser.open("about:blank")
        assert worker.stop() == 0
