"""One run over captures in several processes: each reads all packets, which is cheap, and dissects the conversations of its share.

What a worker renders of a record has holes where only the whole run knows what stands there, such as the record's number. The records of
all are merged in the order of one process, which fills the holes. A conversation is known by the order of its first packet until it has a
number.
"""

from __future__ import annotations

import pickle
import signal
import sys
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from heapq import merge
from itertools import cycle
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import Connection, wait
from threading import current_thread, main_thread
from typing import Any, NamedTuple, Protocol
from zlib import crc32

import msgspec

from streamdump.capture.files import CaptureReader, open_capture
from streamdump.capture.link import PacketCounters, back
from streamdump.conversation.conversation import NOTHING
from streamdump.conversation.forgotten import PackedRows
from streamdump.conversation.shared import RunCounters, SharedState
from streamdump.conversation.table import ConversationTable
from streamdump.errors import InternalError, Report
from streamdump.inspector import Dispute, Inspector
from streamdump.model import ConversationRow, Options, Record, Segment
from streamdump.protocols.buffer import END
from streamdump.protocols.records import PLACE, Event
from streamdump.tls.keys import KeyLog

TOGETHER = 512
"""So many records are handed on together at most."""

AHEAD = 16 << 20
"""Bytes that wait of a worker which is ahead of others; then it waits, too."""

NAMED = 1 << 16
"""After so many records of a worker, the numbers of those are forgotten that no other record can name any more."""

LOOKED = 4_096
"""After so many packets a worker looks what its conversations hold."""

BUCKETS, KNOWN = 4_096, 65_536
"""Pairs of endpoints are put into so many groups, which go to the workers in turn; whose so many of them are is remembered."""

Entry = tuple[int, int, int, int, int, int, int, int, int | None, int | None, Any]
"""A record as it travels: five integers that order it, of which the fifth is its conversation; its number among the worker's own, and the
worker; its time; the numbers of the request and the response that it names; what was rendered, if it is shown. Number 0: a conversation
begins. -1: nothing follows that belongs before."""

Values = tuple[int, int, int | None, int | None, int]
"""What fills the holes: the record's number, its conversation's, its request's, its response's, and nanoseconds since the first record."""

Told = tuple[Values, Any]
"""A record that is shown: what fills its holes, and what was rendered."""


class Work(Protocol):
    """What a worker makes of records."""

    options: Options

    def begin(self, inspector: Inspector) -> None:
        """Told the inspector before it reads."""

    def take(self, records: list[Record]) -> list[Any] | None:
        """What is rendered of each of them, None of one that is not shown. None instead of the list, always: nobody asks for numbers."""

    def named(self) -> list[int]:
        """The numbers of records that `end` names."""

    def end(self) -> Any:
        """What else the whole run wants to know."""


class Division(NamedTuple):
    """How a run is divided: the number of workers; what is called there, with these arguments, to make what they do; after how many records
    numbers are forgotten. The whole run adds what it reads: captures, key logs, and so many packets."""

    workers: int
    make: Callable[..., Work]
    arguments: tuple[Any, ...]
    named: int = NAMED
    captures: tuple[str, ...] = ()
    keylog: tuple[str, ...] = ()
    packets: int | None = None


class Batch(msgspec.Struct, array_like=True):
    """What a worker sends at once. `named`: the numbers that may still be named, where others are to be forgotten. `read`: bytes of each
    capture. `end`: what is sent once."""

    entries: list[Entry]
    named: list[int] | None
    read: list[int]
    end: bytes = b""


class End(NamedTuple):
    """What is left to tell when all is read. `held`: the most that was held of what all conversations may, as shares of the limits."""

    counters: RunCounters
    packets: PacketCounters
    refused: dict[int, int]
    suspected: ConversationRow | None
    rows: PackedRows
    disputes: list[Dispute]
    keys: KeyLog
    errors: list[tuple[Any, ...]]
    reports: list[Report]
    held: list[float]
    of_work: Any


_decode = msgspec.msgpack.Decoder(Batch).decode
_encode = msgspec.msgpack.Encoder().encode


# A worker


class ShareOfTable(ConversationTable):
    """The conversations of one share. All workers see all segments, so each tells by itself whose a pair of endpoints is."""

    def __init__(self, run: SharedState, share: int, workers: int) -> None:
        super().__init__(run, True, self._begin)
        self.begun: list[int] = []
        """The orders of the first packets of conversations that began since this was emptied."""
        self.places: deque[tuple[int, int, int, int]] = deque()
        """Where records stand that were not taken yet."""
        self.held = [0.0] * 4
        """The most that `look` found."""
        self._turns = cycle([one == share for one in range(workers)])
        self._buckets: dict[int, bool] = {}
        self._mine: dict[bytes, bool] = {}
        self._feed = super().feed

    def skips(self, ends: bytes) -> bool:
        """Whether another share has the segments with these ends, and none of this one waits for any segment."""
        mine = self._mine.get(ends)
        if mine is None:
            mine = self._look_up(ends)
        return not (mine or self.run.tls_manager.waiting)

    def feed(self, segment: Segment) -> list[Event]:
        if self.skips(segment.ends):
            return NOTHING
        found = self._feed(segment) if self._mine[segment.ends] else self._keys(NOTHING, segment.order)
        if found:
            order = segment.order
            self.places += [(order, one.record.conversation, 0, 0) for one in found]
        return found

    def finish(self) -> list[Event]:
        found = super().finish()
        self.places += [(END, *PLACE(one)) for one in found]
        return found

    def look(self) -> None:
        """Note what these hold of what all may, as shares of the limits."""
        run, options = self.run, self.run.options
        undecided = sum([one.detector.cost for one in run.detecting.values() if one.detector is not None])
        opened = sum([one.pairer.weight() for one in run.paired.values() if one.pairer is not None])
        held = undecided, run.pool.total, opened, len(self.conversations)
        limits = options.undecided_total, options.waiting_total, options.open_total, options.tracked_limit
        self.held = [max(most, now / limit) for most, now, limit in zip(self.held, held, limits, strict=True)]

    def _begin(self, segment: Segment) -> int:
        self.begun.append(segment.order)
        return segment.order

    def _look_up(self, ends: bytes) -> bool:
        if len(self._mine) > KNOWN:
            self._mine.clear()
        bucket = crc32(min(ends, back(ends))) % BUCKETS
        if bucket not in self._buckets:
            self._buckets[bucket] = next(self._turns)
        found = self._mine[ends] = self._buckets[bucket]
        return found


class Worker:
    """Dissects one share and sends what it makes of it."""

    def __init__(self, pipe: Connection, share: int, division: Division) -> None:
        self.pipe = pipe
        self.share = share
        self.division = division
        self.work = division.make(*division.arguments)
        self.readers = [open_capture(one) for one in division.captures]
        self.inspector = inspector = Inspector(self.readers, replace(self.work.options, keylog=division.keylog), bare=True)
        self.table = ShareOfTable(inspector.run, share, division.workers)
        inspector.table = inspector.session.table = self.table
        if not inspector.options.separate:
            # Else the ends lack the network
            inspector.link.skips = self.table.skips
        self.work.begin(inspector)
        self._pruned = self._looked = 0

    def run(self) -> None:
        """Read all, or as much as is asked for."""
        for records in self.inspector.batches(self.division.packets):
            rendered = self.work.take(records)
            self._send(self._entries(records, rendered), None if rendered is None else self._named(records))
            if self.inspector.counters.packets - self._looked > LOOKED:
                self._looked = self.inspector.counters.packets
                self.table.look()
            # Told to stop, or left alone
            if self.pipe.poll():
                break
        self.table.look()
        self._send([], None, pickle.dumps(self._end()))

    def _send(self, entries: list[Entry], named: list[int] | None, end: bytes = b"") -> None:
        self.pipe.send_bytes(_encode(Batch(entries, named, [one.bytes_read for one in self.readers], end)))

    def _entries(self, records: list[Record], rendered: list[Any] | None) -> list[Entry]:
        share, table = self.share, self.table
        entries: list[Entry] = [(order, -1, 0, 0, order, 0, share, 0, None, None, None) for order in table.begun]
        table.begun.clear()
        for record, shown in zip(records, rendered or [], strict=False):
            place, names = table.places.popleft(), (getattr(record, "request", None), getattr(record, "response", None))
            entries.append((*place, record.conversation, record.number, share, record.time_ns, *names, shown))  # type: ignore[arg-type]
        if rendered is None:
            table.places.clear()
        entries.sort()
        entries.append((self.inspector.counters.packets - 1, END, 0, 0, 0, -1, share, 0, None, None, None))
        return entries

    def _named(self, records: list[Record]) -> list[int] | None:
        """The numbers of records that may be named by following ones, from time to time."""
        if not records or records[-1].number - self._pruned < self.division.named:
            return None
        self._pruned = records[-1].number
        paired = [one.pairer for one in self.inspector.run.paired.values() if one.pairer is not None]
        kept = {message.number for pairer in paired for message in pairer.kept()}
        return [*kept.union(self.work.named()) - {0}]

    def _end(self) -> End:
        inspector, table = self.inspector, self.table
        for rows in inspector.each_rows(related=False):
            for row in rows:
                if table.knows(row.conversation):
                    table.packed.add(row, row.conversation, 0)
        return End(
            inspector.counters,
            inspector.link.counters,
            dict(inspector.run.refused),
            inspector.run.suspected,
            table.packed,
            inspector.disputed(),
            inspector.keys.account(),
            [(type(one), one.reason, one.file, one.offset, one.packet) for one in inspector.errors],
            [*inspector.reports],
            table.held,
            self.work.end(),
        )


def serve(pipe: Connection, share: int, division: Division) -> None:
    """What a worker's process does."""
    try:
        Worker(pipe, share, division).run()
    except (BrokenPipeError, ConnectionResetError):
        # Nobody wants it any more
        pipe.close()


# The process that merges


class Numbers:
    """The numbers that a worker's records have among all, as long as another record may name them."""

    def __init__(self) -> None:
        self.latest = array("Q")
        self._before = 0
        self._kept: dict[int, int] = {}

    def __getitem__(self, own: int) -> int:
        return self._kept[own] if own <= self._before else self.latest[own - self._before - 1]

    def keep(self, named: Iterable[int]) -> None:
        """Forget all others."""
        self._kept = {own: self[own] for own in named}
        self._before += len(self.latest)
        self.latest = array("Q")


class Link:
    """The merging process's end of a worker."""

    def __init__(self, share: int, division: Division) -> None:
        self.name = f"{share + 1} of {division.workers}"
        self.numbers = Numbers()
        self.end: End | None = None
        self.waiting: deque[bytes] = deque()
        self.over = False
        """It sends no more."""
        context = get_context("spawn")
        self.pipe, theirs = context.Pipe()
        with _uninterrupted():
            self.process = context.Process(target=serve, args=(theirs, share, division), daemon=True)
            self.process.start()
        theirs.close()

    def receive(self) -> None:
        """Take what it sent last."""
        try:
            with _uninterrupted():
                self.waiting.append(self.pipe.recv_bytes())
        except (EOFError, ConnectionResetError):
            self.over = True
            self.process.join()
            if self.process.exitcode:
                raise InternalError([self.lost()]) from None

    def lost(self) -> str:
        """What is said where it ended before its time."""
        code = self.process.exitcode or 0
        memory = ", as where memory runs out" if code == -9 else ""
        how = f"was ended by signal {-code}{memory}" if code < 0 else f"ended with code {code}"
        return f"worker {self.name} {how}: what follows is missing; --jobs 1 reads with one process"

    def stop(self) -> None:
        """Let it read no more."""
        try:
            self.pipe.send_bytes(b"")
        except OSError:
            # It has ended
            return

    def close(self) -> None:
        """End it, if it has not ended."""
        self.process.kill()
        self.process.join()
        self.pipe.close()


class Divided(Inspector):
    """Has workers inspect captures, and is in the end as if it had done so itself; what it hands on instead of records is `Told`."""

    def __init__(self, inputs: Sequence[CaptureReader], options: Options, division: Division) -> None:
        super().__init__(inputs, options, bare=True)
        self.division = division
        self.readers = inputs
        self.begun_ns: int | None = None
        """The time of the first record of all, shown or not."""
        self.of_work: list[Any] = []
        """What the workers' work told at its end."""
        self.crowded = False
        """What all workers held together may have been more than one process may hold."""
        self.conversations: dict[int, int] = {}
        """The numbers of conversations by the orders of their first packets."""
        self._links: list[Link] = []
        self._disputes: list[Dispute] = []

    def batches(self, packets: int | None = None) -> Iterator[list[Any]]:
        """What is shown, in the order of one process."""
        captures = tuple(one.name for one in self.readers)
        division = self.division._replace(captures=captures, keylog=self.options.keylog, packets=packets)
        for share in range(division.workers):
            self._links.append(Link(share, division))
        with self._heeding():
            yield from self._merged()
        self._sum_up()
        yield []

    def numbers(self, worker: int) -> Numbers:
        """The numbers of those records of a worker that can still be named."""
        return self._links[worker].numbers

    def disputed(self) -> list[Dispute]:
        return sorted(self._disputes)

    def close(self) -> None:
        """End what has not ended."""
        for link in self._links:
            link.close()

    @contextmanager
    def _heeding(self) -> Iterator[None]:
        """An interruption ends the reading, and what was read by then is counted; a second one ends everything."""

        def interrupt(*ignored: Any) -> None:
            if self.interrupted:
                raise KeyboardInterrupt
            self.interrupted = True
            for link in self._links:
                link.stop()

        heeded = current_thread() is main_thread() and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if heeded:
            signal.signal(signal.SIGINT, interrupt)
        try:
            yield
        finally:
            if heeded:
                signal.signal(signal.SIGINT, signal.default_int_handler)

    def _merged(self) -> Iterator[list[Told]]:
        links, conversations, number, begin_ns = self._links, self.conversations, 0, 0
        ready: list[Told] = []
        for _, _, _, _, conversation, own, share, time_ns, request, response, rendered in merge(*map(self._stream, links)):
            if own > 0:
                number += 1
                if number == 1:
                    self.begun_ns = begin_ns = time_ns
                numbers = links[share].numbers
                numbers.latest.append(number)
                if rendered is not None and not self.interrupted:
                    asked = None if request is None else numbers[request]
                    answer = None if response is None else numbers[response]
                    ready.append(((number, conversations[conversation], asked, answer, time_ns - begin_ns), rendered))
            elif own == 0:
                conversations[conversation] = len(conversations)
            elif ready:
                yield ready
                ready = []
            if len(ready) == TOGETHER:
                yield ready
                ready = []
        yield ready

    def _stream(self, link: Link) -> Iterator[Entry]:
        """What a worker sends."""
        while link.end is None:
            while not link.waiting:
                if link.over:
                    raise InternalError([link.lost()])
                self._receive()
            batch = _decode(link.waiting.popleft())
            yield from batch.entries
            for reader, read in zip(self.readers, batch.read, strict=True):
                reader.bytes_read = read
            if batch.named is not None:
                link.numbers.keep(batch.named)
            if batch.end:
                link.end = pickle.loads(batch.end)

    def _receive(self) -> None:
        """Wait until some worker has sent something."""
        open_ = {one.pipe: one for one in self._links if not one.over and sum(map(len, one.waiting)) < AHEAD}
        for pipe in wait(list(open_)):
            open_[pipe].receive()  # type: ignore[index]

    def _sum_up(self) -> None:
        """Take over what the workers know."""
        ends = [one.end for one in self._links if one.end is not None]
        self.crowded = any(sum(kind) > 1 for kind in zip(*[one.held for one in ends], strict=True))
        conversations = self.conversations
        for order in sorted({order for one in ends for order in one.rows.protocols()} - conversations.keys()):
            conversations[order] = len(conversations)
        for name in self.counters.__struct_fields__:
            told = [getattr(one.counters, name) for one in ends]
            setattr(self.counters, name, max(told) if name == "packets" else sum(told))
        suspected = [one.suspected for one in ends if one.suspected is not None]
        for row in sorted(suspected, key=lambda row: row.conversation)[:1]:
            self.run.suspected = msgspec.structs.replace(row, conversation=conversations[row.conversation])
        for one in ends:
            self.run.refused.update(one.refused)
            self.table.packed.take(one.rows, conversations)
            self._disputes += [dispute._replace(conversation=conversations[dispute.conversation]) for dispute in one.disputes]
            for report in one.reports:
                known = report.conversation is not None
                self.reports.append(report._replace(conversation=conversations[report.conversation]) if known else report)  # type: ignore[index]
            self.of_work.append(one.of_work)
        whole = max(ends, key=lambda one: one.packets.packets)
        self.link.counters = whole.packets
        self.errors += [kind(*said) for kind, *said in whole.errors]
        self.keys = max([one.keys for one in ends], key=lambda keys: (keys.changes, keys.rsa + keys.damaged))


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """An interruption waits meanwhile. Processes that are started do not heed it ever: it is for the one that started them."""
    if sys.platform == "win32":
        yield
        return
    # What it starts first lets interruptions through again
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
