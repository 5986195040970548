"""Cuts captures into byte ranges that are read apart, and proves that no packet is read twice or not at all.

A record of a pcap or pcapng file has no mark, so where one begins in mid-file is found by convergence: of every position at which a
record could begin the chain of lengths is followed, and once all chains that begin near a border have become one, that one is the
file's. This proposes borders only. What makes them certain is the landing: the first range begins behind the file's header, and the
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
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from heapq import heappop, heapreplace
from pathlib import Path
from typing import Any, BinaryIO, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..capture import pcap, pcapng
from ..capture.blocks import Blocks, Damaged, RawInput
from ..capture.ends import network_key
from ..capture.files import named_as_capture, open_capture
from ..capture.link import SLL, SLL2, LinkParser
from ..capture.packet_processes import CUSTOM_BLOCKS, DARWIN_BLOCK, WIRESHARK, PacketProcess, ProcessReader, Waiting
from ..capture.unpack import packing
from ..conversation.run_state import EVERY
from ..diagnose.network import NetworkEvidence
from ..errors import CaptureError, MissingCodec, NoCapture, UsageError
from ..model import Packet
from . import storage
from .keys import key_of

TARGET = 64 << 20
"""Bytes of a range, unless asked for otherwise."""

BEGIN = 1 << 16
"""First bytes that are read of a file to identify its format."""

HEAD = 4096
"""First bytes by which a file is recognised."""

WINDOW = 1 << 20
LARGEST = 262_144
"""How far borders are searched, and the largest record that they may lie in; larger ones only make ranges longer."""

BLOCK_ROOM = 1024
"""What a record may be longer than its packet: headers and options."""

PACKED = "packed"

PACKETS = (pcapng.ENHANCED, pcapng.SIMPLE, pcapng.OBSOLETE)
APART = {
    pcapng.SECTION: "the file has several sections",
    pcapng.INTERFACE: "interfaces are described in mid-file",
    pcapng.SIMPLE: "packets have no time",
}

BEFORE_S, AFTER_S = 86_400, 7 * 86_400
"""How far from the first packet's time those of a file may lie for borders to be found in it."""

NEVER = -(1 << 62)

MANY = 1 << 20
"""Limit of conversations of a range; beyond it they are not distinguished by the range that they lie in. A range of `TARGET` bytes
has fewer packets."""

AT_ONCE = 16
"""Requests to a store at the same time."""


class Counts(msgspec.Struct, kw_only=True):
    """The contents of a byte range, in numbers."""

    packets: int = 0
    payload: int = 0
    """Bytes of TCP payload."""
    flows: bytes | None = b""
    """The `flow_id` of its segments, each once, sorted; None where there are too many."""


class Split(Counts):
    """A byte range of a capture, or a complete one that cannot be cut (`stop` None).

    `head` is what a reader has to see first: the file's header, or the section's and its interfaces'. `number` packets lie before it,
    `latest_ns` is the time of the latest of them. `damage` is what ends the file in this range.
    """

    file: int
    path: str
    start: int = 0
    stop: int | None = None
    head: bytes = b""
    number: int = 0
    latest_ns: int = NEVER
    size: int = 0
    damaged: bool = False
    """Reading it ends with an error."""
    after: int = 0
    """Packets up to this number were read before."""
    aside: NetworkEvidence | None = None
    """Evidence of ICMP and DNS in it, where that was asked for."""
    network: int = 0
    """Number of the network that its conversations are kept apart in."""
    first_ns: int = NEVER
    """The time of its first packet."""
    end_ns: tuple[int, int] = (NEVER, NEVER)
    """The time of the latest packet of the file up to the end of this range, and the time of the last one."""


class Copy(msgspec.Struct):
    """A packed capture that was unpacked to a file, up to the `error`."""

    path: str
    error: str | None = None


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


class PlannedFile(msgspec.Struct):
    """A file that is read."""

    path: str
    head: str = ""
    """Digest of its first bytes, unpacked; empty where it is not known."""
    size: int | None = None
    """Its bytes, unpacked; None where they are not known."""
    latest_ns: int = NEVER
    """The latest time of its packets."""
    middle_ns: int = NEVER
    """The time in the middle of its last packets, which a few with a wrong one do not change."""


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


class Examined(Counts):
    """What a walk through a range found. `landed` is where it ended, `stop` where it should have."""

    start: int | None
    stop: int
    landed: int
    latest_ns: int = NEVER
    first_ns: int = NEVER
    last_ns: int = NEVER
    middle_ns: int = NEVER
    """The time in the middle of its last packets."""
    error: tuple[str, int | None, int | None] | None = None
    """Reason, position and packet, both counted from the range's own beginning."""
    apart: str | None = None
    """Why it cannot be read without what comes before it."""
    dependent: bool = False
    """Packets depend on others across conversations: of a Linux cooked capture, any may repeat one; a fragment needs the others."""
    secrets: bool = False
    """It holds keys of TLS."""
    aside: NetworkEvidence | None = None
    """Evidence of ICMP and DNS in it."""


class ByteRange(msgspec.Struct):
    """A range to examine. `start` None: at the border next to `near`; it goes to the first border that there is next to `nexts`."""

    path: str
    format: str
    head: bytes
    start: int | None
    near: int
    nexts: list[int]
    size: int
    limit: int
    """How large its packets may be."""
    second: int = 0
    """When the first packet was captured."""
    network: int = 0
    digest: str = ""
    """Of its first bytes."""
    secrets: bool = False
    """The head of its file holds keys of TLS."""
    aside: bool = False
    """ICMP and DNS are looked at."""


Spread = Callable[[Callable[[ByteRange], Examined], Sequence[ByteRange]], Iterable[Examined]]


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
            left_out = [one for one, piece in zip(asked, each(_try_begin, asked), strict=True) if isinstance(piece, NoCapture)]
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
    lacks = "the folder has no files"
    if path.is_dir() if path is not None else storage.folder(name).exists():
        found = sorted(storage.walk(name))
    elif glob.has_magic(name):
        lacks = "no file has such a name"
        found = sorted(_fitting(name) if path is None else _fitting_here(os.fspath(path)))
    else:
        raise CaptureError("no such file", source)
    if not found:
        raise UsageError(f"{source}: {lacks}")
    return found


def _fitting_here(pattern: str) -> Iterator[str]:
    """The files of a disk that a pattern names; hidden ones only where it names such."""
    signs = re.compile(r"[*?\[]")
    parts = pattern.split("/")
    fixed = sum(1 for _ in itertools.takewhile(lambda part: not signs.search(part), parts))
    wanted = {part[:1] for part in parts[fixed:]}
    for name in glob.iglob(pattern, recursive=True):  # noqa: PTH207 - a pattern may be absolute
        hidden = any(part[:1] in storage.HIDDEN and part[:1] not in wanted for part in name.split("/")[fixed:])
        if not hidden and Path(name).is_file():
            yield storage.normal(name)


def _fitting(pattern: str) -> Iterator[str]:
    """The objects of a store that a pattern names."""
    folder = pattern[: re.search(r"[*?\[]", pattern).start()].rpartition("/")[0]  # type: ignore[union-attr]
    return filter(re.compile(_regular(pattern)).fullmatch, storage.walk(folder))


def _regular(pattern: str) -> str:
    """A pattern of names as a regular expression; `**` stands for any folders."""
    made = ""
    for piece in re.findall(r"\*\*/|\*\*|\*|\?|\[!?\]?[^\]]*\]|[^*?]", pattern, re.DOTALL):
        made += _SIGNS.get(piece) or (re.sub(r"^\[!", "[^", piece) if len(piece) > 1 else re.escape(piece))
    return made


_SIGNS = {"**/": "(?:[^/]+/)*", "**": ".*", "*": "[^/]*", "?": "[^/]"}


def stamps(files: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Of each file its size and when it was changed, zeros where it is not there."""
    return {file: tuple(found or (0, 0)) for file, found in zip(files, each(storage.status, files), strict=True)}


def each(function: Callable[[Any], Any], names: Sequence[Any], name: Callable[[Any], str] = str) -> Iterator[Any]:
    """The results of a function for some files (`name` returns its name), for those of an object store several at a time."""
    if len(names) < 2 or storage.local(name(names[0])) is not None:
        return iter(list(map(function, names)))
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return iter(list(pool.map(function, names)))


def plan(
    files: Sequence[str],
    target: int = TARGET,
    run: Spread | None = None,
    unpacked: Callable[[Sequence[str]], Sequence[Copy]] | None = None,
    networks: Sequence[int] = (),
    aside: bool = False,
    fetch: bool = False,
) -> Plan:
    """How these files are read in ranges of about `target` bytes; `run` calls a function for many pieces, perhaps elsewhere.

    `unpacked` unpacks captures, which otherwise are read as one, and with `fetch` copies others of a store, which otherwise are read twice:
    to be examined, and to be dissected. `networks`: the numbers of the files' networks, where these are kept separate.
    """
    result = Plan({index: PlannedFile(path) for index, path in enumerate(files)}, [], [])
    started: list[ByteRange | CaptureError] = list(each(_try_begin, files))

    def copied(wanted: Callable[[ByteRange], bool]) -> dict[int, Copy]:
        """Read copies of these files instead."""
        indexes = [index for index, one in enumerate(started) if isinstance(one, ByteRange) and wanted(one)]
        if not indexes or unpacked is None:
            return {}
        made = dict(zip(indexes, unpacked([files[index] for index in indexes]), strict=True))
        for index, copy in made.items():
            started[index] = _try_begin(copy.path)
        return made

    copies = copied(lambda one: one.format == PACKED)
    if fetch:
        copied(lambda one: storage.local(one.path) is None)
    pieces: list[list[ByteRange]] = []
    indexes: list[int] = []
    for index, piece in enumerate(started):
        if isinstance(piece, CaptureError):
            result.errors.append(_file_error(index, files[index], copies.get(index), piece))
            continue
        piece.network, piece.aside = networks[index] if networks else 0, aside
        indexes.append(index)
        pieces.append([piece])
        if piece.format != PACKED:
            result.files[index] = PlannedFile(files[index], piece.digest, piece.size)
            piece.nexts = [near for near in range(target, piece.size - target // 2, target) if near > (piece.start or 0)]
            for place, near in enumerate(piece.nexts, 1):
                pieces[-1].append(msgspec.structs.replace(piece, start=None, near=near, nexts=piece.nexts[place:]))
    every = [piece for many in pieces for piece in many]
    found = iter(run(examine, every) if run is not None else each(examine, every, lambda piece: piece.path))
    for index, many in zip(indexes, pieces, strict=True):
        examined = [next(found) for _ in many]
        if any(one.secrets for one in (*many, *examined)):
            result.secrets.append(files[index])
        result.splits += _chain(result, index, many, examined, copies.get(index))
    result.errors.sort(key=lambda error: error.file)
    return result


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
    if found.bytes <= size:
        return [found]
    spans = {split.file: (split.first_ns, found.files[split.file].latest_ns) for split in reversed(found.splits)}
    sizes: Counter[int] = Counter()
    for split in found.splits:
        sizes[split.file] += split.size
    groups: list[set[int]] = [set()]
    end, left = NEVER, size
    for file, (first_ns, last_ns) in sorted(spans.items(), key=lambda one: one[1]):
        if left <= 0 and first_ns > end:
            groups.append(set())
            left = size
        groups[-1].add(file)
        end = max(end, last_ns)
        left -= sizes[file]
    if len(groups) == 1:
        return [found]
    # What has no packets is in the last one
    groups[-1] |= {*found.files, *(one.file for one in found.errors)}.difference(*groups)
    made = []
    for some in groups:
        splits = [split for split in found.splits if split.file in some]
        errors = [one for one in found.errors if one.file in some]
        files = {file: one for file, one in found.files.items() if file in some}
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


def _try_begin(path: str) -> ByteRange | CaptureError:
    try:
        return _begin(path)
    except CaptureError as error:
        return error


def _begin(path: str) -> ByteRange:
    """A complete file to examine, its header read; raises `CaptureError` if it is not a capture."""
    at = storage.local(path)
    if at is not None and at.exists() and not at.is_file():
        raise CaptureError("is not a file", path)
    with storage.open_input(path) as stream:
        size = stream.seek(0, io.SEEK_END)
        stream.seek(0)
        head = stream.read(BEGIN)
        piece = ByteRange(path, PACKED, b"", 0, 0, [], size, LARGEST)
        if packing(RawInput(io.BytesIO(head), path)) is not None:
            stream.seek(0)
            open_capture(stream, name=path)
            return piece
        piece.format = open_capture(io.BytesIO(head), name=path).format
        piece.digest = digest(head[:HEAD])
        if piece.format == "pcapng":
            stream.seek(0)
            _begin_section(piece, stream.read(WINDOW))
            return piece
    piece.head = head[: pcap.HEADER]
    order = pcap.MAGICS[head[:4]][0]
    if len(head) >= pcap.HEADER:
        (snap,) = struct.unpack_from(order + "I", head, 16)
        piece.limit = min(snap or LARGEST, LARGEST)
    if len(head) >= pcap.HEADER + 4:
        (piece.second,) = struct.unpack_from(order + "I", head, pcap.HEADER)
    piece.start = len(piece.head)
    return piece


def unpack(pair: tuple[str, str]) -> Copy:
    """Unpacks a capture into a file; one that is not packed is copied."""
    path, to = pair
    copy = Copy(to)
    with storage.open_input(path) as stream:
        pieces = packing(RawInput(stream, path))
        if pieces is None:
            stream.seek(0)
            pieces = iter(lambda: stream.read(storage.AHEAD), b"")
        out = storage.folder(to).open()
        try:
            for piece in pieces:
                out.write(piece)
        except MissingCodec:
            raise
        except (Damaged, CaptureError) as error:
            copy.error = error.reason if isinstance(error, CaptureError) else str(error)
        out.close()
    return copy


def head_of(path: str) -> str:
    """The digest of a capture's first bytes, unpacked, as a plan has it; empty where it is none."""
    first = _try_begin(path)
    if isinstance(first, CaptureError) or first.format != PACKED:
        return "" if isinstance(first, CaptureError) else first.digest
    data = b""
    with storage.open_input(path) as stream, suppress(Damaged, CaptureError):
        for piece in packing(RawInput(stream, path)) or ():
            data += piece
            if len(data) >= HEAD:
                break
    return digest(data[:HEAD])


def _begin_section(piece: ByteRange, data: bytes) -> None:
    """Reads the blocks before the first packet of a pcapng file: the section header, its interfaces and processes are the head."""
    order = pcapng.BYTE_ORDERS.get(data[8:12])
    at, snap = 0, 0
    head: list[bytes] = []
    while order is not None and at + 20 <= len(data):
        kind, size, vendor, own = struct.unpack_from(order + "IIII", data, at)
        size = pcapng.filled(size)
        if size < pcapng.LEAST.get(kind, 12) or at + size > len(data) or kind in PACKETS or (at and kind == pcapng.SECTION):
            break
        piece.secrets = piece.secrets or kind == pcapng.SECRETS
        if kind in (pcapng.SECTION, pcapng.INTERFACE) or _names_process(kind, vendor):
            head.append(data[at : at + size])
        if kind == pcapng.INTERFACE:
            snap = max(snap, own or LARGEST)
        at += size
    piece.head = b"".join(head)
    piece.start = at
    piece.limit = min(snap or LARGEST, LARGEST)


def _chain(result: Plan, index: int, pieces: list[ByteRange], found: list[Examined], copy: Copy | None) -> list[Split]:
    """The ranges of one file: as examined while each lands on the next one, and the rest in one piece from where that ends."""
    first, file = pieces[0], result.files[index]
    splits: list[Split] = []
    number, latest = 0, NEVER
    at = first.start
    assert at is not None
    for one in found:
        if one.start is None or one.start < at:
            continue  # no border here: the range before it goes on to the next one
        last = one.stop == first.size
        why = one.apart
        if one.start != at or (not last and (one.landed != one.stop or one.error is not None)):
            why = "the packets do not land on the next range"
        if why is not None and len(found) > 1:
            one = examine(msgspec.structs.replace(first, start=at, nexts=[]))
            last = True
            if one.error is None:
                result.errors.append(FileError(index, file.path, at, number or None, f"{why}; read in one piece from byte {at}", 0, False))
        packed = first.format == PACKED
        stop = None if packed else one.stop if last else one.landed
        size = first.size if packed else one.landed - at
        damaged = one.error is not None
        counts: dict[str, Any] = {name: getattr(one, name) for name in Counts.__struct_fields__}
        counts |= {"aside": one.aside, "first_ns": one.first_ns, "end_ns": (max(latest, one.latest_ns), one.last_ns)}
        ranges = Split(index, first.path, at, stop, first.head, number, latest, size, damaged, network=first.network, **counts)
        splits.append(ranges)
        if last and copy is not None and copy.error is not None:
            # What the copy lacks at its end is what could not be unpacked.
            one.error = (
                (copy.error, *one.error[1:]) if one.error is not None else (copy.error, len(first.head) + one.landed - at, one.packets)
            )
        if one.error is not None:
            reason, offset, packet = one.error
            position = offset if offset is None or packed else offset - len(first.head) + at
            before = number + (packet or 0)
            lost = None if packed or copy is not None else first.size - one.landed
            result.errors.append(FileError(index, file.path, position, before or None, _renumbered(reason, number), lost))
        number += one.packets
        latest = max(latest, one.latest_ns)
        file.latest_ns, file.middle_ns = latest, one.middle_ns if one.packets else file.middle_ns
        at = one.landed
        if last:
            return _as_one(splits) if any(one.dependent for one in found) else splits
    raise AssertionError(f"{file.path}: byte {at} of {first.size} is in no range")


def _as_one(splits: list[Split]) -> list[Split]:
    """The range of these ranges of a file together."""
    first, last = splits[0], splits[-1]
    flows = flows_of(splits)
    first.flows = None if flows is None else flows.tobytes()
    for one in splits[1:]:
        first.size, first.packets, first.payload = first.size + one.size, first.packets + one.packets, first.payload + one.payload
        if first.aside is not None and one.aside is not None:
            first.aside.merge(one.aside, one.file, one.number)
    first.stop, first.damaged, first.end_ns = last.stop, last.damaged, last.end_ns
    return [first]


def _renumbered(reason: str, before: int) -> str:
    """A reason that names a packet, counted in the file instead of the range."""
    return re.sub(r"(?<=packet )\d+", lambda match: str(int(match[0]) + before), reason, count=1) if before else reason


def _file_error(index: int, path: str, copy: Copy | None, error: CaptureError) -> FileError:
    """The error of a file that is not a capture, perhaps since it could not be unpacked."""
    reason = copy.error if copy is not None else None
    try:
        found = storage.status(path)
    except (CaptureError, UsageError):
        found = None
    lost = None if copy is not None else found.size if found is not None else 0
    return FileError(index, path, error.offset, error.packet, reason or error.reason, lost)


class Range(io.RawIOBase):
    """A file object of some bytes in memory and then a byte range of a file."""

    def __init__(self, path: str, head: bytes, start: int, stop: int) -> None:
        super().__init__()
        self._head = head
        self._file = storage.open_input(path)
        self._file.seek(start)
        self._left = stop - start

    def read(self, size: int = -1) -> bytes:
        if self._head:
            data, self._head = self._head[:size], self._head[size:]
            return data
        data = self._file.read(min(size, self._left)) or b""
        self._left -= len(data)
        return data

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


class OwnedPacket(Packet):
    """A packet with the process that it belongs to."""

    owner: PacketProcess | None = None


def _owned(packets: list[Packet], waiting: Waiting) -> list[Packet]:
    """Return packets, those whose processes wait with these."""
    owners = {one.number: one for one in waiting}
    waiting.clear()
    return [OwnedPacket(**msgspec.structs.asdict(one), owner=owners[one.number]) if one.number in owners else one for one in packets]


def batches(split: Split) -> Iterator[list[Packet]]:
    """The packets of a range, numbered as in the file."""
    before, last = split.number if split.stop is not None else 0, split.number + split.packets
    processes = ProcessReader()
    processes.wanted = True
    for packets, _ in _batches(split, None, processes):
        packets = _owned(packets, processes.waiting) if processes.waiting else packets
        for one in packets if before else ():
            one.number += before
        # A packed file may have grown since it was examined.
        if packets[-1].number > last:
            packets = [one for one in packets if one.number <= last]
        if packets:
            yield packets


def _batches(
    split: Split, secrets: pcapng.Secrets | None = None, processes: ProcessReader | None = None
) -> Iterator[tuple[list[Packet], int | None]]:
    """The packets of a range, and where in the file their buffer begins (None where it is packed)."""
    if split.stop is None:
        reader = storage.open_packets(split.path)
        if processes is not None and reader.processes is not None:
            reader.processes.wanted, reader.processes.waiting = True, processes.waiting
        for packets in reader:
            yield packets, None
        if secrets is not None:
            secrets += reader.secrets
        return
    head = split.head
    stream = Range(split.path, head, split.start, split.stop)
    raw = RawInput(cast(BinaryIO, stream), split.path)
    blocks = Blocks(raw, None)
    try:
        for packets in pcap.read_packets(blocks) if head[:4] in pcap.MAGICS else pcapng.read_packets(blocks, secrets, processes):
            # A reader reads nothing beyond the buffer that it returns
            yield packets, raw.count - len(packets[0].buffer) - len(head) + split.start
    finally:
        raw.close()


def examine(piece: ByteRange) -> Examined:
    """Finds the borders of a range and walks through it."""
    start = piece.start if piece.start is not None else border(piece, piece.near)
    stop = piece.size
    if start is None:
        return Examined(None, stop, stop)
    for near in piece.nexts:
        found = border(piece, near)
        if found is not None and found > start:
            stop = found
            break
    one = Examined(start, stop, stop)
    packed = piece.format == PACKED
    if piece.format == "pcapng" and stop > start:
        one.apart = _structure(piece, start, stop)
    parser = LinkParser()
    if piece.aside:
        one.aside = NetworkEvidence()
        parser.network = network_key(piece.network)
        parser.aside = one.aside.read
    secrets: pcapng.Secrets = []
    end = start
    flows: set[int] | None = set()
    network = network_key(piece.network)
    try:
        for packets, base in _batches(Split(0, piece.path, start, None if packed else stop, piece.head), secrets):
            one.first_ns = one.first_ns if one.packets else packets[0].time_ns
            one.packets += len(packets)
            times = sorted([packet.time_ns for packet in packets])
            one.last_ns = packets[-1].time_ns
            one.latest_ns, one.middle_ns = max(one.latest_ns, times[-1]), times[len(times) // 2]
            one.dependent = one.dependent or any(packet.link in (SLL, SLL2) for packet in packets)
            ends: set[bytes] = set()
            for packet in packets:
                segment = parser.segment(packet, 0)
                if segment is not None:
                    one.payload += len(segment.data)
                    ends.add(segment.ends)
            if flows is not None:
                flows.update(key_of(some + network)[0] for some in ends)
                flows = flows if len(flows) < MANY else None
            if base is not None:
                end = base + packets[-1].offset + packets[-1].captured
    except CaptureError as error:
        one.error = (error.reason, error.offset, error.packet)
        if not packed:
            one.landed = start + (error.offset - len(piece.head) if error.offset is not None else end - start)
    one.dependent = one.dependent or parser.counters.fragments > 0
    one.secrets = bool(secrets)
    one.flows = None if flows is None else np.sort(np.fromiter(flows, np.int64, len(flows))).tobytes()
    return one


def _structure(piece: ByteRange, start: int, stop: int) -> str | None:
    """Why the blocks of this pcapng range depend on those before it, if they do."""
    order = pcapng.BYTE_ORDERS.get(piece.head[8:12], "<")
    unpack = struct.Struct(order + "III").unpack_from
    at = start
    while at + 12 <= stop:
        # At least the smallest block.
        base, data = at, storage.pieces(piece.path, at, min(WINDOW, stop - at))
        while at + 12 <= stop and at + 12 <= base + len(data):
            kind, size, vendor = unpack(data, at - base)
            if kind != pcapng.ENHANCED:
                if kind in APART or _names_process(kind, vendor):
                    return APART.get(kind, "processes are described in mid-file")
                if size < 12:
                    return None
            elif size < 32:
                return None
            at += pcapng.filled(size)
        if len(data) < 12:
            return None
    return None


def _names_process(kind: int, vendor: int) -> bool:
    """Whether packets after a block of this kind may refer to it for their process."""
    return kind == DARWIN_BLOCK or (kind in CUSTOM_BLOCKS and vendor == WIRESHARK)


def border(piece: ByteRange, near: int) -> int | None:
    """The first position from `near` on at which a record certainly begins, as far as the file is well formed; None if none is found."""
    data = storage.pieces(piece.path, near, WINDOW + 32)
    follow = _pcap_chain(data, near, piece) if piece.format == "pcap" else _pcapng_chain(data, near, piece)
    reach = piece.limit + BLOCK_ROOM
    # A sorted list is a heap
    heads = sorted(at for at in follow if at < reach)
    known = set(heads)
    while len(heads) > 1:
        after = follow[heads[0]]
        if after not in follow:
            return None
        if after in known:
            heappop(heads)
        else:
            known.add(after)
            heapreplace(heads, after)
    return near + heads[0] if heads else None


def _pcap_chain(data: bytes, near: int, piece: ByteRange) -> dict[int, int]:
    """Where the next record begins, for every position at which one may begin that leads to others up to the end of the window."""
    order, unit = pcap.MAGICS[piece.head[:4]]
    second = piece.second
    room = len(data) - 15
    if room <= 0:
        return {}
    layout = np.dtype([("seconds", order + "u4"), ("fraction", order + "u4"), ("captured", order + "u4"), ("wire", order + "u4")])
    view: Any = np.ndarray((room,), "V16", data, 0, (1,))
    seconds: Any = np.ndarray((room,), order + "u4", data, 0, (1,))
    at = np.flatnonzero((seconds >= max(second - BEFORE_S, 0)) & (seconds <= second + AFTER_S))
    columns = view[at].view(layout)
    good = (columns["fraction"] < 1_000_000_000 // unit) & (columns["captured"] <= piece.limit) & (columns["captured"] > 0)
    at = at[good]
    after = at + columns["captured"][good].astype(np.int64) + 16
    return _alive(at, after, room, piece.size - near)


def _pcapng_chain(data: bytes, near: int, piece: ByteRange) -> dict[int, int]:
    order = pcapng.BYTE_ORDERS[piece.head[8:12]]
    room = len(data) - 7
    if room <= 0:
        return {}
    lengths: Any = np.ndarray((room,), order + "u4", data, 4, (1,)) if len(data) >= 8 else np.empty(0)
    at = np.arange(-near % 4, len(lengths), 4)
    length = lengths[at].astype(np.int64)
    good = (length >= 12) & (length % 4 == 0) & (length <= WINDOW)
    at, length = at[good], length[good]
    inside = at + length <= len(data)
    repeated: Any = np.ndarray((len(data) - 3,), order + "u4", data, 0, (1,))
    same = np.ones(len(at), np.bool_)
    same[inside] = repeated[(at + length - 4)[inside]] == length[inside]
    return _alive(at[same], (at + length)[same], room, piece.size - near)


def _alive(at: Any, after: Any, room: int, left: int) -> dict[int, int]:
    """Of these positions those whose chain does not break within the window, with their successors."""
    follow: dict[int, int] = {}
    for here, there in zip(reversed(at.tolist()), reversed(after.tolist()), strict=True):
        if there in follow or room <= there <= left:
            follow[here] = there
    return follow
