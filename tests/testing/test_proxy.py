"""The fault proxy: each fault as both ends see it, the way back from it, and many bytes when nothing is wrong."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from framework.testing.proxy import Proxy, proxies
from framework.testing.servers import free_port


class Echo:
    """A server that sends back what it gets, and remembers how its connections ended."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.got = b""
        self.ends: list[str] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        with sock:
            try:
                while data := sock.recv(65536):
                    self.got += data
                    sock.sendall(data)
                self.ends.append("eof")
            except OSError as error:
                self.ends.append(type(error).__name__)

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def echo() -> Iterator[Echo]:
    server = Echo()
    yield server
    server.close()


@pytest.fixture
def proxy(echo: Echo) -> Iterator[Proxy]:
    with proxies() as start:
        yield start(echo.address)


def dial(proxy: Proxy, timeout: float = 10.0) -> socket.socket:
    host, _, port = proxy.address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=timeout)


def read(sock: socket.socket, count: int) -> bytes:
    """``count`` bytes, or what came until the stream ended."""
    got = b""
    while len(got) < count and (data := sock.recv(count - len(got))):
        got += data
    return got


def until(condition: Callable[[], object], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.002)


def nothing_comes(sock: socket.socket, seconds: float = 0.15) -> bool:
    sock.settimeout(seconds)
    try:
        sock.recv(1)
    except TimeoutError:
        return True
    else:
        return False
    finally:
        sock.settimeout(10)


def test_without_a_fault_megabytes_pass_unchanged_both_ways_over_several_connections(proxy: Proxy) -> None:
    body = bytes(range(256)) * 16384  # 4 MiB
    answers: dict[int, bytes] = {}

    def talk(number: int) -> None:
        with dial(proxy) as sock:
            threading.Thread(target=sock.sendall, args=(body,), daemon=True).start()
            answers[number] = read(sock, len(body))

    threads = [threading.Thread(target=talk, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [answers[number] == body for number in range(4)] == [True] * 4
    until(lambda: proxy.to_server.passed == proxy.to_client.passed == 4 * len(body))


def test_a_half_close_passes_and_the_answer_still_comes(proxy: Proxy, echo: Echo) -> None:
    with dial(proxy) as sock:
        sock.sendall(b"all")
        sock.shutdown(socket.SHUT_WR)
        assert read(sock, 100) == b"all"
    until(lambda: echo.ends == ["eof"])
    until(lambda: proxy.open == 0)


@pytest.mark.parametrize("reset", [False, True])
def test_cut_ends_both_sides_at_once_and_new_connections_work(proxy: Proxy, echo: Echo, reset: bool) -> None:
    with dial(proxy) as sock:
        sock.sendall(b"x")
        assert read(sock, 1) == b"x"
        assert proxy.cut(reset=reset) == 1
        if reset:
            with pytest.raises(ConnectionResetError):
                sock.recv(1)
        else:
            assert sock.recv(1) == b""
    until(lambda: echo.ends == ["ConnectionResetError" if reset else "eof"])
    with dial(proxy) as sock:
        sock.sendall(b"y")
        assert read(sock, 1) == b"y"
    assert proxy.accepted == 2


def test_a_cut_after_so_many_bytes_comes_exactly_there_to_the_server(proxy: Proxy, echo: Echo) -> None:
    proxy.to_server.cut_after(5)
    with dial(proxy) as sock:
        sock.sendall(b"0123")
        assert read(sock, 4) == b"0123"
        sock.sendall(b"456789")
        until(lambda: echo.ends)
        assert echo.got == b"01234"
    with dial(proxy) as sock:  # once only
        sock.sendall(b"abcdefghij")
        assert read(sock, 10) == b"abcdefghij"


def test_a_cut_after_so_many_bytes_comes_exactly_there_to_the_client(proxy: Proxy, echo: Echo) -> None:
    proxy.to_client.cut_after(3)
    with dial(proxy) as sock:
        sock.sendall(b"0123456789")
        assert read(sock, 10) == b"012"
    until(lambda: echo.got == b"0123456789")


def test_refuse_turns_new_connections_away_until_restored_on_the_same_port(proxy: Proxy) -> None:
    with dial(proxy) as old:
        old.sendall(b"a")
        assert read(old, 1) == b"a"
        proxy.refuse()
        with pytest.raises(ConnectionRefusedError):
            dial(proxy)
        old.sendall(b"b")
        assert read(old, 1) == b"b"
        proxy.restore()
        with dial(proxy) as new:
            new.sendall(b"c")
            assert read(new, 1) == b"c"


def test_delay_holds_each_piece_back(proxy: Proxy) -> None:
    proxy.delay(0.1)
    with dial(proxy) as sock:
        began = time.monotonic()
        sock.sendall(b"x")
        assert read(sock, 1) == b"x"
        assert time.monotonic() - began >= 0.2  # there and back


def test_trickle_hands_on_one_byte_at_a_time(proxy: Proxy) -> None:
    proxy.to_client.trickle(0.001)
    with dial(proxy) as sock:
        sock.sendall(b"x" * 50)
        sizes = []
        while sum(sizes) < 50:
            sizes.append(len(sock.recv(50)))
    assert len(sizes) > 10  # a busy reader gets several at once


def test_what_is_held_comes_late_but_whole(proxy: Proxy) -> None:
    with dial(proxy) as sock:
        proxy.hold()
        sock.sendall(b"patience")
        assert nothing_comes(sock)
        proxy.restore()
        assert read(sock, 8) == b"patience"


def test_a_swallowed_direction_is_silent_the_other_goes_on_and_restore_cuts_it(proxy: Proxy, echo: Echo) -> None:
    with dial(proxy) as sock:
        proxy.to_client.swallow()
        sock.sendall(b"heard")
        until(lambda: echo.got == b"heard")
        assert nothing_comes(sock)
        proxy.restore()
        assert sock.recv(1) == b""


def test_a_half_open_connection_is_told_nothing_when_its_peer_ends(proxy: Proxy, echo: Echo) -> None:
    with dial(proxy) as sock:
        sock.sendall(b"x")
        assert read(sock, 1) == b"x"
        proxy.swallow()
        sock.close()
        time.sleep(0.05)
        assert echo.ends == []
        proxy.restore()
        until(lambda: echo.ends)


def test_a_server_that_is_down_ends_the_connection() -> None:
    with proxies() as start, dial(start(f"127.0.0.1:{free_port()}")) as sock:
        assert sock.recv(1) == b""


def test_it_works_while_the_thread_that_made_it_computes_and_after_stop_the_port_is_free(proxy: Proxy) -> None:
    answers: list[bytes] = []

    def talk() -> None:
        with dial(proxy) as sock:
            sock.sendall(b"x")
            answers.append(read(sock, 1))

    thread = threading.Thread(target=talk)
    thread.start()
    while thread.is_alive():
        sum(range(10_000))
    assert answers == [b"x"]
    proxy.stop()
    with pytest.raises(ConnectionRefusedError):
        dial(proxy)
    socket.create_server(("127.0.0.1", int(proxy.address.rpartition(":")[2]))).close()
