"""What servers like S3 refuse in ways that the gateway here does not: each has a sentence that names the fix."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

pytest.importorskip("obstore")

from framework.spool import objects
from framework.spool.objects import Objects
from framework.spool.storage import StorageError

Answer = tuple[int, str]


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Objects]]:
    """A bucket whose server gives these answers, (status, code), one after another, and the last one from then on."""
    for name, value in {"ACCESS_KEY_ID": "key", "SECRET_ACCESS_KEY": "hush", "REGION": "us-east-1"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    servers: list[ThreadingHTTPServer] = []

    def begin(*answers: Answer) -> Objects:
        left = list(answers)

        class Handler(BaseHTTPRequestHandler):
            def do_PUT(self) -> None:
                self.rfile.read(int(self.headers["content-length"]))
                status, code = left.pop(0) if len(left) > 1 else left[0]
                body = f"<Error><Code>{code}</Code><Message>hush</Message></Error>".encode() if code else b""
                self.send_response(status)
                self.send_header("ETag", '"0"')
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """To nobody."""

        servers.append(ThreadingHTTPServer(("127.0.0.1", 0), Handler))
        Thread(target=servers[-1].serve_forever, daemon=True).start()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{servers[-1].server_port}")
        objects._opened.cache_clear()
        return Objects("s3", "bucket")

    yield begin
    objects._opened.cache_clear()
    for one in servers:
        one.shutdown()
        one.server_close()


@pytest.mark.parametrize(
    ("answer", "number", "words"),
    [
        ((403, "QuotaExceeded"), errno.ENOSPC, "takes no more (403 QuotaExceeded): make room there, or raise its quota"),
        ((400, "XMinioAdminBucketQuotaExceeded"), errno.ENOSPC, "make room there, or raise its quota"),
        ((507, "XMinioStorageFull"), errno.ENOSPC, "make room there, or raise its quota"),
        ((403, "RequestTimeTooSkewed"), errno.EACCES, "set this machine's clock"),
        ((400, "AuthorizationHeaderMalformed"), errno.EIO, "set AWS_REGION"),
        ((400, "ExpiredToken"), errno.EACCES, "see to AWS_ACCESS_KEY_ID"),
        ((403, "AccessDenied"), errno.EACCES, "see to AWS_ACCESS_KEY_ID"),
    ],
)
def test_a_refusal_names_its_fix(answering: Callable[..., Objects], answer: Answer, number: int, words: str) -> None:
    with pytest.raises(StorageError) as refused:
        answering(answer).put("name", b"content")
    assert refused.value.errno == number
    assert words in str(refused.value)
    assert "hush" not in str(refused.value)


def test_who_puts_a_name_at_the_same_time_as_another_tries_again(
    answering: Callable[..., Objects], monkeypatch: pytest.MonkeyPatch
) -> None:
    """That the other one has it is not said: its put may fail."""
    monkeypatch.setattr(objects, "_BUSY_TRIES", (0.0, 0.0))
    busy, there, put = (409, "ConditionalRequestConflict"), (412, "PreconditionFailed"), (200, "")
    assert answering(busy, busy, put).put("name", b"content")
    assert not answering(busy, there).put("name", b"content")
    with pytest.raises(StorageError, match="409 ConditionalRequestConflict"):
        answering(busy).put("name", b"content")
