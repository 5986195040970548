"""An HTTP server for one text that changes, beside a run: peers can neither stop nor slow the run beyond a bound."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import re
import signal
import socket
from collections.abc import Callable
from threading import Event, Thread
from time import monotonic
from types import TracebackType
from typing import Generic, Self, TypeVar

from streamdump.capture.blocks import explain
from streamdump.errors import UsageError

from .options import natural
from .output import say

T = TypeVar("T")

PATH = "/metrics"
TYPE = "text/plain; version=0.0.4; charset=utf-8"
INDEX = f"streamdump: the metrics are at {PATH}\n"

CONNECTIONS = 32
"""Connections at once; one more closes the oldest, so that idle ones keep nobody out."""

SECONDS = 10.0
"""Time for a request and its response, which is Prometheus' own default."""

HEADER = 8_192
"""Bytes of a request."""

FRESH, SHARE = 1.0, 10
"""Seconds for which all requests get the same text, but at least `SHARE` times as long as it took to make."""

MISDIRECTED = "streamdump: served as localhost or an address such as 127.0.0.1 only, since it listens on the loopback interface\n"

REASONS = {
    errno.EADDRINUSE: "this port is in use; choose another one, or 0 for any that is free",
    errno.EADDRNOTAVAIL: "this host does not have this address",
    errno.EACCES: "no permission; ports below 1024 are for root",
}


def listening(text: str) -> socket.socket:
    """Return a socket that listens on HOST:PORT; raise `UsageError` if that is not possible."""
    host, colon, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    number = natural(port)
    if not (host and colon and number is not None and number < 65_536) or (":" in host and not bracketed):
        raise UsageError(f"--listen {text}: write HOST:PORT, such as 127.0.0.1:9464 or [::1]:9464")
    try:
        family, kind, _, _, address = socket.getaddrinfo(host.strip("[]"), number, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError):
        raise UsageError(f"--listen {text}: no such host") from None
    listener = socket.socket(family, kind)
    try:
        # A port that a server has just left can be used again; on Windows the option would let two use it at once
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(not hasattr(socket, "SO_EXCLUSIVEADDRUSE")))
        listener.bind(address)
        listener.listen()
    except OSError as error:
        listener.close()
        reason = REASONS.get(error.errno or 0, explain(error))
        raise UsageError(f"--listen {text}: {reason}") from None
    return listener


class TextServer(Generic[T]):
    """Serves `text` of a `snapshot`. The thread that calls `answer` takes this, so that nothing else reads what that thread changes; the
    text, which takes longer, is made beside it."""

    def __init__(self, listener: socket.socket, snapshot: Callable[[], T], text: Callable[[T], str]) -> None:
        self._listener, self._snapshot, self._make = listener, snapshot, text
        self._local = _is_loopback(listener.getsockname()[0])
        self._wanted = Event()
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(lambda loop, context: None)
        self._thread = Thread(target=self._run, name="metrics", daemon=True)
        self._writers: dict[asyncio.StreamWriter, None] = {}
        """The open connections, the oldest first."""
        self._text, self._fresh_until = b"", 0.0
        self._next: asyncio.Future[None] | None = None
        self._failure: Exception | None = None

    def __enter__(self) -> Self:
        host, port = self._listener.getsockname()[:2]
        say(f"serving http://{f'[{host}]' if ':' in host else host}:{port}{PATH}")
        if not self._local:
            say(f"--listen {host}: not only this host can read the metrics; there is neither a password nor TLS")
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._listener.close()

    def answer(self) -> None:
        """Take a snapshot if a peer waits for the text; raise what failed when this was made."""
        if self._failure is not None:
            raise self._failure
        if self._wanted.is_set():
            self._wanted.clear()
            self._loop.call_soon_threadsafe(self._publish, self._snapshot())

    def _publish(self, snapshot: T) -> None:
        begin = monotonic()
        try:
            self._text = self._make(snapshot).encode()
        except Exception as error:
            self._failure = error
            return
        now = monotonic()
        self._fresh_until = now + max(FRESH, SHARE * (now - begin))
        if self._next is not None:
            self._next.set_result(None)
            self._next = None

    def _run(self) -> None:
        # Signals are for the main thread, which may be waiting
        if hasattr(signal, "pthread_sigmask"):
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        self._loop.create_task(self._serve())
        self._loop.run_forever()
        for writer in self._writers:
            writer.transport.abort()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0))

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._connected, sock=self._listener, limit=HEADER)
        await server.serve_forever()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers[writer] = None
        if len(self._writers) > CONNECTIONS:
            oldest = next(iter(self._writers))
            del self._writers[oldest]
            oldest.transport.abort()
        try:
            async with asyncio.timeout(SECONDS):
                writer.write(await self._response(reader))
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (OSError, EOFError, TimeoutError):
            writer.transport.abort()
        finally:
            self._writers.pop(writer, None)

    async def _response(self, reader: asyncio.StreamReader) -> bytes:
        """Return the response to one request."""
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            return _response("431 Request Header Fields Too Large", b"")
        request, *fields = head.split(b"\r\n")
        method, _, rest = request.partition(b" ")
        path, _, version = rest.partition(b" ")
        if not version.startswith(b"HTTP/1."):
            return _response("400 Bad Request", b"")
        if self._local and not all(_is_loopback(host) for host in _hosts(fields)):
            return _response("421 Misdirected Request", MISDIRECTED.encode())
        if method not in (b"GET", b"HEAD"):
            return _response("405 Method Not Allowed", b"", "Allow: GET, HEAD\r\n")
        path = path.partition(b"?")[0]
        if path not in (PATH.encode(), b"/"):
            return _response("404 Not Found", INDEX.encode())
        text = INDEX.encode() if path == b"/" else await self._current()
        return _response("200 OK", text, bodyless=method == b"HEAD")

    async def _current(self) -> bytes:
        """Return the text, which is made now unless that of the last request is fresh."""
        if monotonic() >= self._fresh_until:
            if self._next is None:
                self._next = self._loop.create_future()
                self._wanted.set()
            await asyncio.shield(self._next)
        return self._text


def _hosts(fields: list[bytes]) -> list[str]:
    """Return the names or addresses in the Host fields of a request, without ports."""
    named = [value for name, _, value in (one.partition(b":") for one in fields) if name.strip().lower() == b"host"]
    return [re.sub(r":\d*$", "", value.strip().decode("latin-1")).strip("[]").lower() for value in named]


def _is_loopback(host: str) -> bool:
    """Return whether this is an address of this host's loopback interface, or its name. A page in a browser that has its own name point
    here (DNS rebinding) still sends that name."""
    try:
        return host == "localhost" or ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False


def _response(status: str, body: bytes, more: str = "", bodyless: bool = False) -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {TYPE}\r\nContent-Length: {len(body)}\r\n{more}Connection: close\r\n\r\n"
    return head.encode() + (b"" if bodyless else body)
