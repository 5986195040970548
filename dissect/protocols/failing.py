"""What becomes of a conversation's frames and records when an exception came."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import Any

from dissect.errors import Failure
from dissect.model import Exchange, Gap, Message
from dissect.protocols.flow import END, Range
from dissect.protocols.framing import Framing
from dissect.protocols.protocol import Tally
from dissect.protocols.records import Cut, Emitted, count_gap, range_of


class Failing(Framing):
    """Cuts frames, and knows what is not handed on because of an exception."""

    tally: Tally
    pairer: Any
    ready: list[Emitted]
    failure: Failure | None
    untold: list[Message | Gap]

    def count(self, records: int) -> None:
        self.tally.records += records
        self.context.total.records += records

    def fail(self, what: str, cut: Cut, rest: Iterable[Cut] = ()) -> None:
        """An exception came with a frame: nothing is handed on from it on, nor of the `rest`."""
        if self.failure is None:
            self.failure = Failure(what, cut.release, cut.number, cut.file)
        self.drop((cut, *rest))

    def drop(self, cuts: Iterable[Cut]) -> None:
        """Frames and gaps are not handed on."""
        self.unsent += [whole for whole in map(range_of, cuts) if whole is not None]

    def drop_made(self, emitted: Iterable[Emitted]) -> None:
        """Records, which were counted, are not handed on."""
        for one in emitted:
            record, position = one.record, one.position
            if type(record) is Exchange:
                continue
            self.count(-1)
            self._discount(record)
            self.untold.append(record)
            if type(record) is Message or not record.in_frame:
                self.unsent.append((int(record.src != self.context.endpoints[0]), position, position + (record.size or 0)))

    def take_back(self, emitted: list[Emitted], cut: Cut) -> None:
        """What was made of a frame before an exception came is not handed on; what pairing told of other requests is."""
        at = len(emitted)
        while at and type(emitted[at - 1][4]) is Exchange:
            at -= 1
        one = emitted[at - 1] if at else None
        if one is not None and one[1:4] == cut[1:4] and one.record.conversation == self.context.conversation:
            behind = emitted[at:]
            del emitted[at - 1 :]
            self.untold.append(one.record)
            self._discount(one.record)
            emitted += self.pairer.take_back(one.record, behind)

    def fail_made(self, what: str, emitted: list[Emitted], out: list[Emitted], pairer: Any) -> None:
        """An exception came as the last record in `out` was paired, one of those `emitted`: it and those behind it are not handed on."""
        at = next((at for at in reversed(range(len(out))) if type(out[at][4]) is not Exchange), 0)
        one, behind = out[at] if out else emitted[0], out[at + 1 :]
        del out[at:]
        out += pairer.take_back(one.record, behind)
        number, file = (one.record.packets[1], one.record.file) if type(one.record) is Message else (None, None)
        self.failure = Failure(what, one.release, number, file)
        self.drop_made(emitted[next(index for index, other in enumerate(emitted) if other is one) :])

    def break_off(self, failure: Failure) -> None:
        """An exception came with a packet: nothing is handed on of what was certain later."""
        self._uncut()
        place = bisect_left(self._cuts, (failure.release + 1,), self._emitted)
        self._put_broken(0, failure.what, failure.release, (failure.release, failure.number or 0, failure.file or 0, 0))
        self._cuts.insert(place, self._cuts.pop())
        for flow in self.flows:
            flow.broken = True

    def missed(self) -> list[Range]:
        """All that was not handed on, in no order, and for each side the rest, which ends with `END`."""
        self.drop(self._cuts[self._emitted :])
        self.drop_made(self.ready)
        return [*self.unsent, *((side, self.flows[side].told, END) for side in (0, 1))]

    def _discount(self, record: Message | Gap) -> None:
        """A record that was counted is not handed on."""
        tallies = (self.tally, self.context.total)
        if type(record) is Gap:
            count_gap(tallies, record, -1)
        elif record.fault is not None:  # type: ignore[union-attr]
            for tally in tallies:
                tally.faults -= 1
