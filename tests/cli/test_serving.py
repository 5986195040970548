"""The HTTP server beside a run, and what hostile peers can do to it: nothing that anybody else notices."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from streamdump.cli import serving
from streamdump.cli.serving import TextServer, listening
from streamdump.errors import UsageError
from tests.support.waiting import PATIENCE, until


class Run:
    """A server, and a thread that makes its text as a run does."""

    def __init__(self, make: Callable[[], str], address: str) -> None:
        self.made = 0
        self.longest = 0.0
        self.text = make
        listener = listening(address)
        self.address = ("127.0.0.1", listener.getsockname()[1])
        self.server = TextServer(listener, self._make, str)
        self.stopped = threading.Event()

    def _make(self) -> str:
        self.made += 1
        return self.text()

    def loop(self) -> None:
        while not self.stopped.wait(0.005):
            begin = time.monotonic()
            self.server.answer()
            self.longest = max(self.longest, time.monotonic() - begin)

    def connect(self) -> socket.socket:
        return socket.create_connection(self.address, PATIENCE)

    def get(self, request: bytes = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n") -> tuple[bytes, bytes]:
        """Return the head of the response, and its body."""
        with self.connect() as one:
            one.sendall(request)
            head, _, body = read(one).partition(b"\r\n\r\n")
            return head, body


def read(one: socket.socket) -> bytes:
    """Return what the server sends until it closes."""
    found = bytearray()
    with contextlib.suppress(ConnectionError):
        while part := one.recv(1 << 16):
            found += part
    return bytes(found)


@contextlib.contextmanager
def serves(make: Callable[[], str] = lambda: "a 1\n", address: str = "127.0.0.1:0") -> Iterator[Run]:
    run = Run(make, address)
    with run.server:
        thread = threading.Thread(target=run.loop)
        thread.start()
        try:
            yield run
        finally:
            run.stopped.set()
            thread.join()


def test_requests_and_their_responses() -> None:
    with serves() as run:
        head, body = run.get()
        assert body == b"a 1\n"
        assert head.splitlines() == [
            b"HTTP/1.1 200 OK",
            b"Content-Type: text/plain; version=0.0.4; charset=utf-8",
            b"Content-Length: 4",
            b"Connection: close",
        ]
        assert run.get(b"HEAD /metrics?x=y HTTP/1.0\r\n\r\n") == (head, b"")
        assert run.get(b"GET / HTTP/1.1\r\n\r\n")[1] == b"streamdump: the metrics are at /metrics\n"


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET /metric HTTP/1.1\r\n\r\n", b"404"),
        (b"GET /metrics/../etc/passwd HTTP/1.1\r\n\r\n", b"404"),
        (b"POST /metrics HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello", b"405"),
        (b"GET /metrics\r\n\r\n", b"400"),
        (b"GET /metrics HTTP/2\r\n\r\n", b"400"),
        (b"\r\n\r\n", b"400"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", b"400"),
        (b"GET /metrics HTTP/1.1\r\n" + b"a: b\r\n" * 10_000, b"431"),
        (bytes(100_000), b"431"),
    ],
)
def test_other_requests_are_refused(request_bytes: bytes, status: bytes) -> None:
    with serves() as run:
        with run.connect() as one:
            with contextlib.suppress(ConnectionError):
                one.sendall(request_bytes)
            response = read(one)
        # A peer that still sends when the server closes may see a reset instead
        assert response[9:12] == status or (not response and len(request_bytes) > serving.HEADER)
        assert run.get()[1] == b"a 1\n" and run.made == 1


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:9464", "127.0.0.1:9464", "127.8.9.1", "[::1]", "[::1]:9464", "127.0.0.1:"])
def test_this_host_is_served_under_its_names(host: str) -> None:
    with serves() as run:
        assert run.get(f"GET /metrics HTTP/1.1\r\nhost:{host}\r\n\r\n".encode())[1] == b"a 1\n"


@pytest.mark.parametrize(
    "fields",
    [
        "Host: evil.example",
        "Host: evil.example:9464",
        "Host: localhost.evil.example",
        "Host: 127.0.0.1.evil.example:9464",
        "Host: 192.0.2.1",
        "Host: localhost\r\nHost: evil.example",
        "Host : evil.example",
        "Host:",
        "Host: [::1",
        "Host: localhost\xe9",
        "Host: 127.0.0.1:9464:1",
    ],
)
def test_a_page_whose_name_points_here_reads_nothing(fields: str) -> None:
    """DNS rebinding: for the browser it is the page's own server."""
    with serves() as run:
        for path in ("/metrics", "/", "/x"):
            head, body = run.get(f"GET {path} HTTP/1.1\r\n{fields}\r\n\r\n".encode("latin-1"))
            assert head.startswith(b"HTTP/1.1 421 ") and b"a 1" not in body
        assert run.made == 0


def test_beyond_the_loopback_interface_any_name_is_served(capsys: pytest.CaptureFixture[str]) -> None:
    with serves(address="0.0.0.0:0") as run:
        assert run.get(b"GET /metrics HTTP/1.1\r\nHost: metrics.example\r\n\r\n")[1] == b"a 1\n"
    assert "not only this host" in capsys.readouterr().err


def test_many_requests_at_once_get_one_text() -> None:
    with serves(lambda: "x" * 100_000) as run, ThreadPoolExecutor(20) as peers:
        found = [*peers.map(lambda _: run.get()[1], range(60))]
        assert {*found} == {b"x" * 100_000} and run.made <= 2


def test_text_that_is_slow_to_make_is_made_rarely_and_beside_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "FRESH", 0.0)
    made = 0

    def slow(snapshot: str) -> str:
        nonlocal made
        made += 1
        time.sleep(0.3)
        return snapshot

    with serves() as run:
        run.server._make = slow
        begin = time.monotonic()
        run.get()
        longest = run.longest
        while time.monotonic() < begin + 1.5:
            run.get()
            time.sleep(0.05)
        assert made == 1 and longest < 0.3


def test_slow_and_silent_peers_keep_nobody_out_and_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "SECONDS", 1.0)
    # More than the buffers of the kernel hold
    with serves(lambda: "x" * 10_000_000) as run:
        silent, slow, trickling = run.connect(), run.connect(), run.connect()
        slow.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        begin = time.monotonic()
        with silent, slow, trickling:
            for byte in bytes(26):
                with contextlib.suppress(OSError):
                    trickling.send(bytes([byte]))
                time.sleep(0.05)
            assert len(run.get()[1]) == 10_000_000
            assert read(silent) == read(trickling) == b""
            assert len(read(slow)) < 10_000_000
            assert time.monotonic() - begin < PATIENCE
        until(lambda: not run.server._writers)


def test_one_connection_too_many_closes_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "CONNECTIONS", 5)
    # Nothing but their number closes them
    monkeypatch.setattr(serving, "SECONDS", 2 * PATIENCE)
    with serves() as run, contextlib.ExitStack() as stack:
        idle = [stack.enter_context(run.connect()) for _ in range(50)]
        assert run.get()[1] == b"a 1\n"
        for one in idle[:45]:
            one.settimeout(PATIENCE / 10)
            assert read(one) == b""
        assert len(run.server._writers) <= 5


def test_a_text_that_cannot_be_made_ends_the_run() -> None:
    def fail(snapshot: str) -> str:
        raise ZeroDivisionError

    server = TextServer(listening("127.0.0.1:0"), str, fail)
    with pytest.raises(ZeroDivisionError), server, socket.create_connection(server._listener.getsockname(), PATIENCE) as one:
        one.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            server.answer()
            time.sleep(0.01)


def test_peers_that_go_away_are_forgotten() -> None:
    with serves() as run:
        for _ in range(50):
            with run.connect() as one:
                one.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        until(lambda: not run.server._writers)
        assert run.get()[1] == b"a 1\n"


def test_a_server_ends_with_peers_connected(capsys: pytest.CaptureFixture[str]) -> None:
    with serves() as run:
        waiting = run.connect()
        until(lambda: run.server._writers)
    assert read(waiting) == b""
    waiting.close()
    with pytest.raises(ConnectionRefusedError):
        run.connect()
    port = run.address[1]
    assert capsys.readouterr().err == f"streamdump: serving http://127.0.0.1:{port}/metrics\n"
    # The port is free again
    listening(f"127.0.0.1:{port}").close()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("9464", "write HOST:PORT, such as 127.0.0.1:9464 or [::1]:9464"),
        (":9464", "write HOST:PORT"),
        ("", "write HOST:PORT"),
        ("127.0.0.1:", "write HOST:PORT"),
        ("127.0.0.1:65536", "write HOST:PORT"),
        ("127.0.0.1:-1", "write HOST:PORT"),
        ("127.0.0.1:٩", "write HOST:PORT"),
        ("::1:9464", "write HOST:PORT"),
        ("[::1:9464", "write HOST:PORT"),
        ("300.0.0.1:9464", "no such host"),
        ("a..b:9464", "no such host"),
        ("192.0.2.1:9464", "this host does not have this address"),
    ],
)
def test_a_wrong_address_is_one_sentence(text: str, reason: str) -> None:
    with pytest.raises(UsageError) as error:
        listening(text)
    assert str(error.value).startswith(f"--listen {text}: {reason}")


def test_a_port_in_use_is_one_sentence() -> None:
    with listening("127.0.0.1:0") as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(UsageError) as error:
            listening(address)
        assert str(error.value) == f"--listen {address}: this port is in use; choose another one, or 0 for any that is free"


@pytest.mark.parametrize(
    ("host", "beyond"), [("127.0.0.1", False), ("localhost", False), ("[::1]", False), ("0.0.0.0", True), ("[::]", True)]
)
def test_a_line_says_where_others_can_connect(host: str, beyond: bool, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        listener = listening(f"{host}:0")
    except UsageError:
        pytest.skip("no IPv6")
    with TextServer(listener, str, str):
        pass
    first, *more = capsys.readouterr().err.splitlines()
    assert first.startswith("streamdump: serving http://") and first.endswith("/metrics")
    assert bool(more) == beyond
    if beyond:
        assert more == [
            f"streamdump: --listen {host.strip('[]')}: not only this host can read the metrics; there is neither a password nor TLS"
        ]
