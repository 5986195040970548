"""Cuts captures into byte ranges that are read apart, and proves that no packet is read twice or not at all.

A record of a pcap or pcapng file has no mark, so where one begins in mid-file is found by convergence: of every position at which a
record could begin the chain of lengths is followed, and once all chains that begin near a border have become one, that one is the
file's. This proposes borders only. What makes them certain is the landing: the first range begins with the first packet, and the
walk through each range has to end exactly where the next one begins. Where it does not, the rest of the file is read in one piece.

A range has to know what came before it: packets (their numbers go on), the latest time (it decides the order among several files),
and the interfaces of a pcapng section. So every range is walked once before it is read (`examine`), which also finds damage: a
damaged file ends where a single reader would have ended.
"""

from __future__ import annotations

import glob
import hashlib
import io
import itertools
import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from fnmatch import fnmatchcase
from operator import attrgetter
from typing import Any, BinaryIO

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..capture import pcap, pcapng
from ..capture.blocks import BLOCK, PIECE, Blocks, RawInput
from ..capture.ends import network_key
from ..capture.files import CaptureReader, named_as_capture
from ..capture.link import SLL, SLL2, LinkParser
from ..capture.packet_processes import PacketProcess
from ..capture.unpack import packing
from ..conversation.run_state import EVERY
from ..diagnose.network import NetworkEvidence
from ..errors import CaptureError, NoCapture, UsageError
from ..model import Packet
from . import storage
from .keys import key_of

TARGET = 64 << 20
"""Bytes of a range, unless asked for otherwise."""

HEAD = 4096
"""First bytes by which a file is recognised."""

FIRST = 16 << 20
"""First bytes in which the first packet has to be, for a file to be cut: every range is read after what comes before that."""

WINDOW = 1 << 20
LARGEST = 262_144
"""How far borders are searched, and the largest record that they may lie in; larger ones only make ranges longer."""

BLOCK_ROOM = 1024
"""What a record may be longer than its packet: headers and options."""

LEAST = 32
"""Bytes of a file in which no border is looked for."""

ENHANCED_HEADER, SIMPLE_HEADER = 28, 12
"""Bytes of a block of pcapng before its packet."""

APART = {
    pcapng.SECTION: "the file has several sections",
    pcapng.INTERFACE: "interfaces are described in mid-file",
    pcapng.SIMPLE: "packets have no time",
}
"""Why a range with a block of this type cannot be read apart; the others describe processes."""

BEFORE_S, AFTER_S = 86_400, 7 * 86_400
"""How far from the first packet's time those of a file may lie for borders to be found in it."""

NEVER = -(1 << 62)

MANY = 1 << 20
"""Limit of conversations of a range; beyond it they are not distinguished by the range that they lie in. A range of `TARGET` bytes
has fewer packets."""

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
    """A byte range of a capture, or a packed one (`stop` None), and what is in it.

    A reader sees the first `head` bytes of the file before it: the file's header, or what describes the section and its interfaces.
    """

    file: int
    path: str
    start: int = 0
    stop: int | None = None
    head: int = 0
    network: int = 0
    """Number of the network that its conversations are kept apart in."""
    size: int = 0
    """Bytes up to the damage in it."""
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
    error: FileError | None = None
    """What ends the file in this range."""
    apart: str | None = None
    """Why what comes after it cannot be read without it."""
    dependent: bool = False
    """Packets depend on others across conversations: of a Linux cooked capture, any may repeat one; a fragment needs the others."""
    secrets: bool = False
    """The file holds keys of TLS."""
    number: int = 0
    """Packets of the file before it."""
    latest_ns: int = NEVER
    """The time of the latest of them."""
    after: int = 0
    """Packets up to this number were read before."""


class PlannedFile(msgspec.Struct):
    """A file that is read."""

    path: str
    head: str = ""
    """Digest of its first bytes, unpacked; empty where it is no capture."""
    size: int | None = None
    """Its bytes, those of its copy where there is one; None where they are not known."""
    latest_ns: int = NEVER
    """The latest time of its packets."""
    place: str = ""
    """Where its bytes are: itself, or a copy."""
    packed: bool = False
    magic: bytes = b""
    """The bytes that show format and byte order."""
    first: int = 0
    """Where its first packet begins; 0 where it is not to be cut."""
    snap: int = LARGEST
    """How large its packets may be."""
    second: int = 0
    """When its first packet was captured."""
    error: CaptureError | None = None
    """Why it is not a capture."""


Near = tuple[PlannedFile, int, int]
"""A file, a position that a border is looked for next to, and the index of the file."""

Positions = NDArray[np.int64]


class Plan(msgspec.Struct):
    """How some captures are read."""

    files: dict[int, PlannedFile]
    """By index."""
    splits: list[Split]
    errors: list[FileError]
    secrets: list[str] = msgspec.field(default_factory=list)
    """Files that hold keys of TLS."""

    @property
    def network(self) -> NetworkEvidence:
        """Evidence of ICMP and DNS."""
        found = NetworkEvidence()
        for split in self.splits:
            if split.aside is not None:
                found.merge(split.aside, split.file, split.number)
        return found

    @property
    def packets(self) -> int:
        return sum(split.packets for split in self.splits)

    @property
    def bytes(self) -> int:
        return sum(split.size for split in self.splits)


Spread = Callable[[Callable[[Any], Any], Sequence[Any]], Iterable[Any]]
"""Returns the results of a function for some arguments, perhaps computed elsewhere."""


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
            if not names:
                raise UsageError(f"{source}: none of the files is a capture")
        found.update(dict.fromkeys(names))
    return list(found)


def _named_by(source: str, name: str) -> list[str]:
    path = storage.local(name)
    if storage.status(name) is not None or (path is not None and path.exists() and not path.is_dir()):
        return [name]
    found = list(storage.listed(name)) or (sorted(_fitting(name)) if glob.has_magic(name) else [])
    if found:
        return found
    if glob.has_magic(name):
        raise UsageError(f"{source}: no file has such a name")
    if path is not None and path.is_dir():
        raise UsageError(f"{source}: the folder has no files")
    raise CaptureError("no such file", source)


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


Unpacked = Callable[[Sequence[str]], Sequence[tuple[str | None, int]]]
"""Calls `unpack` for captures."""


def plan(
    files: Sequence[str],
    target: int = TARGET,
    run: Spread | None = None,
    unpacked: Unpacked | None = None,
    networks: Sequence[int] = (),
    aside: bool = False,
    fetch: bool = False,
) -> Plan:
    """How these files are read in ranges of about `target` bytes; `run` calls a function for many pieces, perhaps elsewhere.

    `unpacked` unpacks captures, which otherwise are read as one, and with `fetch` copies others of a store, which otherwise are read twice:
    to be examined, and to be dissected. `networks`: the numbers of the files' networks, where these are kept separate.
    """
    result = Plan({}, [], [])
    starts: dict[int, list[int]] = {}
    nears: list[Near] = []
    for index, one in enumerate(_files(files, unpacked, fetch)):
        result.files[index] = one
        if one.error is None:
            starts[index] = [one.first]
            most = (one.size or 0) - target // 2 if 0 < one.first <= target else 0
            nears += [(one, near, index) for near in range(target, most, target) if near > one.first]
        else:
            lost = None if one.packed and one.place != one.path else one.size
            result.errors.append(FileError(index, one.path, one.error.offset, one.error.packet, one.error.reason, lost))
            result.files[index] = PlannedFile(one.path)

    def spread(function: Callable[[Any], Any], some: Sequence[Any], place: Callable[[Any], str]) -> Iterable[Any]:
        return each(function, some, place) if run is None or not some else run(function, some)

    for (_, _, index), at in zip(nears, spread(border, nears, lambda near: near[0].place), strict=True):
        if at is not None and at > starts[index][-1]:
            starts[index].append(at)
    ranges = []
    for index, begins in starts.items():
        one, network, evidence = result.files[index], networks[index] if networks else 0, NetworkEvidence() if aside else None
        complete = Split(file=index, path=one.place, head=one.first, network=network, size=one.size or 0, aside=evidence)
        stops = [*begins[1:], None if one.packed and one.place == one.path else one.size]
        ranges += [msgspec.structs.replace(complete, start=start, stop=stop) for start, stop in zip(begins, stops, strict=True)]
    for _, some in itertools.groupby(spread(examine, ranges, attrgetter("path")), attrgetter("file")):
        _chain(result, list(some))
    result.errors.sort(key=lambda error: error.file)
    return result


def _files(files: Sequence[str], unpacked: Unpacked | None, fetch: bool) -> list[PlannedFile]:
    """What the first bytes of these files say, of copies where there are any; see `plan`."""
    found: list[PlannedFile] = list(each(begin, files))
    wanted = [at for at, one in enumerate(found) if one.error is None and (one.packed or (fetch and storage.local(one.path) is None))]
    if wanted and unpacked is not None:
        for at, (place, size) in zip(wanted, unpacked([files[at] for at in wanted]), strict=True):
            if place is not None:
                found[at] = msgspec.structs.replace(begin(place), path=files[at], packed=found[at].packed)
            else:
                found[at].size = size
    return found


def grouped(splits: Sequence[Split], target: int) -> list[list[Split]]:
    """Ranges that one task reads: small files together, up to `target` bytes."""
    groups: list[list[Split]] = []
    room = 0
    for split in splits:
        if split.size > room or not groups:
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
    spans = {split.file: (split.first_ns, found.files[split.file].latest_ns) for split in reversed(found.splits)}
    units: dict[int, int] = {}
    last, end, left = 0, NEVER, size
    for file, (first_ns, last_ns) in sorted(spans.items(), key=lambda one: one[1]):
        if left <= 0 and first_ns > end:
            last, left = last + 1, size
        units[file] = last
        end = max(end, last_ns)
        left -= found.files[file].size or 0
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
        if split.packets:
            latest_ns, last_ns = split.end_ns
            last = latest_ns, split.file, split.number + split.packets, last_ns
            found[split.network] = max(last, found.get(split.network, last))
    return found


def first_packet(splits: Iterable[Split]) -> int | None:
    """Return the time of the first packet of files merged by time."""
    return min((split.first_ns for split in splits if split.packets and not split.number), default=None)


def ends_of(last: Mapping[int, LastPacket], networks: Iterable[tuple[int, int]]) -> dict[int, int]:
    """Return when the capture ended, as `SharedState.ends_ns`; `networks`: of files with their networks."""
    found = {EVERY: last[0][-1]} if 0 in last else {}
    return found | {file: last[network][-1] for file, network in networks if network in last}


def digest(data: bytes) -> str:
    """By which first bytes are compared."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def begin(path: str) -> PlannedFile:
    """A file, and what its first bytes say of it."""
    file = PlannedFile(path, place=path, size=0)
    try:
        with storage.open_input(path) as stream:
            file.size = stream.seek(0, io.SEEK_END)
            stream.seek(0)
            raw = RawInput(stream, path)
            unpacked = packing(raw)
            file.packed = unpacked is not None
            blocks = Blocks(raw, unpacked or _pieces(stream, path, (0, PIECE), (min(PIECE, file.size), FIRST)))
            blocks.places = deque()
            data = blocks.read(HEAD)
            blocks.unread(data)
            reader = CaptureReader(blocks)
            file.head, file.magic = digest(data[:HEAD]), data[:12]
            if not file.packed:
                with suppress(CaptureError, StopIteration):
                    packet = next(reader.batches())[0]
                    file.snap, file.second = min(blocks.snap or LARGEST, LARGEST), packet.time_ns // 1_000_000_000
                    header = pcap.RECORD if reader.format == "pcap" else SIMPLE_HEADER if packet.untimed else ENHANCED_HEADER
                    file.first = 0 if packet.link in (SLL, SLL2) else blocks.places[0][1] + packet.offset - header
    except CaptureError as error:
        file.error = error
        # What may not be read has a size all the same
        with suppress(CaptureError, UsageError):
            known = storage.status(path)
            file.size = file.size or (0 if known is None else known.size)
    return file


def unpack(pair: tuple[str, str]) -> tuple[str | None, int]:
    """Unpack a capture into a file; one that is not packed is copied. Return the name of the file, and its bytes. None and the bytes up to
    the damage where it is damaged: then it is read as it is, which finds where."""
    path, to = pair
    size = 0
    with storage.open_input(path) as stream, storage.folder(to).open() as out:
        raw = RawInput(stream, path)
        blocks = Blocks(raw, packing(raw))
        try:
            while data := blocks.read():
                out.write(data)
                size += len(data)
        except CaptureError:
            return None, size
    return to, size


def _chain(result: Plan, found: list[Split]) -> None:
    """Add the ranges of one file: as examined while each lands on the next one, and the rest in one piece from where that ends."""
    file = result.files[found[0].file]
    if len(found) > 1 and any(one.dependent for one in found):
        found = [examine(msgspec.structs.replace(found[0], stop=file.size))]
    if any(one.secrets for one in found):
        result.secrets.append(file.path)
    number = 0
    for one in found:
        why = one.apart or ("the packets do not land on the next range" if one.error is not None else None)
        if why is not None and one is not found[-1]:
            one = examine(msgspec.structs.replace(one, stop=file.size))
            if one.error is None:
                reason = f"{why}; read in one piece from byte {one.start}"
                result.errors.append(FileError(one.file, file.path, one.start, number or None, reason, 0, False))
        one.number, one.latest_ns = number, file.latest_ns
        if one.error is not None:
            error = one.error
            error.path, error.packet = file.path, number + (error.packet or 0) or None
            error.reason = _renumbered(error.reason, number)
            error.lost = None if file.packed else error.lost
            result.errors.append(error)
        number += one.packets
        file.latest_ns = max(file.latest_ns, one.end_ns[0])
        one.end_ns = file.latest_ns, one.end_ns[1]
        result.splits.append(one)
        if one.stop == file.size:
            return


def _renumbered(reason: str, before: int) -> str:
    """A reason that names a packet, counted in the file instead of the range."""
    return re.sub(r"(?<=packet )\d+", lambda match: str(int(match[0]) + before), reason, count=1)


def _pieces(stream: BinaryIO, path: str, *parts: tuple[int, int]) -> Iterator[bytes]:
    """The bytes of these parts of a file."""
    raw = RawInput(stream, path)
    for at, stop in parts:
        stream.seek(at)
        while at < stop and (data := raw.read(min(stop - at, BLOCK))):
            yield data
            at += len(data)


def opened(split: Split) -> CaptureReader:
    """A reader of a range, which counts packets as in the file."""
    if split.stop is None:
        return storage.open_packets(split.path)
    stream = storage.open_input(split.path)
    blocks = Blocks(RawInput(stream, split.path), _pieces(stream, split.path, (0, split.head), (split.start, split.stop)))
    blocks.packets = split.number
    return CaptureReader(blocks, split.path)


def batches(split: Split, owners: dict[int, PacketProcess]) -> Iterator[list[Packet]]:
    """The packets of a range, numbered as in the file. `owners`: gets by number the processes of those whose process the file names."""
    reader, last = opened(split), split.number + split.packets
    if reader.processes is not None:
        reader.processes.wanted = True
    for packets in reader:
        if reader.processes is not None and reader.processes.waiting:
            owners.update((one.number, one) for one in reader.processes.waiting)
            reader.processes.waiting.clear()
        # A packed file may have grown since it was examined
        packets = packets[: max(last + 1 - packets[0].number, 0)]
        if packets:
            yield packets


def examine(split: Split) -> Split:
    """Walk through a range, and return it with what it holds."""
    parser, network = LinkParser(), network_key(split.network)
    aside = None if split.aside is None else NetworkEvidence()
    if aside is not None:
        parser.network, parser.aside = network, aside.read
    reader = error = None
    count = 0
    first_ns = latest_ns = NEVER
    times = [NEVER]
    flows: set[int] | None = set()
    try:
        reader = opened(split)
        for packets in reader:
            times = [packet.time_ns for packet in packets]
            first_ns = first_ns if count else times[0]
            latest_ns = max(latest_ns, max(times))
            count += len(packets)
            ends = {segment.ends for packet in packets if (segment := parser.segment(packet, 0)) is not None}
            if flows is not None:
                flows.update(key_of(some + network) for some in ends)
                flows = flows if len(flows) < MANY else None
    except CaptureError as problem:
        error = FileError(split.file, split.path, problem.offset, problem.packet, problem.reason, None)
    size = (split.stop or split.size) - split.start
    if error is not None and split.stop is not None:
        error.offset = None if error.offset is None else error.offset - split.head + split.start
        landed = split.start if error.offset is None else error.offset
        size, error.lost = landed - split.start, split.stop - landed
    context = reader.context if reader is not None else {}
    return msgspec.structs.replace(
        split,
        size=size,
        packets=count,
        flows=None if flows is None else np.sort(np.fromiter(flows, np.int64, len(flows))).tobytes(),
        first_ns=first_ns,
        end_ns=(latest_ns, times[-1]),
        middle_ns=sorted(times)[len(times) // 2],
        aside=aside,
        error=error,
        apart=next((APART.get(kind, "processes are described in mid-file") for kind, end in context.items() if end > split.head), None),
        dependent=parser.cooked or parser.counters.fragments > 0,
        secrets=reader is not None and bool(reader.secrets),
    )


def border(near: Near) -> int | None:
    """The first position from about `near` on at which a record begins, as far as the file is well formed; None if none is found."""
    file, at, _ = near
    data = storage.pieces(file.place, at, WINDOW)
    if len(data) <= LEAST:
        return None
    begins, ends = (_records if file.magic[:4] in pcap.MAGICS else _blocks)(data, at, file)
    room, left = len(data) - LEAST, (file.size or 0) - at
    follow: dict[int, int] = {}
    for here, there in zip(reversed(begins.tolist()), reversed(ends.tolist()), strict=True):
        if there in follow or room < there <= left:
            follow[here] = there
    here = min(follow, default=-1)
    # Chains that begin inside of a packet have become that of the file, or ended, where the packet does
    while here in follow and here < min(file.snap + BLOCK_ROOM, len(data) // 2):
        here = follow[here]
    return at + here if here in follow else None


def _records(data: bytes, near: int, file: PlannedFile) -> tuple[Positions, Positions]:
    """Where records of a pcap file may begin, and where these end."""
    order, unit = pcap.MAGICS[file.magic[:4]]
    room = len(data) - pcap.RECORD
    seconds, fraction, captured = (_at_each_byte(data[at : at + room + 3], order) for at in (0, 4, 8))
    at = np.flatnonzero((seconds >= max(file.second - BEFORE_S, 0)) & (seconds <= file.second + AFTER_S))
    at = at[(fraction[at] < 1_000_000_000 // unit) & (captured[at] <= file.snap) & (captured[at] > 0)]
    return at, at + captured[at] + pcap.RECORD


def _blocks(data: bytes, near: int, file: PlannedFile) -> tuple[Positions, Positions]:
    """Where blocks of a pcapng file may begin, and where these end."""
    lengths = _at_each_byte(data, pcapng.BYTE_ORDERS[file.magic[8:12]])
    at = np.arange(-near % 4, len(data) - LEAST, 4)
    length = lengths[at + 4].astype(np.int64)
    good = (length >= 12) & (length % 4 == 0) & (length <= LARGEST + BLOCK_ROOM)
    at, end = at[good], (at + length)[good]
    # A length is repeated at the end of its block, as far as that is in the window
    good = (end > len(data)) | (lengths[np.minimum(end, len(data)) - 4] == lengths[at + 4])
    return at[good], end[good]


def _at_each_byte(data: bytes, order: str) -> NDArray[np.uint32]:
    """The numbers of four bytes that begin at each byte."""
    return np.ndarray((len(data) - 3,), order + "u4", data, 0, (1,))
