"""The processes of this host that are behind connections, from /proc of Linux.

A connection is looked up when its first packet arrives, and a few times more, as a server's socket has no process before it is accepted:
its ends in net/tcp and net/tcp6 give the inode of a socket, and the open files of processes show which one has it. Other network
namespaces are searched for connections that this one does not have. What the user may not read stays unknown. The control groups of a
process show its container's id and its pod's UID; their names are not in /proc, and container runtimes are not asked.

The cost is bounded: after each look there is a pause of many times its duration, however many connections there are.
"""

from __future__ import annotations

import os
import re
import struct
from collections import OrderedDict
from ipaddress import ip_address
from itertools import islice
from time import monotonic
from typing import NamedTuple

from ..model import Process
from .ends import split
from .packet_processes import clipped

AGES = (0.0, 0.1, 0.5, 2.0)
"""Seconds after the beginning of a connection at which it is looked up, at the earliest."""

PAUSE, SHARE = 0.05, 20
"""The least seconds between two searches, and the pause after one as a multiple of its duration: 5 % of one processor."""

MAX_PENDING = 1_024
"""Connections that wait to be looked up; further ones stay unknown."""

MAX_TABLE, MAX_NAMESPACES = 32 << 20, 64
"""Bytes that are read of a table of sockets, and namespaces besides the own that are searched."""

MAX_SCAN_S, FILES, RECENT = 0.25, 1_024, 64
"""How long the open files of processes are searched at a time, and how many are between two looks at the clock. Processes that are searched
first: those found last, and the newest."""

MAX_SOCKETS = 65_536
"""Sockets of which the process is remembered."""

_CONTAINER = re.compile(r"[0-9a-f]{64}")
"""The id of a container in the path of a control group: Docker, containerd, CRI-O and Podman."""

_POD = re.compile(r"pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})(?:\.slice)?/")
"""The UID of a pod in the paths that the kubelet makes; those of pods that a file describes have no hyphens."""

SHORT_ID = 12
"""Characters of a container's id that are shown, as by its tools."""

INODE = 9
"""The field of a line in a table of sockets; those of the ends are 1 and 2."""

MAPPED = bytes(10) + b"\xff\xff"
"""An IPv4 address in a table of IPv6 begins with it."""


class HostProcess(NamedTuple):
    """The process behind a side of a conversation."""

    conversation: int
    side: int
    process: Process


class _Pending:
    """A conversation that is looked up: by side what its line in a table of sockets contains. `local`: it is of this namespace's loopback
    interface; other namespaces have the same addresses."""

    __slots__ = ("conversation", "keys", "local", "looks", "started")

    def __init__(self, conversation: int, keys: dict[int, tuple[bytes, ...]], started: float, local: bool) -> None:
        self.conversation = conversation
        self.local = local
        self.keys = keys
        self.started = started
        self.looks = 0


class _Owner(NamedTuple):
    """A process that has a socket. `shared`: others have it, too."""

    pid: int
    shared: bool


Place = tuple[int, int]
"""A conversation and a side."""


class HostProcesses:
    """Finds the processes behind conversations."""

    def __init__(self, proc: str = "/proc") -> None:
        self._proc = proc
        self._pending: dict[frozenset[tuple[bytes, bytes]], _Pending] = {}
        """By both ends: a socket that is found for these is of their last connection."""
        self._next = 0.0
        self._sockets: OrderedDict[int, _Owner] = OrderedDict()
        """By inode, as of the last search."""
        self._namespaces: dict[str, str] = {}
        """A process of each other network namespace."""
        self._at = 0
        """Where among the processes the last search stopped, if it took too long."""

    def begin(self, conversation: int, ends: bytes) -> None:
        """Look up a conversation from now on; `ends`: those of segments from side 0 to side 1."""
        one, two, sport, dport, _ = split(ends)
        first, second = (one, sport), (two, dport)
        place = frozenset((first, second))
        self._pending.pop(place, None)
        if len(self._pending) < MAX_PENDING:
            keys = {0: socket_keys(first, second), 1: socket_keys(second, first)}
            self._pending[place] = _Pending(conversation, keys, monotonic(), ip_address(one).is_loopback)

    def found(self) -> list[HostProcess]:
        """Return what was found since the last call."""
        now = monotonic()
        due = [] if now < self._next else [one for one in self._pending.values() if now - one.started >= AGES[one.looks]]
        if not due:
            return []
        found = self._look(due)
        for one in due:
            one.looks += 1
        self._pending = {place: one for place, one in self._pending.items() if one.keys and one.looks < len(AGES)}
        after = monotonic()
        self._next = after + max(PAUSE, SHARE * (after - now))
        return found

    def _look(self, due: list[_Pending]) -> list[HostProcess]:
        """Look these up once; a side that is found is not looked up again."""
        inodes = self._inodes("self", due)
        here = {conversation for conversation, _ in inodes}
        elsewhere = [one for one in due if one.conversation not in here and one.looks and not one.local]
        if any(inode not in self._sockets for inode in inodes.values()) or (elsewhere and not self._namespaces):
            self._search()
        if elsewhere:
            more = self._elsewhere(elsewhere)
            if any(inode not in self._sockets for inode in more.values()):
                self._search()
            inodes |= more
        found: list[HostProcess] = []
        for one in due:
            for side in list(one.keys):
                owner = self._sockets.get(inodes.get((one.conversation, side), 0))
                process = None if owner is None else self.process(owner)
                if process is not None:
                    del one.keys[side]
                    found.append(HostProcess(one.conversation, side, process))
        return found

    def _inodes(self, pid: str, due: list[_Pending]) -> dict[Place, int]:
        """Return the inodes of sockets, as the network namespace of a process shows them."""
        places = {key: (one.conversation, side) for one in due for side, keys in one.keys.items() for key in keys}
        found: dict[Place, int] = {}
        for name in ("tcp", "tcp6"):
            for line in self._read(f"{pid}/net/{name}", MAX_TABLE).split(b"\n"):
                fields = line.split(None, INODE + 1)
                place = places.get(b" %b %b " % (fields[1], fields[2])) if len(fields) > INODE else None
                # 0: no process has the socket yet
                if place is not None and fields[INODE].isdigit() and int(fields[INODE]):
                    found[place] = int(fields[INODE])
        return found

    def _elsewhere(self, due: list[_Pending]) -> dict[Place, int]:
        """Return the inodes in other namespaces; none where several have such a connection."""
        found: dict[Place, int] = {}
        several: set[Place] = set()
        for pid in self._namespaces.values():
            for place, inode in self._inodes(pid, due).items():
                if found.setdefault(place, inode) != inode:
                    several.add(place)
        return {place: inode for place, inode in found.items() if place not in several}

    def _search(self) -> None:
        """Search the open files of processes for sockets, the newest processes first; after too long the rest is left to the next time."""
        until = monotonic() + MAX_SCAN_S
        own = self._link("self/ns/net")
        names = sorted([name for name in self._names("") if name.isdecimal()], key=int, reverse=True)
        recent = [str(owner.pid) for owner in islice(reversed(self._sockets.values()), RECENT)]
        first = dict.fromkeys([*recent, *names[:RECENT]])
        rest = [name for name in [*names[self._at :], *names[: self._at]] if name not in first]
        self._namespaces.clear()
        for at, name in enumerate([*first, *rest]):
            if monotonic() > until:
                # The name that comes next, or the first one of the rest again
                self._at = names.index(rest[max(0, at - len(first))]) if rest else 0
                return
            namespace = self._link(f"{name}/ns/net")
            if namespace not in (own, "") and len(self._namespaces) < MAX_NAMESPACES:
                self._namespaces.setdefault(namespace, name)
            self._note_sockets(int(name), until)
        self._at = 0

    def _note_sockets(self, pid: int, until: float) -> None:
        """Remember the sockets of a process."""
        for at, name in enumerate(self._names(f"{pid}/fd")):
            if at % FILES == 0 and monotonic() > until:
                return
            target = self._link(f"{pid}/fd/{name}")
            if not target.startswith("socket:["):
                continue
            inode = int(target[8:-1])
            known = self._sockets.get(inode)
            if known is None:
                self._sockets[inode] = _Owner(pid, False)
            elif known.pid != pid and self._names(f"{known.pid}/fd"):
                self._sockets[inode] = known._replace(shared=True)
            else:
                self._sockets[inode] = known._replace(pid=pid)
            self._sockets.move_to_end(inode)
        while len(self._sockets) > MAX_SOCKETS:
            self._sockets.popitem(last=False)

    def process(self, owner: _Owner) -> Process | None:
        """Return the description of a process; None if it has ended."""
        name = self._link(f"{owner.pid}/exe").removesuffix(" (deleted)").rpartition("/")[2]
        name = name or self._read(f"{owner.pid}/comm", 64).decode("utf-8", "backslashreplace").rstrip("\n")
        if not name:
            return None
        groups = self._read(f"{owner.pid}/cgroup", 4_096).decode("utf-8", "backslashreplace")
        container, pod = _last(_CONTAINER, groups), _last(_POD, groups)
        return Process(
            None, clipped(name), owner.pid, container and container[:SHORT_ID], pod and pod.replace("_", "-"), others=owner.shared
        )

    def _read(self, path: str, most: int) -> bytes:
        """Return the beginning of a file; nothing if it cannot be read."""
        try:
            with open(f"{self._proc}/{path}", "rb") as file:  # noqa: PTH123
                return file.read(most)
        except OSError:
            return b""

    def _names(self, path: str) -> list[str]:
        try:
            return os.listdir(f"{self._proc}/{path}")  # noqa: PTH208
        except OSError:
            return []

    def _link(self, path: str) -> str:
        try:
            return os.readlink(f"{self._proc}/{path}")  # noqa: PTH115
        except OSError:
            return ""


def _last(pattern: re.Pattern[str], text: str) -> str | None:
    """Return what the last match of a pattern contains: inside other containers that is the innermost one."""
    found: list[str] = pattern.findall(text)
    return found[-1] if found else None


def socket_keys(local: tuple[bytes, bytes], remote: tuple[bytes, bytes]) -> tuple[bytes, ...]:
    """Return what lines of net/tcp and net/tcp6 contain for a socket with these ends, each address and port."""
    every = [(local[0], remote[0])]
    if len(local[0]) == 4:
        every.append((MAPPED + local[0], MAPPED + remote[0]))
    return tuple(b" %b:%04X %b:%04X " % (_hex(one), _port(local), _hex(two), _port(remote)) for one, two in every)


def _hex(address: bytes) -> bytes:
    """The words of an address as the kernel prints them, in this host's byte order."""
    return b"".join([b"%08X" % word for word in struct.unpack(f"={len(address) // 4}I", address)])


def _port(end: tuple[bytes, bytes]) -> int:
    return int.from_bytes(end[1], "big")
