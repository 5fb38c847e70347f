"""What servers like S3 refuse in ways that the gateway here does not: each has a sentence that names the fix."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

pytest.importorskip("obstore")

from obstore.exceptions import GenericError

from framework.errors import WrongUse
from framework.spool import objects
from framework.spool.objects import Objects
from framework.spool.storage import StorageError
from framework.spool.urls import storage_of

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
                self.rfile.read(int(self.headers["content-length"] or 0))
                status, code = left.pop(0) if len(left) > 1 else left[0]
                body = f"<Error><Code>{code}</Code><Message>hush</Message></Error>".encode() if code else b""
                self.send_response(status)
                self.send_header("ETag", '"0"')
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_DELETE = do_POST = do_PUT

            def log_message(self, *_: object) -> None:
                """To nobody."""

        servers.append(ThreadingHTTPServer(("127.0.0.1", 0), Handler))
        Thread(target=servers[-1].serve_forever, args=(0.01,), daemon=True).start()
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
        ((507, ""), errno.ENOSPC, "takes no more (507): make room there, or raise its quota"),
        ((507, "XMinioStorageFull"), errno.ENOSPC, "make room there, or raise its quota"),
        ((403, "RequestTimeTooSkewed"), errno.EACCES, "set this machine's clock"),
        ((400, "AuthorizationHeaderMalformed"), errno.EIO, "set AWS_REGION"),
        ((400, "ExpiredToken"), errno.EACCES, "see to AWS_ACCESS_KEY_ID"),
        ((403, "AccessDenied"), errno.EACCES, "see to AWS_ACCESS_KEY_ID"),
        ((401, ""), errno.EACCES, "denies access (401): see to AWS_ACCESS_KEY_ID"),
        ((400, "InvalidBucketName"), errno.ENOENT, "there is no bucket s3://bucket: make it"),
        ((400, "Odd"), errno.EIO, "cannot do it (400 Odd): see to that server, and to the URL of the spool"),
    ],
)
def test_a_refusal_names_its_fix(answering: Callable[..., Objects], answer: Answer, number: int, words: str) -> None:
    with pytest.raises(StorageError) as refused:
        answering(answer).put("name", b"content")
    assert refused.value.errno == number
    assert words in str(refused.value)
    assert "hush" not in str(refused.value)


@pytest.mark.parametrize(
    ("scheme", "address", "fix"),
    [
        ("s3", "169.254.169.254/latest", "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"),
        ("az", "169.254.169.254/metadata", "set AZURE_STORAGE_ACCOUNT_NAME"),
        ("abfss", "169.254.169.254/metadata", "set AZURE_STORAGE_ACCOUNT_NAME"),
        ("gs", "metadata.google.internal/computeMetadata", "set GOOGLE_APPLICATION_CREDENTIALS"),
    ],
)
def test_who_asks_the_machine_for_credentials_in_vain_is_told_what_to_set(scheme: str, address: str, fix: str) -> None:
    failure = Objects(scheme, "bucket")._failure(GenericError(f"error sending request for url (http://{address}), hush"))
    assert (failure.errno, str(failure)) == (errno.EACCES, str(failure).replace("hush", ""))
    assert str(failure).startswith(f"{scheme}://bucket: there are no credentials: {fix}")


@pytest.mark.parametrize(
    ("scheme", "where"), [("s3", "AWS_ENDPOINT_URL"), ("abfss", "AZURE_STORAGE_ENDPOINT"), ("gs", "its address")]
)
def test_a_server_that_does_not_answer_is_looked_for_where_it_is_said(scheme: str, where: str) -> None:
    failure = Objects(scheme, "bucket")._failure(GenericError("error sending request"))
    words = f"{scheme}://bucket does not answer: see whether it is up, and where it is looked for ({where})"
    assert (failure.errno, str(failure)) == (errno.EIO, words)


@pytest.mark.parametrize(
    ("scheme", "bucket", "fix"), [("s3", "two words", "AWS_ACCESS_KEY_ID"), ("abfss", "box", "AZURE_STORAGE_ACCOUNT_NAME")]
)
def test_a_bucket_that_the_library_cannot_open_is_named(
    scheme: str, bucket: str, fix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is no URL, or no account is known."""
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    with pytest.raises(StorageError, match=f"^{scheme}://{bucket} cannot be opened: .*, and to {fix} and ") as refused:
        Objects(scheme, bucket).read("name")
    assert refused.value.errno == errno.EINVAL


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("s3://box/spool", "AWS_ACCESS_KEY_ID"),
        ("s3://box/spool", "AWS_SESSION_TOKEN"),
        ("s3://box/spool", "AWS_REGION"),
        ("az://box/spool", "AZURE_STORAGE_ACCOUNT_NAME"),
        ("abfss://box@a.dfs.core.windows.net/spool", "AZURE_STORAGE_ACCOUNT_KEY"),
        ("s3://box/spool?region=hush%0A", "its option region"),
        ("az://box/spool?account=hush%0A", "its option account"),
    ],
)
def test_what_has_a_line_break_and_is_signed_with_is_named(
    answering: Callable[..., Objects], url: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a key from a file has one at its end. The library ends in a panic, which is no Exception."""
    answering((200, ""))
    if "?" not in url:
        monkeypatch.setenv(said, "hush\n")
    storage = storage_of(url).storage
    with pytest.raises(StorageError, match=f"^{storage.url}: {said} has a line break in it") as refused:
        storage.list("")
    assert (refused.value.errno, "hush" in str(refused.value)) == (errno.EINVAL, False)


@pytest.mark.parametrize("over", [False, True])
def test_what_is_put_is_one_request_however_large_it_is(answering: Callable[..., Objects], over: bool) -> None:
    """So that nobody sees a part of it."""
    assert answering((200, ""), (400, "Second")).put("name", bytes(11 << 20), over=over)


def test_what_is_not_there_is_deleted_without_a_word(answering: Callable[..., Objects]) -> None:
    answering((404, "NoSuchKey")).delete("name")
    with pytest.raises(StorageError, match="there is no bucket"):
        answering((404, "NoSuchBucket")).delete("name")


def test_who_puts_a_name_at_the_same_time_as_another_tries_again(
    answering: Callable[..., Objects], monkeypatch: pytest.MonkeyPatch
) -> None:
    """That the other one has it is not said: its put may fail."""
    waited: list[float] = []
    monkeypatch.setattr(objects.time, "sleep", waited.append)
    monkeypatch.setattr(objects, "_BUSY_TRIES", (0.1, 0.2))
    busy, there, put = (409, "ConditionalRequestConflict"), (412, "PreconditionFailed"), (200, "")
    assert answering(busy, busy, put).put("name", b"content")
    assert waited == [0.1, 0.2]
    assert not answering(busy, there).put("name", b"content")
    with pytest.raises(StorageError, match="409 ConditionalRequestConflict"):
        answering(busy).put("name", b"content")


@pytest.mark.parametrize("error", [GenericError("status code: 403 hush"), PermissionError("status code: 403 hush")])
def test_whatever_the_library_raises_nothing_of_it_is_shown(error: Exception) -> None:
    def ask() -> None:
        raise error

    with pytest.raises(StorageError, match=r"denies access \(403\)") as refused:
        Objects("s3", "bucket")._asked(ask)
    assert "hush" not in str(refused.value)
    assert refused.value.__context__ is None


def test_an_option_without_a_value_is_one() -> None:
    with pytest.raises(WrongUse, match="its option endpoint is no address of a server"):
        storage_of("s3://bucket/spool?endpoint=")


@pytest.mark.parametrize(
    "address",
    [
        "h:99999",
        "h:90OO",
        "[::1",
        "[zz]:1",
        "::1",
        "10.0.0.256:9000",
        "h%zz",
        "h:1:2",
        "h|:1",
        "\u00e9:1",
        "h:1/<",
        "[::1]x:1",
        "[1.2.3.4]",
    ],
)
def test_an_endpoint_at_which_the_library_panics_is_refused(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(WrongUse, match="its option endpoint is no address of a server"):
        Objects("s3", "bucket", (("endpoint", f"http://{address}"),))
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{address}")
    objects._opened.cache_clear()
    with pytest.raises(StorageError, match="AWS_ENDPOINT_URL is no address of a server"):
        Objects("s3", "bucket").read("name")


@pytest.mark.parametrize(
    "address", ["minio:9000", "h_a.b-c", "10.0.0.1:65535/", "[::1]:1/a%20b/c", "[::ffff:1.2.3.4]", "s3.example/v1"]
)
def test_an_endpoint_of_a_server_is_none_of_those(address: str) -> None:
    Objects("s3", "bucket", (("endpoint", f"https://{address}"),))
