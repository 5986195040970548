"""What differs between what a capture says and what its golden file says it should."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from streamdump.golden.align import aligned, common, out_of_order
from streamdump.golden.model import FAULT, GAP, NOTES, GoldenConversation, Line, Total, Transcript, ordered
from streamdump.golden.ranges import ranges, without
from streamdump.golden.settings import CheckSettings, duration_text
from streamdump.golden.text import ENDS, fields_text, head
from streamdump.golden.values import Alias, Placeholder, ValueSet, cut, same, shown, text_of

AROUND = 2
"""Lines shown before and behind a difference."""

WIDE = 116
"""Columns that such a line may have."""

TOLD = 2_000
"""Characters of each line and value that are told."""

FIELDS_SHOWN = 6
"""Fields that a difference lists."""

PAIRS = 250_000
"""Pairs of conversations that are compared to find out which belong together; with more, those alike are taken in order."""

ALIKE = 1 / 3
"""How much of two conversations must be the same for them to be compared."""

SKETCH = 128
"""Fields of a conversation that are looked at for that."""

Kind = Literal["field", "answer", "missing", "extra", "moved", "latency"]


class Change(msgspec.Struct):
    """A field that differs; None: it is not there."""

    field: str
    golden: str | None
    got: str | None


class Difference(msgspec.Struct):
    """One difference: where, what, and the lines around."""

    kind: Kind
    conversation: str
    message: str | None
    text: str
    """In a line: what was found, what was expected, and the packet."""
    changes: list[Change] = msgspec.field(default_factory=list)
    packet: int | None = None
    line: int | None = None
    """The line of the golden file."""
    context: list[str] = msgspec.field(default_factory=list)


class Words(NamedTuple):
    """What that is called with which a capture is compared."""

    then: str = "golden"
    there: str = "the golden file"


GOLDEN_FILE, OLD_CAPTURE = Words(), Words("old", "the old capture")


def differences(golden: Transcript, got: Transcript, settings: CheckSettings, words: Words = GOLDEN_FILE) -> list[Difference]:
    """What differs, conversation by conversation in the order of the golden file."""
    found = _Comparison(golden, got, settings, words).run()
    for one in found:
        one.text = cut(one.text, TOLD)
        one.context = [cut(line, TOLD) for line in one.context]
        for change in one.changes:
            change.field = cut(change.field, TOLD)
            change.golden = change.golden and cut(change.golden, TOLD)
            change.got = change.got and cut(change.got, TOLD)
    return found


class _Same:
    """Which alias of the golden file stands for which of the capture."""

    def __init__(self) -> None:
        self._votes: Counter[tuple[Alias, Alias]] = Counter()
        self._there: dict[Alias, Alias] = {}
        self._back: dict[Alias, Alias] = {}

    def vote(self, golden: Alias, got: Alias) -> None:
        if golden.kind == got.kind:
            self._votes[golden, got] += 1

    def settle(self) -> None:
        """What stands in most places for each other does."""
        for golden, got in sorted(self._votes, key=lambda pair: -self._votes[pair]):
            if golden not in self._there and got not in self._back:
                self._there[golden] = got
                self._back[got] = golden

    def equal(self, golden: Any, got: Any) -> bool:
        if isinstance(golden, Alias) and isinstance(got, Alias):
            return self._there.get(golden) == got
        if isinstance(golden, list) and isinstance(got, list):
            return len(golden) == len(got) and all(map(self.equal, golden, got))
        if isinstance(golden, ValueSet) and isinstance(got, ValueSet):
            return len(golden.values) == len(got.values) and all(any(self.equal(one, two) for two in got.values) for one in golden.values)
        return same(golden, got)

    def named(self, got: Any) -> Any:
        """A value of the capture with the golden file's names."""
        if isinstance(got, Alias):
            return self._back.get(got) or Placeholder(f"{got.kind} new")
        if isinstance(got, list):
            return [self.named(one) for one in got]
        if isinstance(got, ValueSet):
            return ValueSet(tuple(self.named(one) for one in got.values))
        return got


class _Keys:
    """What lines are recognised by; aliases count as what they are, not which."""

    def __init__(self) -> None:
        self._own: dict[int, int] = {}
        self._whole: dict[int, int] = {}

    def own(self, line: Line) -> int:
        """By all that it says."""
        found = self._own.get(id(line))
        if found is None:
            found = self._own[id(line)] = hash((line.name, line.kind, line.outcome, _told(line.fields)))
        return found

    def whole(self, line: Line) -> int:
        """By all that it says, and its responses."""
        found = self._whole.get(id(line))
        if found is None:
            found = self._whole[id(line)] = hash((self.own(line), *map(self.own, line.responses)))
        return found

    @staticmethod
    def content(line: Line) -> Hashable:
        """By what it says itself; notes depend on where it stands."""
        return line.name, line.kind, line.outcome, _told({path: value for path, value in line.fields.items() if path != NOTES})

    @staticmethod
    def outcome(line: Line) -> Hashable:
        return line.name, line.kind, line.outcome, *(one.outcome for one in line.responses)

    @staticmethod
    def name(line: Line) -> Hashable:
        return line.name, line.kind

    def levels(self) -> list[Callable[[Line], Hashable]]:
        return [self.whole, self.own, self.outcome, self.name]


def _told(fields: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((path, _plain(value)) for path, value in fields.items()))


def _plain(value: Any) -> str:
    return f"<{value.kind}>" if isinstance(value, Alias) else shown(value) if not isinstance(value, ValueSet) else str(value)


class _Pair:
    """Two conversations that belong together, and what of them does."""

    def __init__(self, golden: GoldenConversation, got: GoldenConversation, keys: _Keys, unordered: bool) -> None:
        self.golden = golden
        self.got = got
        self.lines: list[tuple[Line, Line]] = []
        self.flows: list[tuple[Total, Total]] = []
        self.missing: list[Line] = []
        self.extra: list[Line] = []
        self.moved: list[tuple[Line, Line]] = []
        self._keys = keys
        self._pair_lines()
        if not unordered:
            self._find_moved()
        else:
            self._find_moved(frozenset(("response",)))
        theirs = {(flow.side, flow.name, flow.by): flow for flow in got.flows}
        for flow in golden.flows:
            other = theirs.pop((flow.side, flow.name, flow.by), None)
            if other is not None:
                self.flows.append((flow, other))
        self.flows_missing = [one for one in golden.flows if not any(one is pair[0] for pair in self.flows)]
        self.flows_extra = list(theirs.values())

    def _pair_lines(self) -> None:
        one, other = _by_lane(self.golden), _by_lane(self.got)
        missing: list[Line] = []
        extra: list[Line] = []
        for lane in dict.fromkeys((*one, *other)):
            mine, theirs = one.get(lane, []), other.get(lane, [])
            pairs = aligned(mine, theirs, self._keys.levels())
            self.lines += [(mine[a], theirs[b]) for a, b in pairs]
            here, there = {a for a, _ in pairs}, {b for _, b in pairs}
            lost = [line for at, line in enumerate(mine) if at not in here]
            new = [line for at, line in enumerate(theirs) if at not in there]
            lost, new = self._take_moved(lost, new)
            missing += lost
            extra += new
        for golden, got in [*self.lines, *self.moved]:
            self._pair_responses(golden, got)
        self.missing += _not_implied(missing, extra)
        self.extra += _not_implied(extra, missing)

    def _take_moved(self, lost: list[Line], new: list[Line]) -> tuple[list[Line], list[Line]]:
        """Lines that say the same elsewhere."""
        for key in (self._keys.whole, self._keys.own, self._keys.content):
            there: dict[Hashable, deque[Line]] = {}
            for line in new:
                there.setdefault(key(line), deque()).append(line)
            left = []
            for line in lost:
                found = there.get(key(line))
                if found:
                    self.moved.append((line, found.popleft()))
                else:
                    left.append(line)
            taken = {id(pair[1]) for pair in self.moved}
            lost, new = left, [line for line in new if id(line) not in taken]
        return lost, new

    def _pair_responses(self, golden: Line, got: Line) -> None:
        if len(golden.responses) == len(got.responses) == 1:
            self.lines.append((golden.responses[0], got.responses[0]))
            return
        pairs = aligned(golden.responses, got.responses, self._keys.levels())
        self.lines += [(golden.responses[a], got.responses[b]) for a, b in pairs]
        if golden.responses and got.responses:
            here, there = {a for a, _ in pairs}, {b for _, b in pairs}
            self.missing += [line for at, line in enumerate(golden.responses) if at not in here]
            self.extra += [line for at, line in enumerate(got.responses) if at not in there]

    def _find_moved(self, free: frozenset[str] = frozenset()) -> None:
        """Pairs whose order among those of their side and lane is another one."""
        self.moved = [pair for pair in self.moved if pair[0].kind not in free]
        places = {id(line): at for at, line in enumerate(self.golden.lines)}
        when = {id(line): at for at, line in enumerate(self.got.lines)}
        known = {id(line) for pair in self.moved for line in pair}
        lanes: dict[tuple[int, str], list[tuple[Line, Line]]] = {}
        for golden, got in self.lines:
            if got.kind in free or id(golden) in known or (golden.request is not None and id(golden.request) in known):
                continue
            lanes.setdefault((golden.side, golden.lane), []).append((golden, got))
        for pairs in lanes.values():
            pairs.sort(key=lambda pair: when[id(pair[1])])
            self.moved += [pairs[at] for at in out_of_order([places[id(pair[0])] for pair in pairs])]

    def values(self) -> Iterator[tuple[Any, Any]]:
        """Values of the same field, in all that belongs together."""
        yield from zip(self.golden.ends, self.got.ends, strict=True)
        pairs: list[tuple[Line | Total, Line | Total]] = [*self.lines, *self.moved, *self.flows]
        for golden, got in pairs:
            for path, value in golden.fields.items():
                if path in got.fields:
                    yield value, got.fields[path]


def _not_implied(lines: list[Line], others: list[Line]) -> list[Line]:
    """`lines` without responses that lack nothing but the request, which is among the `others`."""
    asked = [line for line in others if line.responses]
    left: list[Line] = []
    for line in lines:
        if line.kind == "response" and line.request is None:
            found = next((one for one in asked if line.name in {response.name for response in one.responses}), None)
            if found is not None:
                asked.remove(found)
                continue
        left.append(line)
    return left


def _by_lane(conversation: GoldenConversation) -> dict[tuple[int, str], list[Line]]:
    """What does not belong to a request, by side and lane."""
    lanes: dict[tuple[int, str], list[Line]] = {}
    for line in conversation.lines:
        if line.request is None:
            lanes.setdefault((line.side, line.lane), []).append(line)
    return lanes


class _Comparison:
    """One capture and its golden file."""

    def __init__(self, golden: Transcript, got: Transcript, settings: CheckSettings, words: Words) -> None:
        self.words = words
        self.golden = golden
        self.got = got
        self.settings = settings
        self.keys = _Keys()
        self.same = _Same()
        self.found: list[Difference] = []

    def run(self) -> list[Difference]:
        matched = match(self.golden.conversations, self.got.conversations, self.keys)
        pairs = [_Pair(golden, got, self.keys, self.settings.unordered) for golden, got in matched]
        for pair in pairs:
            for one, other in pair.values():
                self._vote(one, other)
        self.same.settle()
        known = {id(pair.golden): pair for pair in pairs}
        for golden in self.golden.conversations:
            if id(golden) in known:
                self._pair(known[id(golden)])
            else:
                text = f"conversation {golden.title}: is missing ({golden.protocol}, {_count(golden)})"
                self.found.append(Difference("missing", golden.title, None, text, line=golden.at, context=_first(golden, "-")))
        taken = {id(got) for _, got in matched}
        for got in self.got.conversations:
            if id(got) not in taken:
                title = f"{got.title} of the capture"
                text = f"conversation {title}: is not in {self.words.there} ({got.protocol}, {_count(got)}{_at(got.packet)})"
                self.found.append(Difference("extra", title, None, text, packet=got.packet, context=_first(got, "+")))
        self._latencies({id(got): golden for golden, got in matched})
        return self.found

    def _vote(self, golden: Any, got: Any) -> None:
        if isinstance(golden, Alias) and isinstance(got, Alias):
            self.same.vote(golden, got)
        elif isinstance(golden, list) and isinstance(got, list) and len(golden) == len(got):
            for one, other in zip(golden, got, strict=True):
                self._vote(one, other)

    # One conversation

    def _pair(self, pair: _Pair) -> None:
        title = pair.golden.title
        told: list[tuple[int, Difference]] = []
        shown_golden = ordered(pair.golden.lines)
        shown_got = ordered(pair.got.lines)
        place = {id(line): at for at, line in enumerate(shown_golden)}
        place_got = {id(line): at for at, line in enumerate(shown_got)}

        def add(at: int, difference: Difference) -> None:
            told.append((at, difference))

        if pair.golden.layout != pair.got.layout:
            add(-1, _other_layout(pair.golden, pair.got, self.words))
        answered = {id(golden) for golden, _ in pair.lines if golden.kind == "response"}
        partner = {id(got): golden for golden, got in (*pair.lines, *pair.moved)}
        before: list[Line | None] = []
        """What the nearest line in front of each belongs to."""
        nearest: Line | None = None
        for line in shown_got:
            before.append(nearest)
            nearest = partner.get(id(line), nearest)
        crossed: list[tuple[int, int, list[Change]]] = []
        for golden, got in pair.moved:
            nearest = before[place_got[id(got)]]
            low, high = sorted((place[id(golden)], -1 if nearest is None else place[id(nearest)]))
            crossed.append((low, high, []))
        for golden, got in (*pair.lines, *pair.moved):
            if golden.kind == "request":
                difference = self._unlike_end(title, golden, got, answered)
                if difference is not None:
                    difference.context = self._context(shown_golden, place[id(golden)], golden, got, difference)
                    add(place[id(golden)], difference)
            difference = self._unlike(title, golden, got)
            if difference is not None and all(change.field == NOTES for change in difference.changes) and difference.kind == "field":
                # Somebody stands elsewhere, and that is noted
                around = next((notes for low, high, notes in crossed if low <= place[id(golden)] <= high), None)
                if around is not None:
                    around += [Change(f"{_what(golden)}: notes", one.golden, one.got) for one in difference.changes]
                    continue
            if difference is not None:
                difference.context = self._context(shown_golden, place[id(golden)], golden, got, difference)
                add(place[id(golden)], difference)
        for golden in pair.missing:
            text = f"conversation {title}: {_what(golden)} is missing"
            difference = Difference("missing", title, golden.name, text, line=golden.at)
            difference.context = self._context(shown_golden, place[id(golden)], golden, None, difference)
            add(place[id(golden)], difference)
        for got in pair.extra:
            text = f"conversation {title}: {_what(got)} is not in {self.words.there}{_at(got.packet)}"
            difference = Difference("extra", title, got.name, text, packet=got.packet)
            at = place_got[id(got)]
            difference.context = self._context(shown_got, at, None, got, difference)
            nearest = before[at]
            difference.line = pair.golden.at if nearest is None else nearest.at
            add(-1 if nearest is None else place[id(nearest)], difference)
        for (golden, got), (_, _, notes) in zip(pair.moved, crossed, strict=True):
            at, at_got = place[id(golden)], place_got[id(got)]
            where, expected = _behind(shown_got, at_got), _behind(shown_golden, at)
            text = f"conversation {title}: {_what(golden)} comes {where}, {self.words.then} {expected}"
            text += f"{f'; {_said(notes, self.words)}' if notes else ''}{_at(got.packet)}"
            difference = Difference("moved", title, golden.name, text, notes, got.packet, golden.at)
            difference.context = self._context(shown_golden, at, golden, None, difference)
            add(at, difference)
        told.sort(key=lambda one: one[0])
        self.found += [difference for _, difference in told]
        self._flows(pair)

    def _unlike_end(self, title: str, golden: Line, got: Line, answered: set[int]) -> Difference | None:
        """A request that was answered in one of the two only."""
        if bool(golden.responses) == bool(got.responses):
            if golden.outcome == got.outcome or golden.responses:
                return None
            now, then = _end(got), _end(golden)
        else:
            now, then = _end(got), _end(golden)
        place = got.responses[0].packet if got.responses else got.packet
        text = f"conversation {title}: {golden.name} {now}, {self.words.then} {_shorter(then, now)}{_at(place)}"
        return Difference("answer", title, golden.name, text, [Change("outcome", then, now)], place, golden.at)

    def _unlike(self, title: str, golden: Line, got: Line) -> Difference | None:
        """What two lines that belong together say differently."""
        changes = self._changes(golden.fields, got.fields, golden.labels, got.labels)
        if golden.name != got.name:
            changes.insert(0, Change("name", golden.name, got.name))
        differs = golden.kind in ("response", GAP) and golden.outcome != got.outcome
        if not changes and not differs:
            return None
        where = _at(got.packet)
        if golden.kind == "response" and (differs or _labelled(golden, got, changes)):
            asked = golden.request.name if golden.request is not None else golden.name
            now, then = _answer(got, golden, changes), _answer(golden, got, changes)
            text = f"conversation {title}: {asked} {now}, {self.words.then} {_shorter(then, now)}{where}"
            return Difference("answer", title, golden.name, text, changes, got.packet, golden.at)
        if not changes:
            changes = [Change("reason", golden.outcome, got.outcome)]
        text = f"conversation {title}: {_what(golden)}: {_said(changes, self.words)}{where}"
        return Difference("field", title, golden.name, text, changes, got.packet, golden.at)

    def _changes(
        self, golden: Mapping[str, Any], got: Mapping[str, Any], labels: Mapping[str, str], other: Mapping[str, str]
    ) -> list[Change]:
        changes = [
            Change(path, _text(path, value, labels), _text(path, self.same.named(got[path]), other) if path in got else None)
            for path, value in golden.items()
            if path not in got or not self.same.equal(value, got[path])
        ]
        changes += [Change(path, None, _text(path, self.same.named(value), other)) for path, value in got.items() if path not in golden]
        return changes

    def _context(self, lines: Sequence[Line], at: int, golden: Line | None, got: Line | None, difference: Difference) -> list[str]:
        """The lines around a difference, and in their middle what was expected and what is there."""
        told = [f"    {_short(line)}" for line in lines[max(0, at - AROUND) : at]]
        changed = {change.field for change in difference.changes}
        if golden is not None:
            told.append(f"  - {_short(golden, changed)}")
        if got is not None:
            told.append(f"  + {_short(got, changed, self.same)}")
        return told + [f"    {_short(line)}" for line in lines[at + 1 : at + 1 + AROUND]]

    # Flows

    def _flows(self, pair: _Pair) -> None:
        title = pair.golden.title
        for flow in pair.flows_missing:
            text = f"conversation {title}: {_what(flow)} is missing"
            self.found.append(Difference("missing", title, flow.name, text, line=flow.at, context=[f"  - {_short(flow)}"]))
        for flow in pair.flows_extra:
            text = f"conversation {title}: {_what(flow)} is not in {self.words.there}{_at(flow.packet)}"
            self.found.append(Difference("extra", title, flow.name, text, packet=flow.packet, context=[f"  + {_short(flow)}"]))
        for golden, got in pair.flows:
            changes = self._changes(golden.fields, got.fields, golden.labels, got.labels)
            if changes:
                text = f"conversation {title}: {_what(golden)}: {_said(changes, self.words)}{_at(got.packet)}"
                context = [f"  - {_short(golden, {one.field for one in changes})}", f"  + {_short(got, {one.field for one in changes})}"]
                self.found.append(Difference("field", title, golden.name, text, changes, got.packet, golden.at, context))
            if golden.form == "set":
                self._set(title, golden, got)
            else:
                self._items(title, golden, got)

    def _set(self, title: str, golden: Total, got: Total) -> None:
        lost, new = without(golden.items, got.items), without(got.items, golden.items)
        told = ([f"{ranges(lost)} missing"] if lost else []) + ([f"{ranges(new)} not in {self.words.there}"] if new else [])
        if told:
            packet = got.numbers.get(new[0][0]) if new else got.packet
            text = f"conversation {title}: {_what(golden)}: {' and '.join(told)}{_at(packet)}"
            change = Change("items", ranges(golden.items), ranges(got.items))
            context = [f"  - {ranges(golden.items)}", f"  + {ranges(got.items)}"]
            self.found.append(Difference("field", title, golden.name, text, [change], packet, golden.at, context))

    def _items(self, title: str, golden: Total, got: Total) -> None:
        one, other = ([_told(item) for item in flow.items] for flow in (golden, got))
        pairs = common(one, other)
        runs: list[tuple[range, range]] = []
        before = -1, -1
        for pair in [*pairs, (len(one), len(other))]:
            run = range(before[0] + 1, pair[0]), range(before[1] + 1, pair[1])
            if run[0] or run[1]:
                runs.append(run)
            before = pair
        runs = self._without_moved(title, golden, got, one, other, runs)
        for mine, theirs in runs:
            self.found.append(self._run(title, golden, got, mine, theirs))

    def _without_moved(
        self,
        title: str,
        golden: Total,
        got: Total,
        one: Sequence[Hashable],
        other: Sequence[Hashable],
        runs: list[tuple[range, range]],
    ) -> list[tuple[range, range]]:
        """Tell of items that stand elsewhere; the other runs."""
        new = {tuple(other[at] for at in theirs): theirs for mine, theirs in runs if not mine}
        left = []
        gone: set[range] = set()
        for mine, theirs in runs:
            found = new.pop(tuple(one[at] for at in mine), None) if not theirs else None
            if found is None:
                left.append((mine, theirs))
                continue
            gone.add(found)
            packet = got.packets[found[0]]
            stand = "stands" if len(mine) == 1 else "stand"
            text = f"conversation {title}: {_what(golden)}: {_numbered(mine)} {stand} at {found[0]}{_at(packet)}"
            context = [f"  - {_item(golden.items[mine[0]], golden.labels)}"]
            self.found.append(Difference("moved", title, golden.name, text, [], packet, _item_line(golden, mine[0]), context))
        return [run for run in left if not (not run[0] and run[1] in gone)]

    def _run(self, title: str, golden: Total, got: Total, mine: range, theirs: range) -> Difference:
        """Items in a row that differ."""
        packet = got.packets[theirs[0]] if theirs else got.packet
        line = _item_line(golden, mine[0] if mine else max(0, mine.start - 1))
        context = [f"    {_item(golden.items[at], golden.labels)}" for at in range(max(0, mine.start - AROUND), mine.start)]
        context += [f"  - {_item(golden.items[at], golden.labels)}" for at in mine[:AROUND]]
        context += [f"  + {_item(got.items[at], got.labels)}" for at in theirs[:AROUND]]
        context += [f"    {_item(golden.items[at], golden.labels)}" for at in range(mine.stop, min(len(golden.items), mine.stop + AROUND))]
        start = f"conversation {title}: {_what(golden)}: "
        changes: list[Change] = []
        if len(mine) == len(theirs):
            for a, b in zip(mine, theirs, strict=True):
                found = self._changes(golden.items[a], got.items[b], golden.labels, got.labels)
                changes += [Change(f"item {a} {change.field}", change.golden, change.got) for change in found]
            more = f", and {len(mine) - 1:,} items behind it" if len(mine) > 1 else ""
            first = changes[: 1 if len(mine) > 1 else None]
            text = f"{start}{_said(first, self.words) if first else f'{_numbered(mine)} differ'}{more}{_at(packet)}"
            return Difference("field", title, golden.name, text, changes[: 4 * FIELDS_SHOWN], packet, line, context)
        if not theirs:
            return Difference("missing", title, golden.name, f"{start}{_numbered(mine)} missing", [], packet, line, context)
        if not mine:
            text = f"{start}{_numbered(theirs)} not in {self.words.there}{_at(packet)}"
            return Difference("extra", title, golden.name, text, [], packet, line, context)
        text = f"{start}{len(theirs):,} other items instead of {_numbered(mine)}{_at(packet)}"
        return Difference("field", title, golden.name, text, [], packet, line, context)

    # Times

    def _latencies(self, matched: dict[int, GoldenConversation]) -> None:
        for conversation in self.got.conversations:
            limits: dict[str, int] = {}
            for _, own in self.settings.scopes(conversation.protocol):
                limits |= own.max_latency
            title = matched[id(conversation)].title if id(conversation) in matched else conversation.title
            for line in conversation.lines if limits else ():
                asked = line.request.name if line.request is not None else line.name
                most = limits.get(asked, limits.get("*"))
                if most is not None and line.latency_ns is not None and line.latency_ns > most:
                    took, allowed = duration_text(line.latency_ns), duration_text(most)
                    text = f"conversation {title}: {asked} answered after {took}, allowed are {allowed}{_at(line.packet)}"
                    change = Change("latency", allowed, took)
                    self.found.append(Difference("latency", title, line.name, text, [change], line.packet))


# Which conversations belong together


def match(
    golden: Sequence[GoldenConversation], got: Sequence[GoldenConversation], keys: _Keys
) -> list[tuple[GoldenConversation, GoldenConversation]]:
    """Conversations by what they do: first those that say the same, then the most alike; in their order where that does not tell."""
    pairs: list[tuple[int, int]] = []
    one, other = dict(enumerate(golden)), dict(enumerate(got))

    def take(key: Callable[[GoldenConversation], Hashable]) -> None:
        there: dict[Hashable, deque[int]] = {}
        for at, conversation in other.items():
            there.setdefault(key(conversation), deque()).append(at)
        for at, conversation in list(one.items()):
            found = there.get(key(conversation))
            if found:
                pairs.append((at, found[0]))
                del one[at], other[found.popleft()]

    take(lambda conversation: _digest(conversation, keys))
    if len(one) * len(other) > PAIRS:
        take(lambda conversation: (conversation.protocol, frozenset(_skeleton(conversation).items())))
        take(lambda conversation: conversation.protocol)
    else:
        signs = [{at: (_skeleton(one), _sketch(one)) for at, one in side.items()} for side in (one, other)]
        scores = []
        for a, mine in one.items():
            for b, theirs in other.items():
                if mine.protocol == theirs.protocol:
                    score = _alike(signs[0][a], signs[1][b])
                    if score >= ALIKE or len(one) == len(other) == 1:
                        scores.append((-score, abs(a - b), a, b))
        for _, _, a, b in sorted(scores):
            if a in one and b in other:
                pairs.append((a, b))
                del one[a], other[b]
    return [(golden[a], got[b]) for a, b in sorted(pairs)]


def _digest(conversation: GoldenConversation, keys: _Keys) -> Hashable:
    lanes = tuple(sorted((lane, tuple(keys.whole(line) for line in lines)) for lane, lines in _by_lane(conversation).items()))
    flows = tuple(
        (
            flow.side,
            flow.name,
            flow.by,
            _told(flow.fields),
            tuple(shown(item) if flow.form == "set" else _told(item) for item in flow.items),
        )
        for flow in sorted(conversation.flows, key=lambda flow: (flow.side, flow.name, flow.by))
    )
    return conversation.protocol, conversation.layout, hash(lanes), hash(flows)


def _skeleton(conversation: GoldenConversation) -> Counter[Hashable]:
    names: Counter[Hashable] = Counter((line.side, line.name, line.kind, line.outcome) for line in conversation.lines)
    names.update((flow.side, flow.name, flow.by) for flow in conversation.flows)
    return names


def _sketch(conversation: GoldenConversation) -> frozenset[int]:
    """Some of what its fields say: of two conversations that say the same mostly the same."""
    from zlib import crc32

    seen = {
        crc32(f"{part.name} {path} {_plain(value)}".encode("utf-8", "surrogatepass"))
        for part in conversation.parts()
        for path, value in part.fields.items()
    }
    return frozenset(sorted(seen)[:SKETCH])


def _alike(one: tuple[Counter[Hashable], frozenset[int]], other: tuple[Counter[Hashable], frozenset[int]]) -> float:
    small, large = sorted((one[0], other[0]), key=len)
    both = sum(min(count, large[name]) for name, count in small.items())
    total = small.total() + large.total()
    union = len(one[1] | other[1])
    return (2 * both / total if total else 1.0) + (len(one[1] & other[1]) / union if union else 0.0) / 4


# In words


def _at(packet: int | None) -> str:
    return "" if packet is None else f" (packet {packet})"


def _count(conversation: GoldenConversation) -> str:
    count = len(conversation.lines)
    flows = f", {len(conversation.flows)} flows" if conversation.flows else ""
    return f"{count} message{'' if count == 1 else 's'}{flows}"


def _first(conversation: GoldenConversation, mark: str) -> list[str]:
    return [f"  {mark} {_short(line)}" for line in ordered(conversation.lines)[: 2 * AROUND]]


def _what(part: Line | Total) -> str:
    """A line or flow as people call it."""
    if isinstance(part, Total):
        return text_of(f"{part.name} {part.by}".strip())
    if part.kind == GAP:
        return f"gap of {part.fields.get('size', 'some')} bytes {part.outcome}"
    return text_of(f"{part.name} {part.kind.replace('one_way', 'message')}")


def _text(path: str, value: Any, labels: Mapping[str, str]) -> str:
    told = fields_text({path: value}, labels)
    return " ".join(one[len(path) + 1 :] for one in told)


def _said(changes: Sequence[Change], words: Words) -> str:
    """The first change, and how many more there are."""
    field, golden, got = changes[0].field, changes[0].golden, changes[0].got
    name = {NOTES: "notes", FAULT: "fault"}.get(field, field)
    if golden is None:
        told = f"{name} is {got}, {words.then} has none"
    elif got is None:
        told = f"{name} is not there, {words.then} {golden}"
    else:
        told = f"{name} is {got}, {words.then} {golden}"
    more = len(changes) - 1
    return f"{told}, and {more} more field{'s' if more > 1 else ''}" if more else told


def _labelled(golden: Line, got: Line, changes: Sequence[Change]) -> bool:
    """Whether it is the meaning of an answer that differs."""
    return any(change.field in golden.labels and change.field in got.labels for change in changes)


def _answer(line: Line, other: Line, changes: Sequence[Change]) -> str:
    """How a response answers, in the words of the field that says so."""
    for change in changes if line.name == other.name else ():
        if change.field in line.labels:
            return f"answered `{text_of(line.labels[change.field])}`"
        if change.field in other.labels and change.field in line.fields:
            return f"answered `{shown(line.fields[change.field])}`"
    told = line.outcome or "not paired"
    return told if line.name == other.name else f"{told} by {text_of(line.name)}"


def _shorter(then: str, now: str) -> str:
    """What was expected, without the word that what is there begins with as well."""
    return then.removeprefix("answered ") if now.startswith("answered `") and then.startswith("answered `") else then


def _end(line: Line) -> str:
    """How a request ended."""
    if line.responses:
        first = line.responses[0]
        label = next(iter(first.labels.values()), None)
        return f"answered `{text_of(label)}`" if label is not None else f"{first.outcome} by {text_of(first.name)}"
    return line.outcome if line.outcome is not None and line.outcome in ENDS else "not answered"


def _other_layout(golden: GoldenConversation, got: GoldenConversation, words: Words) -> Difference:
    text = f"conversation {golden.title}: layout is {got.layout or 'not certain'}, {words.then} {golden.layout or 'not certain'}"
    return Difference("field", golden.title, None, text, [Change("layout", golden.layout, got.layout)], got.packet, golden.at)


def _before(lines: Sequence[Line], at: int) -> Iterator[Line]:
    """The lines in front of one, the nearest first."""
    return (lines[place] for place in range(at - 1, -1, -1))


def _behind(lines: Sequence[Line], at: int) -> str:
    """Where a line stands among those of its side."""
    line = lines[at]
    before = next((one for one in _before(lines, at) if one.side == line.side), None)
    return f"behind {_what(before)}" if before is not None else "first"


def _numbered(run: range) -> str:
    return f"item {run[0]}" if len(run) == 1 else f"items {run[0]}-{run[-1]}"


def _item_line(flow: Total, at: int) -> int | None:
    return flow.ats[at] if at < len(flow.ats) else flow.at


def _item(item: Mapping[str, Any], labels: Mapping[str, str]) -> str:
    return _cut("  ".join(["+", *fields_text(item, labels)]))


def _short(part: Line | Total, fields: set[str] | None = None, same: _Same | None = None) -> str:
    """A line or flow with the fields that matter, or its first ones."""
    chosen = part.fields if not fields else {path: value for path, value in part.fields.items() if path in fields}
    if same is not None:
        chosen = {path: same.named(value) for path, value in chosen.items()}
    return _cut("  ".join([head(part), *fields_text(chosen, part.labels)]))


def _cut(text: str) -> str:
    return text if len(text) <= WIDE else f"{text[: WIDE - 3]}..."
