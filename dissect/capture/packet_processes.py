"""The process that a packet belongs to, as pcapng files state it.

These are read, with the names that their writers use:

- ptcpdump: packet comments of lines `key: value` (`PID`, `Cmd`, `ContainerName`, `PodName`, `PodNamespace`);
- Wireshark 4.7: the option epb_processid_threadid of a packet, and process information in custom blocks of the enterprise number 32622,
  entry type 3, which is little-endian in any section (wiretap/pcapng-wireshark-custom.c);
- tcpdump of macOS: process blocks of type 0x80000001, and a packet's option 32769, the index of its block.

Comments of other programs are not read; etl2pcapng's name the process that was running when the packet passed, often another one.
"""

from __future__ import annotations

import struct
from bisect import insort
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from ..model import Process
from .pcapng import each_option

if TYPE_CHECKING:
    from .address_names import AddressNames

NAMES_BLOCK, CUSTOM_BLOCKS, DARWIN_BLOCK = 4, (0xBAD, 0x40000BAD), 0x80000001
"""Types of blocks."""

COMMENT, FLAGS, PROCESS_THREAD, DARWIN_PROCESS = 1, 2, 8, 32769
"""Options of packets."""

INBOUND, OUTBOUND = 1, 2
"""The direction in the flags of a packet."""

WIRESHARK, PROCESS_ENTRY = 32622, 3
"""The enterprise number of custom blocks, and the type of their entry."""

NAME, PATH, START = 2, 3, 9
"""Options of a process block."""

MAX_OPTIONS, MAX_OPTION_BYTES = 16, 64 << 10
"""Options of a packet or block that are read, and how far apart they may be."""

MAX_COMMENT, MAX_LINES = 4 << 10, 8
"""The most bytes and lines of a comment that are read: the fields of interest come first."""

MAX_TEXT = 128
"""Characters of a name; of a longer one the first are kept, and an ellipsis. Pods of Kubernetes may have 253."""

MAX_POD = 253

MAX_CACHED, MAX_CACHED_BYTES = 1_024, 4 << 10
"""Different options that are remembered, and their size: most packets have those of others."""

MAX_PROCESSES = 16_384
"""Processes that the blocks of a section describe; further ones have no name."""

COMMENT_KEYS = {
    b"PID": "pid",
    b"Cmd": "process",
    b"Command": "process",
    b"ContainerName": "container",
    b"ContainerId": "container_id",
    b"PodName": "pod",
    b"PodNamespace": "namespace",
}

FREE_TEXT = (b"Args", b"ParentArgs", b"ThreadName", b"ContainerLabels", b"PodLabels", b"PodAnnotations")
"""Keys whose values may contain line breaks, and lines that look like others: nothing of a comment is read after them."""


class PacketProcess(NamedTuple):
    """The process of the packet with this number. `outbound`: whether it sent the packet; None if unknown."""

    number: int
    outbound: bool | None
    process: Process


Waiting = deque[PacketProcess]


class _Options(NamedTuple):
    """What the options of a packet say: the direction, the process by its comments, its PID, and the index of its block."""

    outbound: bool | None
    process: Process | None
    pid: int
    block: int | None


NOTHING = _Options(None, None, 0, None)


class ProcessReader:
    """Reads the options of packets and the process blocks of a file."""

    def __init__(self) -> None:
        self.wanted = False
        """Whether there is a consumer."""
        self.names: AddressNames | None = None
        """The names of addresses, if there is a consumer."""
        self.waiting: Waiting = deque()
        """The processes of packets read so far; the consumer removes them."""
        self._cached: dict[bytes, _Options] = {}
        self.begin("<")

    def begin(self, order: str) -> None:
        """Begin a section, which may be of another machine."""
        self._order = order
        self._started: dict[int, list[tuple[int, int, Process]]] = {}
        """By PID: start time, number of the block and process, sorted."""
        self._indexed: list[Process] = []
        self._cached.clear()

    def packet(self, buffer: bytes, start: int, end: int, number: int, time_ns: int) -> None:
        """Read the options of a packet, buffer[start:end]."""
        if not self.wanted:
            return
        key = buffer[start : min(end, start + MAX_OPTION_BYTES)]
        if len(key) > MAX_CACHED_BYTES:
            found = self._options(key)
        elif (known := self._cached.get(key)) is not None:
            found = known
        else:
            if len(self._cached) >= MAX_CACHED:
                self._cached.clear()
            found = self._cached[key] = self._options(key)
        if found is NOTHING:
            return
        process, outbound = found.process, found.outbound
        if process is not None:
            # What leaves a container comes in at the host's end of its veth pair: ptcpdump names the sender there, elsewhere the receiver
            outbound = outbound or None
        elif found.pid:
            process = self._at(found.pid, time_ns)
            # The option is of the process that sent the packet, unless that came from another machine
            outbound = outbound is not False
        elif found.block is not None and found.block < len(self._indexed):
            process = self._indexed[found.block]
        if process is not None:
            self.waiting.append(PacketProcess(number, outbound, process))

    def block(self, kind: int, body: bytes, before: int) -> bool:
        """Read the body of a block, which follows this number of packets, if it is of names or processes; return whether packets after it
        may refer to it."""
        known = len(self._indexed)
        if kind in CUSTOM_BLOCKS:
            self.custom_block(body)
        elif kind == DARWIN_BLOCK:
            self.darwin_block(body)
        elif kind == NAMES_BLOCK and self.names is not None:
            self.names.read(body, self._order, before)
        return len(self._indexed) > known

    def custom_block(self, body: bytes) -> None:
        """Read the body of a custom block."""
        if len(body) < 16 or struct.unpack_from(self._order + "I", body)[0] != WIRESHARK:
            return
        kind, size, pid = struct.unpack_from("<III", body, 4)
        if kind != PROCESS_ENTRY or not pid or len(self._indexed) >= MAX_PROCESSES:
            return
        name, start = b"", 0
        for code, value in each_option(body[16 : 12 + size], "<", MAX_OPTIONS):
            if code == NAME or (code == PATH and not name):
                name = value if code == NAME else value.rpartition(b"/")[2]
            elif code == START and len(value) == 8:
                (start,) = struct.unpack("<Q", value)
        process = Process(None, text_of(name), pid)
        # Counts the blocks, too
        self._indexed.append(process)
        insort(self._started.setdefault(pid, []), (start, len(self._indexed), process))

    def darwin_block(self, body: bytes) -> None:
        """Read the body of a process block of macOS."""
        if len(body) < 4 or len(self._indexed) >= MAX_PROCESSES:
            return
        (pid,) = struct.unpack_from(self._order + "I", body)
        names = [value for code, value in each_option(body[4:], self._order, MAX_OPTIONS) if code == NAME]
        self._indexed.append(Process(None, text_of(names[0]) if names else None, pid or None))

    def _at(self, pid: int, time_ns: int) -> Process:
        """Return the process that had a PID at this time: the last to have started, otherwise the first."""
        known = self._started.get(pid)
        if known is None:
            return Process(None, None, pid)
        return next((process for start, _, process in reversed(known[-MAX_OPTIONS:]) if start <= time_ns), known[0][2])

    def _options(self, region: bytes) -> _Options:
        outbound: bool | None = None
        pid, index = 0, None
        comments: dict[str, bytes] = {}
        for code, value in each_option(region, self._order, MAX_OPTIONS):
            if code == COMMENT:
                _read_comment(value, comments)
            elif code == FLAGS and len(value) == 4:
                direction = struct.unpack(self._order + "I", value)[0] & 3
                outbound = None if direction not in (INBOUND, OUTBOUND) else direction == OUTBOUND
            elif code == PROCESS_THREAD and len(value) == 8:
                pid, _ = struct.unpack(self._order + "II", value)
            elif code == DARWIN_PROCESS and len(value) == 4:
                (index,) = struct.unpack(self._order + "I", value)
        process = _of_comments(comments) if comments else None
        return NOTHING if process is None and not pid and index is None else _Options(outbound, process, pid, index)


def _read_comment(comment: bytes, found: dict[str, bytes]) -> None:
    """Add the values of a comment; the first one of each key counts."""
    lines = comment[:MAX_COMMENT].split(b"\n", MAX_LINES)[:MAX_LINES]
    # A value that is cut may be another name
    for line in lines if len(comment) <= MAX_COMMENT else lines[:-1]:
        key, colon, value = line.partition(b":")
        key = key.strip()
        if not colon or key in FREE_TEXT:
            return
        name = COMMENT_KEYS.get(key)
        if name is not None and (value := value.strip()):
            found.setdefault(name, value)


def _of_comments(found: dict[str, bytes]) -> Process | None:
    """Return the process that comments describe; None if these say nothing of it."""
    number = found.get("pid", b"")
    pid = int(number) if number.isdigit() and len(number) <= 10 else None
    pid = pid if pid and pid < 1 << 32 else None
    command, container = found.get("process", b""), text_of(found.get("container") or found.get("container_id"))
    pod = text_of(found.get("pod"), MAX_POD)
    if pid is None and container is None and pod is None:
        # Another program's comment
        return None
    name = text_of(command.rpartition(b"/")[2] or command)
    namespace = None if pod is None else text_of(found.get("namespace"))
    return Process(None, name, pid, container, pod, namespace)


def clipped(text: str | None, most: int = MAX_TEXT) -> str | None:
    """Return the text of a name, of a long one only the first characters."""
    return text if text is None or len(text) <= most else f"{text[:most]}…"


def text_of(name: bytes | None, most: int = MAX_TEXT) -> str | None:
    """Return the text of a name; None if it is empty."""
    return clipped((name or b"")[: 4 * most].split(b"\0")[0].decode("utf-8", "backslashreplace"), most) or None
