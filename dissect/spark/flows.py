"""Dissects packets of some conversations, with the very same engine as a plain run.

A plain run is given all packets in merged order. So is a task here that reads all packets of its conversations itself (`Straight`);
what is sent to one are rows sorted by conversation (`dissect`), which are looked at one after the other. The engine makes every
message depend on the packets of its own conversation only, so both say the same; what depends on others is seen to like this:

- *order of packets*: by capture time (the latest so far of their file, as files are merged), file and number; inside a task their index in
  that order stands for the index in the whole run, since only packets of one conversation are ever compared;
- *packets of cooked captures that come twice* and *IP fragments*: one task looks at all of those in merged order (`in_order`);
- *bytes that wait, or of no known protocol yet, and open requests, over all conversations* (`waiting_total`, `undecided_total`,
  `open_total`): a task has one conversation open at a time, so there is no such limit, or fewer of them than a plain run; one that never
  reaches these limits, which its `limit_hits` tell, says the same;
- *what conversations tell of each other* (parents, an Iggy server's layout) is added when all rows are there (`relate`).

Packets may also come in several lots, each later than the one before: what is known of open conversations is then carried in rows of
their own from one lot to the next.
"""

from __future__ import annotations

import gc
import mmap
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dissect.capture.blocks import UNREADABLE
from dissect.capture.duplicates import Duplicates
from dissect.capture.odd import OddPackets
from dissect.conversation.tracked import Tracked
from dissect.errors import CaptureError, ForeignState, Report
from dissect.inspector import Inspector
from dissect.model import ConversationRow, Message, Options, Record, SegmentBatch
from dissect.protocols.records import PLACE, Emitted
from dissect.spark import places, state
from dissect.spark.keys import UNUSED, flow_ids
from dissect.spark.rows import (
    CARRY,
    CARRY_IN_ORDER,
    EARLIEST,
    FRAGMENT,
    LATEST,
    REPEATED,
    ROWS,
    SEGMENT,
    batch_of_rows,
)
from dissect.tcp.conversations import Conversation
from dissect.tls import stage  # noqa: F401 - whose classes are in what was carried
from dissect.tls.keys import KeyLog, logged

SORTED_BY = ("flow_id", "merge_ns", "file", "number", "-kind")
"""How rows have to be sorted for `dissect`; a minus sign: descending."""

IN_ORDER = ("merge_ns", "file", "number")
"""How rows have to be sorted for `in_order`."""

NO_TOTAL = 1 << 62

FILE_BITS = 40
"""Where the file's index begins in the number of a conversation."""

HELD_RECORDS, HELD_BYTES = 256, 16 << 20
"""So many records, or bytes of rows to be carried, are handed on together: what happens to records while they fit in the processor's
cache is fast."""

PILED = 256
"""Counts of so many batches are kept until they are added up."""

Linked = tuple[Record, Message | None, Message | None]
"""A record with the request and the response that it names."""


class Results(msgspec.Struct):
    """What some packets made certain."""

    records: list[Linked] = msgspec.field(default_factory=list)
    conversations: list[ConversationRow] = msgspec.field(default_factory=list)
    carry: list[dict[str, Any]] = msgspec.field(default_factory=list)
    """Rows of packets (see `rows.SCHEMA`) to be given together with the next lot, and in `carry_batch` as a batch."""
    reports: list[Report] = msgspec.field(default_factory=list)
    """What to tell of bugs of ours."""
    twice: dict[tuple[int, int], tuple[int, int]] = msgspec.field(default_factory=dict)
    """Of two files that have conversations in common: how many segments of the second the first has too, of how many."""
    suspected: ConversationRow | None = None
    """The first conversation that was read as it was asked for, but holds a login of another protocol."""

    def carry_batch(self) -> pa.RecordBatch:
        return batch_of_rows(self.carry)


class FlowInspector(Inspector):
    """An inspector whose records name the messages that belong to them instead of their numbers."""

    MADE_OF = ("options",)
    OWN = ("inputs", "batch_rows", "counters", "errors", "reports", "link", "past", "linked", "_bare", "_number", "_aged_ns")
    WIRED = ("endings", "reading", "memory", "_totals")
    VIEWS = ("asked", "diagnoser", "_windows")
    DERIVED = ("options", "keys", *OWN, *WIRED, *VIEWS)

    def __init__(self, options: Options) -> None:
        super().__init__([], options, keys=key_log(options.keylog))
        self.linked: list[Linked] = []
        self.orders = 0

    def resume(self) -> None:
        """Keys are not carried: they are looked up again."""
        for tracked in self.conversations:
            if tracked.carried.stage is not None:
                tracked.carried.stage.keys = self.keys
        self._wire()

    def _tracked(self, conversation: Conversation) -> Tracked:
        if conversation.state is None:
            conversation.index = conversation_id(conversation.first)
        return super()._tracked(conversation)

    def _hand_out(self, emitted: list[Emitted]) -> list[Record]:
        named: dict[int, Linked] = {id(link[0]): link for link in self.outbox.links}
        self.outbox.links.clear()
        self.endings.broken_off.clear()
        records = self.outbox.timed(emitted, self.counters)
        find = named.get
        self.linked += [find(id(record)) or (record, None, None) for record in records]
        self.outbox.large.clear()
        return records

    def feed(self, segments: SegmentBatch) -> Iterator[None]:
        """Take rows in order, a part after the other."""
        count = len(segments)
        if count:
            begin, self.orders = self.orders, self.orders + count
            segments.order = np.arange(begin, self.orders, dtype=np.int64)
            for _ in self.take_segments(segments, begin, self.orders):
                yield

    def take_linked(self) -> list[Linked]:
        """What became certain since the last call."""
        linked, self.linked = self.linked, []
        return linked

    def forget(self, now_ns: int) -> list[ConversationRow]:
        """End the conversations that had no packet for long, as a live capture does; the rows of those that are gone for good."""
        options, order = self.options, self.orders
        emitted: list[Emitted] = []
        for delivery in self._tcp.evict(now_ns, options.idle_time_ns, options.closed_time_ns, options.tracked_limit, order):
            emitted += self._deliver(delivery, order, True)
        emitted.sort(key=PLACE)
        self._hand_out(emitted)
        gone: list[ConversationRow] = []
        self.memory.drop(now_ns, gone.extend)
        return gone

    def due(self) -> int | None:
        """When `forget` has something to do again if no packet comes; None: nothing is known any more."""
        times = self._tcp.due(self.options.idle_time_ns, self.options.closed_time_ns)
        times += [tracked.tcp.last[3] + self.options.closed_time_ns for tracked in self.conversations if tracked.done]
        return min(times, default=None)

    def state(self) -> bytes:
        """All that the records of following packets depend on."""
        pairers = [tracked.pairer for tracked in self.conversations if tracked.pairer is not None]
        # Fields of requests were handed on, and can be most of what there is
        handed_on = {id(message.fields) for pairer in pairers if not pairer.reads for message in pairer.kept()}
        return state.encode(self, handed_on)

    @staticmethod
    def restore(data: bytes, options: Options) -> FlowInspector:
        """An inspector that goes on where the one was whose state this is; raises `ForeignState`."""
        inspector = state.decode(data, options)
        if type(inspector) is not FlowInspector:
            raise ForeignState("it holds something else")
        return inspector


def key_log(names: tuple[str, ...]) -> KeyLog:
    """The key logs, and captures that hold some, of these names, read once by a process as long as they stay as they are."""
    return _key_log(tuple((name, places.status(name) if places.local(name) is not None else _of_store(name)) for name in names))


@lru_cache(1)
def _key_log(found: tuple[tuple[str, places.Status | None], ...]) -> KeyLog:
    log = KeyLog([str(path) for name, _ in found if (path := places.local(name)) is not None])
    for name, status in found:
        # One that is gone has nothing to say, whether it was here or in a store
        if places.local(name) is None and status is not None:
            _add(log, name)
    return log


@cache
def _of_store(name: str) -> places.Status | None:
    """What a store says of an object, once in a task: it is asked for with every conversation."""
    return places.status(name)


def _add(log: KeyLog, name: str) -> None:
    """Take the keys in a capture of a store, up to where it is damaged."""
    try:
        for text in logged(places.open_packets(name)):
            log.add(text)
    except CaptureError as error:
        if error.reason.startswith(UNREADABLE):
            raise


def conversation_id(first: tuple[int, int, int, int]) -> int:
    """A number of a conversation that is the same in every run: that of its first packet, below that of its file."""
    return first[2] << FILE_BITS | first[1]


def dissect(
    batches: Iterator[pa.RecordBatch], options: Options, paths: dict[int, str] | None = None, until: int | None = None
) -> Iterator[Results]:
    """What rows say that are sorted as `SORTED_BY` and hold all packets of their conversations.

    `paths`: the files by index, for payload that was left out. `until`: more packets will come later; this is the latest capture time of
    those given so far. Nothing ends then because the rows do, and `Results.carry` has what has to be given with the next packets.
    """
    _begin(options)
    options = replace(options, waiting_total=NO_TOTAL, undecided_total=NO_TOTAL, open_total=NO_TOTAL)
    reader = _Reader(paths or {})
    mark = (-1, -1)
    opened = _Opened(options, until, len(paths or {}) != 1)
    for batch in batches:
        carried: list[dict[str, Any]] = []
        kind = _column(batch, "kind")
        if len(kind) and kind.max() >= CARRY:
            carries = kind >= CARRY
            carried = batch.filter(pa.array(carries)).to_pylist()
            batch = batch.filter(pa.array(~carries))
        if not batch.num_rows:
            for row in carried:
                yield from opened.carried(row)
            yield from opened.made()
            continue
        segments, flow_id, mark = _segments(batch, mark, reader)
        opened.twice.add(segments, flow_id)
        low = 0
        for row in carried:
            # What is carried sorts before the packets of its conversations
            high = int(np.searchsorted(flow_id, row["flow_id"], "left"))
            yield from opened.packets(segments, flow_id, low, high)
            yield from opened.carried(row)
            low = high
        yield from opened.packets(segments, flow_id, low, len(segments))
        yield from opened.made()
    yield from opened.end()


def _begin(options: Options) -> None:
    gc.set_threshold(200_000, 50, 50)
    _of_store.cache_clear()
    # Not when the first key is wanted, since a store that fails is no reason to go on without
    key_log(options.keylog)


class Straight:
    """Dissects segments that are in the order of a plain run, and hold all packets of their conversations."""

    def __init__(self, options: Options, several: bool) -> None:
        """`several`: they are of more than one file."""
        _begin(options)
        self._opened = _Opened(options, None, several)

    def take(self, segments: SegmentBatch) -> Iterator[Results]:
        """What some more of them make certain."""
        if len(segments):
            self._opened.twice.add(segments)
            yield from self._opened.feed(segments)
            yield from self._opened.made()

    def close(self) -> Iterator[Results]:
        """What is left at the end."""
        yield from self._opened.end()


class _Opened:
    """The conversations of the `flow_id` at hand, and what was made of them and those before."""

    def __init__(self, options: Options, until: int | None, several: bool) -> None:
        self.results = Results()
        self.twice = _Twice(several)
        self._held = 0
        """Bytes in rows to be carried."""
        self._options = replace(options, exchanges=True)
        self._until = until
        self._flow_id: int | None = None
        self._flow = b""
        self._inspector: FlowInspector | None = None
        self._row: dict[str, Any] | None = None
        """What was carried of these conversations, while no packet needs it."""

    def carried(self, row: dict[str, Any]) -> Iterator[Results]:
        """Take a row that was carried."""
        if row["kind"] == CARRY_IN_ORDER:
            self._carry(row)
            return
        if row["flow_id"] == self._flow_id and (self._row is not None or self._inspector is not None):
            raise ForeignState(f"there are two of the conversations {row['flow_id']}")
        yield from self.close()
        self._flow_id, self._flow, self._row = row["flow_id"], row["flow"], row
        if self._until is None or row["time_ns"] <= self._until:
            self._restore()

    def packets(self, segments: SegmentBatch, flow_id: NDArray[np.int64], low: int, high: int) -> Iterator[Results]:
        """Take the packets from `low` to `high`."""
        while low < high:
            if flow_id[low] != self._flow_id:
                yield from self.close()
            # Conversations that share a flow_id share an inspector; of the others all but the last are complete, and where nothing is
            # carried on they may be looked at together.
            following = int(flow_id[low] if self._until is not None else flow_id[high - 1])
            end = int(np.searchsorted(flow_id[low:high], following, "right")) + low
            if self._until is None:
                begin = int(np.searchsorted(flow_id[low:high], following, "left")) + low
                if begin > low:
                    yield from self._feed(segments, int(flow_id[low]), low, begin)
                    yield from self.close()
                    low = begin
            yield from self._feed(segments, following, low, end)
            low = end

    def feed(self, segments: SegmentBatch) -> Iterator[Results]:
        """Take packets of the conversations at hand; what became certain while there are more."""
        inspector = self._inspector
        if inspector is None:
            inspector = self._inspector = FlowInspector(self._options)
        for _ in inspector.feed(segments):
            if len(inspector.linked) >= HELD_RECORDS:
                yield from self.made()

    def _feed(self, segments: SegmentBatch, flow_id: int, low: int, high: int) -> Iterator[Results]:
        if self._row is not None:
            self._restore()
        if self._inspector is None:
            self._flow_id, self._flow = flow_id, segments.flow[low].tobytes()
        yield from self.feed(segments.rows(low, high))

    def _restore(self) -> None:
        assert self._row is not None
        self._inspector = FlowInspector.restore(self._row["payload"], self._options)
        self._row = None

    def made(self) -> Iterator[Results]:
        """What became certain so far."""
        if self._inspector is not None:
            self._take(self._inspector)
        results = self.results
        if results.records or results.conversations or results.carry or results.reports or results.twice or results.suspected:
            self.results = Results()
            self._held = 0
            yield results

    def close(self) -> Iterator[Results]:
        """No more rows of these conversations will come."""
        results, inspector, row = self.results, self._inspector, self._row
        if row is not None:
            self._carry(row)
        elif inspector is not None:
            if self._until is None:
                inspector.finish()
                results.conversations += inspector.rows(related=False)
            else:
                results.conversations += inspector.forget(self._until)
                due = inspector.due()
                if due is not None:
                    assert self._flow_id is not None
                    self._carry(_carry(CARRY, self._flow_id, self._flow, min(due, LATEST), inspector.state()))
            self._take(inspector)
        self._inspector = self._row = None
        if len(results.records) >= HELD_RECORDS or self._held >= HELD_BYTES:
            yield from self.made()

    def end(self) -> Iterator[Results]:
        """No more rows will come."""
        yield from self.close()
        self.results.twice = self.twice.found()
        yield from self.made()

    def _take(self, inspector: FlowInspector) -> None:
        self.results.records += inspector.take_linked()
        self.results.reports += inspector.reports
        inspector.reports.clear()
        self.results.suspected = earliest((self.results.suspected, inspector.reading.suspected))
        inspector.reading.suspected = None

    def _carry(self, row: dict[str, Any]) -> None:
        self.results.carry.append(row)
        self._held += len(row["payload"])


def earliest(rows: Iterable[ConversationRow | None]) -> ConversationRow | None:
    """Of some conversations the one that began first, by their numbers."""
    return min((row for row in rows if row is not None), key=lambda row: row.conversation, default=None)


def _carry(kind: int, flow_id: int, flow: bytes, time_ns: int, payload: bytes) -> dict[str, Any]:
    return {
        "kind": kind,
        "file": 0,
        "number": 0,
        "time_ns": time_ns,
        "merge_ns": EARLIEST,
        "flow_id": flow_id,
        "flow": flow,
        "length": len(payload),
        "wire": len(payload),
        "payload": payload,
    }


class _Reader:
    """Reads payload again from the files."""

    def __init__(self, paths: dict[int, str]) -> None:
        self._paths = paths
        self._maps: dict[int, mmap.mmap] = {}

    def pieces(self, files: list[int], places: list[int | None], lengths: list[int]) -> list[bytes]:
        """The bytes at these places of these files; none where the place is unknown."""
        maps = self._maps
        for file in set(files) - maps.keys():
            with Path(self._paths[file]).open("rb") as stream:
                maps[file] = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        return [
            maps[file][place : place + length] if place is not None else b""
            for file, place, length in zip(files, places, lengths, strict=True)
        ]


def _column(batch: pa.RecordBatch, name: str) -> NDArray[Any]:
    return np.asarray(batch.column(name).to_numpy(zero_copy_only=False))


def _segments(batch: pa.RecordBatch, mark: tuple[int, int], reader: _Reader) -> tuple[SegmentBatch, NDArray[np.int64], tuple[int, int]]:
    """The segments of a batch without those marked as seen before, their flow_id, and the last mark."""
    kind = _column(batch, "kind")
    if (kind == REPEATED).any() or mark[0] >= 0:
        file, number = _column(batch, "file"), _column(batch, "number")
        marked = kind == REPEATED
        drop = marked.copy()
        drop[1:] |= marked[:-1] & (file[1:] == file[:-1]) & (number[1:] == number[:-1])
        drop[0] |= (int(file[0]), int(number[0])) == mark
        mark = (int(file[-1]), int(number[-1])) if marked[-1] else (-1, -1)
        batch = batch.filter(pa.array(~drop))
    count = batch.num_rows
    payload = batch.column("payload")
    length = _column(batch, "length").astype(np.int64)
    if payload.null_count:
        files, places = batch.column("file").to_pylist(), batch.column("place").to_pylist()
        inside = payload.is_valid().to_pylist()
        again = [None if here or not size else place for here, place, size in zip(inside, places, length.tolist(), strict=True)]
        files = [file for file, place in zip(files, again, strict=True) if place is not None]
        wanted = [one for one in again if one is not None]
        sizes = [size for size, place in zip(length.tolist(), again, strict=True) if place is not None]
        found = iter(reader.pieces(files, list(wanted), sizes))
        own = payload.to_pylist()
        buffer = b"".join([(here or b"") if place is None else next(found) for here, place in zip(own, again, strict=True)])
        offset = np.cumsum(length) - length
    else:
        start, _ = payload.offset, payload.buffers()
        offsets = np.frombuffer(payload.buffers()[1], np.int32)[start : start + count + 1].astype(np.int64)
        first = int(offsets[0]) if count else 0
        data = payload.buffers()[2]
        buffer = b"" if data is None else data.slice(first, int(offsets[-1]) - first).to_pybytes()
        offset = offsets[:-1] - first
    flow = np.frombuffer(b"".join(batch.column("flow").to_pylist()), np.uint8).reshape(-1, 40)
    segments = SegmentBatch(
        buffer,
        np.zeros(count, np.int64),
        _column(batch, "time_ns"),
        _column(batch, "number"),
        _column(batch, "file"),
        flow,
        _column(batch, "reverse").astype(np.bool_),
        _column(batch, "seq"),
        _column(batch, "ack"),
        _column(batch, "flags").astype(np.uint8),
        np.zeros(count, np.int32),
        offset,
        length,
        _column(batch, "wire").astype(np.int64),
    )
    return segments, _column(batch, "flow_id"), mark


class _Twice:
    """Counts the segments that are alike and come from different files."""

    def __init__(self, several: bool) -> None:
        self._several = several
        self._alike: dict[tuple[int, int], int] = {}
        self._seen: list[NDArray[np.int64]] = []
        """Flows, files, and how many segments with data there were."""

    def add(self, segments: SegmentBatch, flow_id: NDArray[np.int64] | None = None) -> None:
        """Take some segments: those that are alike come near each other."""
        if not self._several:
            return
        flow_id = flow_ids(segments.flow) if flow_id is None else flow_id
        rows = np.flatnonzero(segments.length > 0)
        columns = (segments.file, segments.length, segments.seq, segments.reverse, flow_id)
        file, length, seq, reverse, flow = (column[rows].astype(np.int64) for column in columns)
        self._seen.append(_summed(np.stack([flow, file, np.ones_like(flow)])))
        if len(self._seen) >= PILED:
            self._seen = [_summed(np.concatenate(self._seen, axis=1))]
        if not len(file) or (file == file[0]).all():
            return
        order = np.lexsort((file, length, seq, reverse, flow))
        file, length, seq, reverse, flow = (key[order] for key in (file, length, seq, reverse, flow))
        alike = (flow[1:] == flow[:-1]) & (reverse[1:] == reverse[:-1]) & (seq[1:] == seq[:-1]) & (length[1:] == length[:-1])
        at = np.flatnonzero(alike & (file[1:] != file[:-1]))
        for pair in zip(file[at].tolist(), file[at + 1].tolist(), strict=True):
            self._alike[pair] = self._alike.get(pair, 0) + 1

    def found(self) -> dict[tuple[int, int], tuple[int, int]]:
        """Of two files that have flows in common how many segments of the second the first has too, of how many."""
        flow, file, count = np.concatenate([*self._seen, np.empty((3, 0), np.int64)], axis=1)
        return {
            (first, second): (found, int(count[(file == second) & np.isin(flow, flow[file == first])].sum()))
            for (first, second), found in self._alike.items()
        }


def _summed(seen: NDArray[np.int64]) -> NDArray[np.int64]:
    """Rows of flow, file and a number: one for each flow and file."""
    flow, file, count = seen[:, np.lexsort(seen[1::-1])]
    begin = np.flatnonzero(np.append(True, (flow[1:] != flow[:-1]) | (file[1:] != file[:-1]))[: len(flow)])
    return np.stack([flow[begin], file[begin], np.add.reduceat(count, begin)]) if len(begin) else seen


class Seen(msgspec.Struct):
    """What the packets that are looked at in order leave behind."""

    duplicates: Duplicates = msgspec.field(default_factory=Duplicates)
    odd: OddPackets = msgspec.field(default_factory=OddPackets)


def in_order(batches: Iterator[pa.RecordBatch], carry: bool = False) -> Iterator[pa.RecordBatch]:
    """What depends on packets of other conversations, from rows sorted as `IN_ORDER`: the segments of datagrams that came in fragments,
    and marks on packets that were seen before. `carry`: at the end a row of what has to be given with the next packets."""
    networks: dict[int, Seen] = {}
    given = False
    for batch in batches:
        names = ("kind", "file", "number", "time_ns", "merge_ns", "flow_id", "flow", "wire", "payload", "cooked", "digest")
        rows: list[dict[str, Any]] = []
        for kind, file, number, time_ns, merge_ns, flow_id, flow, wire, payload, cooked, digest in zip(
            *(batch.column(name).to_pylist() for name in names), strict=True
        ):
            place = {"file": file, "number": number, "time_ns": time_ns, "merge_ns": merge_ns}
            if kind == CARRY_IN_ORDER:
                if given:
                    raise ForeignState("there are two of the packets looked at in order")
                networks, given = state.decode(payload, Options()), True
                if type(networks) is not dict or {type(one) for one in networks.values()} - {Seen}:
                    raise ForeignState("it holds something else")
                continue
            network = flow_id if flow is None else int.from_bytes(flow[UNUSED], "big")
            seen = networks.get(network)
            if seen is None:
                seen = networks[network] = Seen()
            if digest is not None and seen.duplicates.again(digest, time_ns, cooked):
                if kind == SEGMENT:
                    rows.append({**place, "kind": REPEATED, "flow_id": flow_id, "flow": flow})
            elif kind == FRAGMENT:
                found = seen.odd.packet(payload, wire, time_ns)
                if not isinstance(found, str) and found.datagram is not None:
                    flow = found.flow[: UNUSED.start] + network.to_bytes(3, "big")
                    rows.append(
                        {
                            **place,
                            "kind": SEGMENT,
                            "flow_id": int(flow_ids(np.frombuffer(flow, np.uint8).reshape(1, 40))[0]),
                            "flow": flow,
                            "reverse": found.reverse,
                            "seq": found.seq,
                            "ack": found.ack,
                            "flags": found.flags,
                            "length": found.length,
                            "wire": found.wire,
                            "payload": found.datagram[found.offset : found.offset + found.length],
                        }
                    )
        for start in range(0, len(rows), ROWS):
            yield batch_of_rows(rows[start : start + ROWS])
    if carry:
        for seen in networks.values():
            seen.duplicates.forget()
        yield batch_of_rows([_carry(CARRY_IN_ORDER, 0, bytes(40), 0, state.encode(networks))])
