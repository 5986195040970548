"""Two peers on the loopback interface that say what the sides of a captured conversation said, and a live capture beside them."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.segments import reassembled
from tests.support.waiting import PATIENCE

GOLDEN = Path(__file__).parents[2] / "captures" / "golden"


def may_capture() -> bool:
    try:
        socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0).close()
    except (OSError, AttributeError):
        return False
    return True


def needs_capture(test: Any) -> Any:
    """Mark a test that captures from an interface, and skip it where that is not allowed."""
    skip = pytest.mark.skipif(not may_capture(), reason="capturing needs Linux and the capability CAP_NET_RAW")
    return pytest.mark.live(skip(test))


def said(path: Path) -> list[tuple[int, bytes]]:
    """What the sides of the first conversation of a capture sent, segment by segment in the order in which it became certain."""
    pieces: list[tuple[int, int, int, int, bytes]] = []
    for story in reassembled(path)[:1]:
        for side in (0, 1):
            assert not story.gaps(side), f"{path.name} lacks bytes"
            pieces += [(release, order, side, at, data) for _, at, data, order, release, _, _ in story.items[side]]
    pieces.sort()
    return [(piece[2], piece[4]) for piece in pieces]


class Pair:
    """A client (side 0) and a server (side 1) that are connected over the loopback interface."""

    def __init__(self, port: int = 0) -> None:
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("127.0.0.1", port))
            listener.listen(1)
            self.port: int = listener.getsockname()[1]
            client = socket.create_connection(("127.0.0.1", self.port), PATIENCE)
            server, _ = listener.accept()
        self.sides = (client, server)
        for side in self.sides:
            side.settimeout(PATIENCE)
            side.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> Pair:
        return self

    def __exit__(self, *_: object) -> None:
        """Each side ends, and has heard that the other one does: by then all that was sent has gone by."""
        for one, other in (self.sides, self.sides[::-1]):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_WR)
                while other.recv(65_536):
                    pass
        for side in self.sides:
            side.close()

    def sent_again(self) -> int:
        """How many segments the kernel has sent more than once: on a busy machine it may believe that they were lost."""
        return sum(struct.unpack_from("=I", side.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104), 100)[0] for side in self.sides)

    def say(self, side: int, data: bytes) -> None:
        """One side sends, the other reads all of it."""
        self.sides[side].sendall(data)
        left = len(data)
        while left:
            left -= len(self.sides[1 - side].recv(left))

    def replay(self, what: Iterable[tuple[int, bytes]]) -> None:
        for side, data in what:
            self.say(side, data)


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


class Capture:
    """`streamdump` as a process of its own, from the moment it captures."""

    def __init__(self, *argv: str, **more: Any) -> None:
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **more}
        self.process = subprocess.Popen([sys.executable, "-m", "streamdump", *argv], bufsize=0, **pipes)
        self.told = b""
        self._rest = b""
        try:
            self.tells("the kernel granted a buffer")
        except BaseException:
            self.kill()
            raise

    def tells(self, what: str) -> None:
        """Wait until it has said this on standard error."""
        text = what.encode()
        assert self.process.stderr is not None
        while text not in self.told:
            assert select.select([self.process.stderr], [], [], PATIENCE)[0], self.told
            part = os.read(self.process.stderr.fileno(), 65_536)
            assert part, self.told.decode()
            self.told += part

    def has_line(self) -> bool:
        """Whether a part of a line is there already."""
        return bool(self._rest) or bool(select.select([self.process.stdout], [], [], 0)[0])

    def line(self) -> str:
        """The next line of standard output, as soon as it is there."""
        assert self.process.stdout is not None
        while b"\n" not in self._rest:
            assert select.select([self.process.stdout], [], [], PATIENCE)[0], "nothing was printed"
            part = os.read(self.process.stdout.fileno(), 1 << 20)
            assert part, "the capture ended"
            self._rest += part
        line, self._rest = self._rest.split(b"\n", 1)
        return line.decode()

    def kill(self) -> None:
        """End it whatever it does."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()

    def finish(self, number: int | None = signal.SIGINT) -> tuple[int, str, str]:
        """End it with a signal (None: it ends by itself): the exit code, the rest of standard output, and standard error."""
        if number is not None:
            self.process.send_signal(number)
        out, err = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, (self._rest + (out or b"")).decode(), (self.told + err).decode()


@contextlib.contextmanager
def capturing(*argv: str, **more: Any) -> Iterator[Capture]:
    capture = Capture(*argv, **more)
    try:
        yield capture
    finally:
        capture.kill()


def records(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]
