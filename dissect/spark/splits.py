"""Cuts captures into byte ranges that are read apart, so that no packet is read twice or not at all.

A record of a pcap or pcapng file has no mark, so every file is walked through once before it is read (`examine`), which cuts it between
two packets. A range ends where the next one begins, and is read up to the last packet that was counted in it. The walk also finds what
has to be known of the packets before a range (their numbers go on, and the latest time decides the order among several files), what is
in it, and damage: a damaged file ends where a single reader would have ended.

What describes the packets of a file comes before the first one, and is read again before each range. From where it changes on, a file is
not cut any more.
"""

from __future__ import annotations

import glob
import hashlib
import itertools
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase
from functools import partial
from operator import attrgetter
from typing import Any, BinaryIO

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..capture import pcap, pcapng
from ..capture.blocks import BLOCK, UNREADABLE, Blocks, RawInput
from ..capture.ends import network_key
from ..capture.files import CaptureReader, named_as_capture
from ..capture.link import LinkParser
from ..capture.packet_processes import PacketProcess
from ..capture.unpack import packing
from ..conversation.run_state import EVERY
from ..diagnose.network import NetworkEvidence
from ..errors import CaptureError, NoCapture, refuse
from ..model import Packet
from . import storage
from .keys import key_of

TARGET = 64 << 20
"""Bytes of a range, unless asked for otherwise."""

HEAD = 4096
"""First bytes by which a file is recognised."""

APART = {
    pcapng.SECTION: "the file has several sections",
    pcapng.INTERFACE: "interfaces are described in mid-file",
    pcapng.SIMPLE: "packets have no time",
}
OTHERS = "processes are described in mid-file"
"""Why a file is not cut behind a block of this type, or of another one that others depend on."""

PIECES = 1024
"""Bytes of a range for each packet of a group; a range ends between two groups, near the size that is asked for."""

NEVER = -(1 << 62)

MANY = 1 << 20
"""Limit of directions of conversations of a range; beyond it they are not distinguished by the range that they lie in. A range of
`TARGET` bytes has fewer packets."""

AT_ONCE = 16
"""Requests to a store at the same time."""


class FileError(msgspec.Struct):
    """An error of a file: `lost` bytes of it are not read (packed ones where it is packed), None if unknown."""

    file: int
    path: str
    offset: int | None
    packet: int | None
    reason: str
    lost: int | None
    fatal: bool = True
    """Whether packets are missing because of it."""

    @property
    def code(self) -> str:
        """What kind of problem it is, in a word that stays the same when its sentence changes."""
        found = (code for code, words in CODES.items() if words in self.reason)
        return next(found, "unreadable" if self.offset is None else "damaged")


CODES = {
    "one-piece": "; read in one piece from byte ",
    "grown": "has another size than when it was read",
    "deleted": "was deleted or written anew before it was read",
    "missing": "no such file",
    "empty": "is empty",
    "not-a-capture": "is not a capture",
    "unsupported": "not supported",
    "no-codec": "reading it needs the package",
    "truncated": "cut off in",
}
"""Words in the sentences of problems, by code."""


class Split(msgspec.Struct, kw_only=True):
    """A byte range of a capture, or all of a packed one, and what is in it.

    A reader sees the first `head` bytes of the file before it: the file's header, or what describes the section and its interfaces.
    """

    file: int
    path: str
    start: int = 0
    stop: int
    head: int = 0
    network: int = 0
    """Number of the network that its conversations are kept apart in."""
    packets: int = 0
    flows: bytes | None = b""
    """The `flow_id` of its segments, each once, sorted; None where there are too many."""
    first_ns: int = NEVER
    """The time of its first packet."""
    end_ns: tuple[int, int] = (NEVER, NEVER)
    """The time of the latest packet of the file up to the end of this range, and the time of the last one."""
    middle_ns: int = NEVER
    """The time in the middle of its last packets, which a few with a wrong one do not change."""
    aside: NetworkEvidence | None = None
    """Evidence of ICMP and DNS in it, where that was asked for."""
    number: int = 0
    """Packets of the file before it."""
    latest_ns: int = NEVER
    """The time of the latest of them."""
    after: int = 0
    """Packets up to this number were read before."""

    @property
    def size(self) -> int:
        """Its bytes."""
        return self.stop - self.start


class PlannedFile(msgspec.Struct):
    """A file that is read."""

    path: str
    head: str = ""
    """Digest of its first bytes, unpacked; empty where it is no capture."""
    size: int = 0
    """Its bytes, those of its copy where there is one; of a packed one that is damaged, unpacked up to there."""
    place: str = ""
    """Where its bytes are: itself, or a copy."""
    packed: bool = False
    error: CaptureError | None = None
    """Why it is not a capture."""


class Plan(msgspec.Struct):
    """How some captures are read."""

    files: dict[int, PlannedFile]
    """By index."""
    splits: list[Split]
    """The ranges that have packets."""
    errors: list[FileError]
    secrets: list[str] = msgspec.field(default_factory=list)
    """Files that hold keys of TLS."""

    @property
    def network(self) -> NetworkEvidence:
        """Evidence of ICMP and DNS."""
        found = NetworkEvidence()
        for split in self.splits:
            if split.aside is not None:
                found.merge(split.aside, split.file)
        return found

    @property
    def packets(self) -> int:
        return sum(split.packets for split in self.splits)

    @property
    def bytes(self) -> int:
        return sum(split.size for split in self.splits)


def expand(sources: Sequence[str], others: list[str] | None = None) -> list[str]:
    """The names of the files that these files, folders and patterns name, each once, those of a folder or pattern by name.

    `others`: gets those of a folder or pattern that neither are called captures nor are, which are left out.

    Raises `CaptureError` for a file that is not there, and `UsageError` where there is none in a folder, or none of a pattern.
    """
    found: dict[str, None] = {}
    for source in sources:
        name = storage.normal(source)
        names = _named_by(source, name)
        if others is not None and names != [name]:
            asked = [one for one in names if not named_as_capture(one)]
            left_out = [one for one, piece in zip(asked, each(begin, asked), strict=True) if isinstance(piece.error, NoCapture)]
            others += left_out
            names = sorted(set(names) - set(left_out))
            refuse((not names, f"{source}: none of the files is a capture"))
        found.update(dict.fromkeys(names))
    return list(found)


def _named_by(source: str, name: str) -> list[str]:
    path = storage.local(name)
    if storage.status(name) is not None or (path is not None and path.exists() and not path.is_dir()):
        return [name]
    found = list(storage.listed(name)) or (sorted(_fitting(name)) if glob.has_magic(name) else [])
    refuse(
        (not found and glob.has_magic(name), f"{source}: no file has such a name"),
        (not found and path is not None and path.is_dir(), f"{source}: the folder has no files"),
    )
    if not found:
        raise CaptureError("no such file", source)
    return found


def _fitting(pattern: str) -> list[str]:
    """The files that a pattern names; hidden ones only where it names such."""
    wanted = pattern.split("/")
    folder = "/".join(itertools.takewhile(lambda part: not glob.has_magic(part), wanted))
    if storage.local(pattern) is None:
        found: Iterable[str] = storage.listed(folder)
    else:
        found = filter(os.path.isfile, glob.iglob(pattern, recursive=True))  # noqa: PTH207 - it may be absolute
    return [storage.normal(name) for name in found if _fits(name.split("/"), wanted)]


def _fits(parts: Sequence[str], wanted: Sequence[str]) -> bool:
    """Whether the parts of a name fit those of a pattern, of which `**` stands for any folders."""
    if not parts or not wanted:
        return parts == wanted
    hidden = parts[0].startswith(storage.HIDDEN)
    if wanted[0] == "**":
        return _fits(parts, wanted[1:] or ["*"]) or (not hidden and _fits(parts[1:], wanted))
    return fnmatchcase(parts[0], wanted[0]) and hidden <= wanted[0].startswith(storage.HIDDEN) and _fits(parts[1:], wanted[1:])


def stamps(files: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Of each file its size and when it was changed, zeros where it is not there."""
    return {file: (found or (0, 0))[:2] for file, found in zip(files, each(storage.status, files), strict=True)}


def each(function: Callable[[Any], Any], names: Sequence[Any], name: Callable[[Any], str] = str) -> Iterator[Any]:
    """The results of a function for some files (`name` returns its name), for those of an object store several at a time."""
    if len(names) < 2 or storage.local(name(names[0])) is not None:
        return iter(list(map(function, names)))
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return iter(list(pool.map(function, names)))


def plan(
    files: Sequence[str],
    target: int = TARGET,
    run: Callable[[Callable[[Any], Any], Sequence[Any]], Iterable[Any]] | None = None,
    unpacked: Callable[[Sequence[PlannedFile]], Sequence[PlannedFile]] | None = None,
    networks: Sequence[int] = (),
    aside: bool = False,
    fetch: bool = False,
    first: int = 0,
) -> Plan:
    """How these files are read in ranges of about `target` bytes; `run` calls a function for many pieces, perhaps elsewhere.

    `unpacked` calls `unpack` for captures, which otherwise are read as one, and with `fetch` copies others of a store, which otherwise are
    read twice: to be examined, and to be dissected. `networks`: the numbers of the files' networks, where these are kept separate;
    `first`: the index of the first file.
    """
    result = Plan(dict(enumerate(each(begin, files), first)), [], [])
    if unpacked is not None:
        apart = [at for at, one in result.files.items() if one.head and (one.packed or (fetch and storage.local(one.path) is None))]
        result.files.update(zip(apart, unpacked([result.files[at] for at in apart]), strict=True))
    evidence = NetworkEvidence() if aside else None
    complete = [
        Split(file=index, path=one.place, stop=one.size, network=networks[index - first] if networks else 0, aside=evidence)
        for index, one in result.files.items()
    ]
    spread = run or partial(each, name=attrgetter("path"))
    for found, file in zip(spread(partial(examine, target=target), complete), result.files.values(), strict=True):
        result.splits += found.splits
        result.secrets += [file.path for _ in found.secrets]
        for error in found.errors:
            error.path = file.path
            if file.packed and error.fatal:
                error.lost, file.size = (None, file.size) if file.head else (file.size, 0)
        result.errors += found.errors
    return result


def grouped(splits: Sequence[Split], target: int) -> list[list[Split]]:
    """Ranges that one task reads: small files together, up to `target` bytes."""
    groups: list[list[Split]] = []
    room = 0
    for split in splits:
        if split.size > room:
            groups.append([])
            room = target
        groups[-1].append(split)
        room -= split.size
    return groups


def flows_of(splits: Iterable[Split]) -> NDArray[np.int64] | None:
    """The `flow_id` of the conversations in these ranges, each once, sorted; None where there are too many."""
    found = [split.flows for split in splits]
    known = [np.frombuffer(one, np.int64) for one in found if one is not None]
    return np.unique(np.concatenate(known)) if len(known) == len(found) else None


def cut(found: Plan, size: int) -> list[Plan]:
    """A plan as several of at least `size` bytes each, none of whose packets come before those of the one before."""
    ends = {split.file: split.end_ns[0] for split in found.splits}
    spans = {split.file: (split.first_ns, ends[split.file]) for split in reversed(found.splits)}
    units: dict[int, int] = {}
    last, end, left = 0, NEVER, size
    for file, (first_ns, last_ns) in sorted(spans.items(), key=lambda one: one[1]):
        if left <= 0 and first_ns > end:
            last, left = last + 1, size
        units[file] = last
        end = max(end, last_ns)
        left -= found.files[file].size
    made = []
    for unit in range(last + 1):
        # What has no packets is in the last one
        files = {file: one for file, one in found.files.items() if units.get(file, last) == unit}
        splits = [split for split in found.splits if split.file in files]
        errors = [one for one in found.errors if units.get(one.file, last) == unit]
        made.append(msgspec.structs.replace(found, files=files, splits=splits, errors=errors))
    return made


LastPacket = tuple[int, int, int, int]
"""The last packet of files merged by time: the latest time of its file, the index of that, its number there, and its own time."""


def last_packets(splits: Iterable[Split], before: Mapping[int, LastPacket] | None = None) -> dict[int, LastPacket]:
    """Return by network the last packet of these ranges, and of those `before`."""
    found = dict(before or {})
    for split in splits:
        last = split.end_ns[0], split.file, split.number + split.packets, split.end_ns[1]
        found[split.network] = max(last, found.get(split.network, last))
    return found


def first_packet(splits: Iterable[Split]) -> int | None:
    """Return the time of the first packet of files merged by time."""
    return min((split.first_ns for split in splits if not split.number), default=None)


def ends_of(last: Mapping[int, LastPacket], networks: Iterable[tuple[int, int]]) -> dict[int, int]:
    """Return when the capture ended, as `SharedState.ends_ns`; `networks`: of files with their networks."""
    found = {EVERY: last[0][-1]} if 0 in last else {}
    return found | {file: last[network][-1] for file, network in networks if network in last}


def digest(data: bytes) -> str:
    """By which first bytes are compared."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def begin(path: str) -> PlannedFile:
    """A file, and what its first bytes say of it."""
    file = PlannedFile(path, place=path)
    try:
        file.size = (storage.status(path) or (0,))[0]
        with storage.open_input(path) as stream:
            raw = RawInput(stream, path)
            unpacked = packing(raw)
            file.packed = unpacked is not None
            blocks = Blocks(raw, unpacked)
            data = blocks.read(HEAD)
            blocks.unread(data)
            CaptureReader(blocks)
            file.head = digest(data[:HEAD])
    except CaptureError as error:
        file.error = error
    return file


def unpack(pair: tuple[PlannedFile, str]) -> PlannedFile:
    """Unpack a capture into a file; one that is not packed is copied. Return it with its copy; without one, and with the bytes up to the
    damage, where it is damaged: then it is read as it is, which finds where."""
    file, to = pair
    with storage.open_input(file.path) as stream, storage.folder(to).open() as out:
        raw = RawInput(stream, file.path)
        blocks = Blocks(raw, packing(raw))
        try:
            while data := blocks.read():
                out.write(data)
        except CaptureError:
            return msgspec.structs.replace(file, size=out.tell())
    return msgspec.structs.replace(begin(to), path=file.path, packed=file.packed)


def _pieces(stream: BinaryIO, path: str, *parts: tuple[int, int]) -> Iterator[bytes]:
    """The bytes of these parts of a file."""
    raw = RawInput(stream, path)
    for at, stop in parts:
        stream.seek(at)
        while at < stop and (data := raw.read(min(stop - at, BLOCK))):
            yield data
            at += len(data)


def batches(split: Split, owners: dict[int, PacketProcess]) -> Iterator[list[Packet]]:
    """The packets of a range, numbered as in the file, as many as it had when it was examined.

    `owners`: gets by number the processes of those whose process the file names. Raises `CaptureError` where the file has changed since.
    """
    left = split.packets
    with storage.open_input(split.path) as stream:
        raw = RawInput(stream, split.path)
        try:
            blocks = Blocks(raw, packing(raw) or _pieces(stream, split.path, (0, split.head), (split.start, split.stop)))
            blocks.packets = split.number
            reader = CaptureReader(blocks)
            if reader.processes is not None:
                reader.processes.wanted = True
            for packets in reader:
                if reader.processes is not None and reader.processes.waiting:
                    owners.update((one.number, one) for one in reader.processes.waiting)
                    reader.processes.waiting.clear()
                yield packets[:left]
                left -= len(packets)
                if left <= 0:
                    return
            raise CaptureError(f"{left} packets are missing")
        except CaptureError as error:
            if error.reason.startswith(UNREADABLE):
                raise
            at = error.offset
            if at is not None and at >= split.head:
                at += split.start - split.head
            raise CaptureError(f"has changed since it was first looked at: {error.reason}", split.path, at) from error


def examine(file: Split, target: int) -> Plan:
    """Walk through all of a file, and return how it is read in ranges of about `target` bytes, with what they hold."""
    parser, found = LinkParser(), Plan({}, [], [])
    parser.network = network_key(file.network)
    one = _range(file, msgspec.structs.replace(file, stop=0), 0, parser)
    reader = None
    head, landed = 0, file.stop
    try:
        with storage.open_input(file.path) as stream:
            raw = RawInput(stream, file.path)
            unpacked = packing(raw)
            blocks = Blocks(raw, unpacked or _pieces(stream, file.path, (0, file.stop)))
            blocks.places = deque()
            reader = CaptureReader(blocks)
            for packets in reader.batches(max(target // PIECES, 1)):
                while blocks.places[0][0] is not packets[0].buffer:
                    blocks.places.popleft()
                block = pcapng.LEAST[pcapng.SIMPLE if packets[0].untimed else pcapng.ENHANCED] - 4
                begin = blocks.places[0][1] + packets[0].offset - (pcap.RECORD if reader.format == "pcap" else block)
                head = head or begin
                free = unpacked is None and head <= target and not _tied(parser)
                if free and one.start + target <= begin <= file.stop - target // 2:
                    why = next((APART.get(kind, OTHERS) for kind, end in reader.context.items() if end > head), None)
                    if why is None:
                        found.splits.append(_ended(one, begin, parser))
                        one = _range(file, one, head, parser)
                    else:
                        reason = f"{why}; read in one piece from byte {one.start}"
                        found.errors.append(FileError(file.file, file.path, one.start, one.number or None, reason, 0, False))
                        target = file.stop
                _add(one, packets, parser)
    except CaptureError as error:
        # Of a file that is cut off in its first bytes nothing is read
        landed = one.start if reader is None or error.offset is None else error.offset
        found.errors.append(FileError(file.file, file.path, error.offset, error.packet, error.reason, file.stop - landed))
    if found.splits and _tied(parser):
        return examine(file, file.stop)
    if one.packets:
        found.splits.append(_ended(one, landed, parser))
    found.secrets = [file.path] if reader is not None and reader.secrets else []
    return found


def _tied(parser: LinkParser) -> bool:
    """Whether packets depend on others anywhere: of a Linux cooked capture, any may repeat one; a fragment needs the others."""
    return parser.cooked or parser.counters.fragments > 0


def _range(file: Split, before: Split, head: int, parser: LinkParser) -> Split:
    """The range of a file that begins where the one before it ends."""
    aside = None if file.aside is None else NetworkEvidence()
    parser.seen, parser.aside = set(), None if aside is None else aside.read
    number, latest_ns = before.number + before.packets, before.end_ns[0]
    ends = latest_ns, NEVER
    return msgspec.structs.replace(file, start=before.stop, head=head, number=number, latest_ns=latest_ns, end_ns=ends, aside=aside)


def _add(one: Split, packets: list[Packet], parser: LinkParser) -> None:
    """Add packets to the end of a range."""
    times = [packet.time_ns for packet in packets]
    one.first_ns = one.first_ns if one.packets else times[0]
    one.packets += len(packets)
    one.end_ns, one.middle_ns = (max(one.end_ns[0], max(times)), times[-1]), sorted(times)[len(times) // 2]
    for packet in packets:
        parser.segment(packet, 0)
    if parser.seen is not None and len(parser.seen) > MANY:
        parser.seen = None


def _ended(one: Split, stop: int, parser: LinkParser) -> Split:
    """A range that ends there."""
    one.stop = stop
    flows = None if parser.seen is None else np.unique([key_of(ends + parser.network) for ends in parser.seen]).astype(np.int64)
    one.flows = None if flows is None else flows.tobytes()
    return one
