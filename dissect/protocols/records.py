"""What frames become: records, with what ordering and pairing need of them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from functools import lru_cache, partial
from operator import itemgetter, length_hint
from time import gmtime, strftime
from typing import TYPE_CHECKING, Any, NamedTuple

from dissect.errors import bug
from dissect.layout import UNREADABLE
from dissect.model import Fault, Gap, Message, Span
from dissect.protocols.flow import Range
from dissect.protocols.protocol import Tally

if TYPE_CHECKING:
    from dissect.protocols.base import Dissector

NONE, ASK, ANSWER, ASK_MANY, ANSWER_MANY, ANSWER_PART, GAP, ASK_MAYBE = range(8)
"""What a message does for pairing: nothing, asks, answers; with a list of keys; answers and leaves the request open; may be
answered (in trouble only), so is never missed: the newest with its key replaces the older."""

SENDERS: dict[int | None, tuple[Any, Any]] = {None: (None, None), 0: ("client", "server"), 1: ("server", "client")}
"""By the client's side, what each side is."""

UNKNOWN = -1
"""The size of a gap of which nobody knows how many bytes it has."""

LARGE = 1_024
"""From this size on what is remembered of a message is made smaller as soon as it was handed on."""


class Decoded(NamedTuple):
    """What `decode` returns; a plain tuple in this order will do and costs less."""

    name: str
    kind: Any
    id: int | str | None
    fields: dict[str, Any]
    outcome: str | None
    notes: Any
    fault: Fault | None
    role: int
    key: Any
    spans: list[Span] | None


Handler = Callable[[Any, int, bytes, int, int], "tuple[Any, ...] | None"]
"""Decodes a frame without flaw, given the dissector, side, bytes, start and end; None, or one of `UNREADABLE`, where it takes a closer
look."""

Handlers = Mapping[bytes, Handler]
"""By the bytes of a frame that say what it is."""


class Damage(NamedTuple):
    """Bytes are missing in a frame: its true `size`, and why (`reason`: "1448 bytes lost")."""

    size: int
    reason: str


class Broken(NamedTuple):
    """In the place of a gap's reason: an exception came where frames were cut, and takes effect when this one's turn comes."""

    what: str


class Postponed(Exception):
    """Raised when the turn of a `Broken` has come."""


class Emitted(NamedTuple):
    """A record with what ordering and pairing need; sorts by release, completing packet, client first, position."""

    release: int
    order: int
    rank: int
    position: int
    record: Any
    role: int
    key: Hashable
    first_time: int


class Cut(NamedTuple):
    """One frame, or a gap, between cutting and decoding; sorts by the members up to `position`. Made by `make_cut`."""

    release: int
    order: int
    rank: int
    position: int
    side: int
    first: int | None
    """The number of the first packet; None where it lies in an earlier file."""
    number: int
    file: int
    first_time: int
    time_ns: int
    data: Any
    """What holds the frame, from `start` to `end`; of a gap None, and `start` is its size."""
    start: int
    end: int
    damage: Any
    dissector: Any
    began: int
    """The order of the packet with which it began."""

    def later(self, release: int) -> Cut:
        """The same, not certain before this packet."""
        return self if self.release >= release else self._replace(release=release)

    def alone(self) -> Cut:
        """The same frame with its own bytes only, so that it can be kept."""
        return self._replace(data=self.data[self.start : self.end], start=0, end=self.end - self.start)


PLACE = itemgetter(0, 1, 2, 3)
"""Where a record stands, or a frame."""


def by_conversation(one: Emitted) -> tuple[int, int]:
    """Where a record stands among those of other conversations."""
    return one.release, one.record.conversation


make_emitted = partial(tuple.__new__, Emitted)
make_cut = partial(tuple.__new__, Cut)
"""Each of a tuple of its members, for less than the constructor costs."""


def records_of(cuts: list[Cut], failed: list[Dissector] | None = None) -> list[Emitted]:
    """The records of frames, in their order, and the exchanges that these make certain; the frames may be of many conversations.

    Called with frames of few packets at a time, as what is made of them is handed on and freed while it is in the processor's cache.
    An exception costs what follows of its conversation; `failed` gets the dissectors to which that happened.
    """
    emitted: list[Emitted] = []
    while cuts:
        left = iter(cuts)
        try:
            _make(left, emitted)
            break
        except Exception as error:
            what = str(error) if type(error) is Postponed else bug(error)
        at = len(cuts) - length_hint(left) - 1
        cut, dissector = cuts[at], cuts[at].dissector
        own = [one for one in cuts[at + 1 :] if one.dissector is dissector]
        cuts = [one for one in cuts[at + 1 :] if one.dissector is not dissector]
        dissector.fail(what, cut, own)
        dissector.count(-1 - len(own))
        dissector.take_back(emitted, cut)
        if failed is not None:
            failed.append(dissector)
    return emitted


def _make(cuts: Iterator[Cut], emitted: list[Emitted]) -> None:
    # Long, as it is done for each frame, which calls nothing here that most frames do not need
    append = emitted.append
    low = high = 0
    second_text = time = ""
    time_of = None
    for cut in cuts:
        (release, order, rank, position, side, first_number, number, file, first_time, time_ns, data, start, end, damage, dissector,
         began) = cut  # fmt: skip
        if time_ns != time_of:
            time_of = time_ns
            if not low <= time_ns < high:
                low, high, second_text = _second(time_ns)
            time = f"{second_text}{str(time_ns)[-9:]}Z" if low > 0 else rfc3339(time_ns)
        conversation, source, target, sender, protocol, flow, handlers, key_start, key_end = dissector.lanes[side]
        size = end - start
        handler = handlers.get(data[start + key_start : start + key_end]) if handlers and damage is None else None
        decoded = None
        if handler is not None:
            try:
                decoded = handler(dissector, side, data, start, end)
            except UNREADABLE:
                decoded = None
        if decoded is None:
            if data is None:
                one = dissector.gap(release, order, rank, position, side, time, time_ns, start, damage)
                append(one)
                if dissector.pairer is not None:
                    dissector.pairer.take(one, append)
                continue
            dissector.release, dissector.began, dissector.spread = release, began, first_number != number
            decoded = dissector.decode(side, data, start, end, damage)
            sender = SENDERS[dissector.client][side]
            if damage is not None:
                size = damage.size
        name, kind, ident, fields, outcome, notes, fault, role, key, spans = decoded
        if flow.notes:
            notes = dissector.segment_notes(side, position, size, notes)
        message = Message(
            1,
            0,
            time,
            time_ns,
            conversation,
            source,
            target,
            sender,
            protocol,
            name,
            kind,
            ident,
            file,
            (first_number, number),
            position,
            size,
            fields,
            None,
            outcome,
            None,
            notes,
            fault,
        )
        if spans is not None and dissector.options.detail:
            dissector.details(message, data[start:end], spans)
        if fault is not None:
            dissector.fault(fault)
        one = make_emitted((release, order, rank, position, message, role, key, first_time))
        append(one)
        if role and dissector.pairer is not None:
            dissector.pairer.take(one, append)
            if size >= LARGE:
                dissector.pairer.large.append((dissector.pairer, one))


def range_of(cut: Cut) -> Range | None:
    """The bytes of a frame, or of a gap that lies in no frame."""
    side, position, data, start, end, damage = cut.side, cut.position, cut.data, cut.start, cut.end, cut.damage
    if data is None:
        return None if damage[1] else (side, position, position + max(start, 0))
    return side, position, position + (end - start if damage is None else damage.size)


def is_broken(cut: Cut) -> bool:
    """Whether an exception came in this place."""
    return cut.data is None and type(cut.damage[0]) is Broken


def count_gap(tallies: Iterable[Tally], gap: Gap, number: int = 1) -> None:
    """Count a gap, or with a `number` of -1 take that back."""
    for tally in tallies:
        tally.gaps += number
        if gap.size is not None and (not gap.in_frame or gap.reason != "skipped"):
            tally.gap_bytes += number * gap.size


def straighten(rows: list[Any], sides: Iterable[int], since: tuple[int, int]) -> None:
    """Let what one packet made certain keep the order of its byte stream, though the later part may have been captured first.

    `rows` begin with release and order; `sides` are theirs, and `since` the releases from which on this is needed.
    """
    certain = [(-1, -1), (-1, -1)]
    for index, side in enumerate(sides):
        row = rows[index]
        release, order = row[0], row[1]
        before = certain[side]
        if before[0] == release and order < before[1] and release >= since[side]:
            rows[index] = tuple.__new__(type(row), (release, before[1], *row[2:]))
        else:
            certain[side] = (release, order)


def rfc3339(time_ns: int) -> str:
    """UTC with nine decimals."""
    second, rest = divmod(time_ns, 1_000_000_000)
    return f"{_second_text(second)}{rest:09d}Z"


def _second(time_ns: int) -> tuple[int, int, str]:
    """The second of `time_ns`: from, to, and its text up to the decimal point."""
    second = time_ns // 1_000_000_000
    return second * 1_000_000_000, (second + 1) * 1_000_000_000, _second_text(second)


@lru_cache(64)
def _second_text(second: int) -> str:
    """RFC 3339 up to the decimal point; a time outside the years that has is clamped to their ends."""
    second = min(max(second, -62_135_596_800), 253_402_300_799)
    return strftime("%Y-%m-%dT%H:%M:%S.", gmtime(second)).rjust(20, "0")
