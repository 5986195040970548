"""The differences between a capture and its golden file."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import islice, product
from operator import attrgetter
from typing import Any, Literal, NamedTuple

import msgspec

from ..units import count, duration_text
from .align import Effort, Key, alike, between, common, divided, out_of_order
from .model import FAULT, GAP, NOTES, GoldenConversation, Line, Total, Transcript, ordered
from .normalise import COMPARE_RULES
from .ranges import ranges, without
from .settings import CheckSettings
from .text import ENDS, fields_text, head
from .values import SIMPLE, Alias, Placeholder, ValueSet, cut, mapped, same, shown, text_of

AROUND = 2
"""Lines shown before and behind a difference."""

WIDE = 116
"""Columns that such a line may have."""

LONGEST = 2_000
"""Characters of each line and value that are reported."""

ABSENT = "not there"
"""The text for a field that only one of two messages has."""

FIELDS_SHOWN = 6
"""Fields that a difference lists."""

STEPS = 60
"""Steps for the comparison of two conversations, besides one for each kind of message that both have."""

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
    """Names for the side that a capture is compared with."""

    then: str = "golden"
    there: str = "the golden file"


GOLDEN_FILE, OLD_CAPTURE = Words(), Words("old", "the old capture")


class Differences(list[Difference]):
    """The differences; `bounded`: more may be reported than there are, as the comparison reached the bound on its effort."""

    bounded = False


def differences(golden: Transcript, got: Transcript, settings: CheckSettings, words: Words = GOLDEN_FILE) -> Differences:
    """Return the differences, by conversation in the order of the golden file."""
    effort = Effort(sum(len(one.lines) + sum(len(flow.items) for flow in one.flows) for one in (*golden.conversations, *got.conversations)))
    found = Differences(_differences(golden, got, settings, words, effort))
    found.bounded = effort.reached
    for one in found:
        one.text = cut(one.text, LONGEST)
        one.context = [cut(line, LONGEST) for line in one.context]
        for change in one.changes:
            change.field = cut(change.field, LONGEST)
            change.golden = change.golden and cut(change.golden, LONGEST)
            change.got = change.got and cut(change.got, LONGEST)
    return found


class _Same:
    """Which alias of the golden file corresponds to which of the capture: the one it stands beside most often."""

    def __init__(self, pairs: Iterable[tuple[Any, Any]]) -> None:
        votes = Counter(pair for golden, got in pairs for pair in _aliases(golden, got))
        there: set[Alias] = set()
        self._back: dict[Alias, Alias] = {}
        for golden, got in sorted(votes, key=lambda pair: -votes[pair]):
            if golden not in there and got not in self._back:
                there.add(golden)
                self._back[got] = golden

    def named(self, got: Any) -> Any:
        """A value of the capture with the golden file's names."""
        return mapped(got, lambda one: self._back.get(one) or Placeholder(f"{one.kind} new") if isinstance(one, Alias) else one)

    def changes(self, golden: Line | Total, got: Line | Total) -> list[Change]:
        """The fields that differ in two lines or flows."""
        return self.changed(golden.fields, got.fields, golden.labels, got.labels)

    def changed(
        self, golden: Mapping[str, Any], got: Mapping[str, Any], labels: Mapping[str, str], other: Mapping[str, str]
    ) -> list[Change]:
        kinds = [*map(type, golden.values())]
        if golden == got and kinds == [*map(type, got.values())] and SIMPLE.issuperset(kinds):
            return []
        differing = [path for path, value in golden.items() if path not in got or not self._is_same(value, got[path])]
        return [
            Change(
                path,
                _text(path, golden[path], labels) if path in golden else None,
                _text(path, self.named(got[path]), other) if path in got else None,
            )
            for path in (*differing, *(path for path in got if path not in golden))
        ]

    def _is_same(self, golden: Any, got: Any) -> bool:
        kind = type(got)
        return type(golden) is kind and bool(golden == got) if kind in SIMPLE else same(golden, self.named(got))


def _aliases(golden: Any, got: Any) -> Iterator[tuple[Alias, Alias]]:
    """Aliases that stand in the same place."""
    if isinstance(golden, Alias) and isinstance(got, Alias) and golden.kind == got.kind:
        yield golden, got
    elif isinstance(golden, ValueSet) and isinstance(got, ValueSet):
        yield from _aliases([*golden.values], [*got.values])
    elif isinstance(golden, list) and isinstance(got, list) and len(golden) == len(got):
        for one, other in zip(golden, got, strict=True):
            yield from _aliases(one, other)


class _Keys:
    """The keys that lines are paired by; aliases count by kind, not by number."""

    def __init__(self) -> None:
        self.complete = cache(self._complete)
        self.levels: list[Key[Line]] = [self.complete, self.own, self.outcome, self.name]
        self._contents: dict[int, int] = {}
        """By identity the keys of fields, which lines may share."""

    def own(self, line: Line) -> Hashable:
        """Return the key of its fields, name, kind and outcome."""
        fields = line.fields
        content = self._contents.get(id(fields))
        if content is None:
            content = self._contents[id(fields)] = hash(_content(fields))
        return hash((line.name, line.kind, line.outcome, content))

    def _complete(self, line: Line) -> Hashable:
        """Return the key of the line and its responses."""
        return hash((self.own(line), *map(self.own, line.responses))) if line.responses else self.own(line)

    @staticmethod
    def content(line: Line) -> Hashable:
        """Return the key of the line without notes, which depend on its place."""
        return line.name, line.kind, line.outcome, _content({path: value for path, value in line.fields.items() if path != NOTES})

    @staticmethod
    def outcome(line: Line) -> Hashable:
        return line.name, line.kind, line.outcome, *(one.outcome for one in line.responses)

    @staticmethod
    def name(line: Line) -> Hashable:
        return line.name, line.kind

    def digest(self, conversation: GoldenConversation) -> Hashable:
        """Return a key of the complete content of a conversation."""
        lanes = tuple(sorted((lane, tuple(map(self.complete, lines))) for lane, lines in _by_lane(conversation).items()))
        flows = tuple(
            (_flow(flow), _content(flow.fields), tuple(item if flow.form == "set" else _content(item) for item in flow.items))
            for flow in sorted(conversation.flows, key=_flow)
        )
        return conversation.protocol, conversation.layout, hash(lanes), hash(flows)


def _flow(flow: Total) -> tuple[int, str, str]:
    return flow.side, flow.name, flow.by


def _content(fields: Mapping[str, Any]) -> Hashable:
    kinds = [*map(type, fields.values())]
    if SIMPLE.issuperset(kinds):
        return frozenset(zip(fields, kinds, fields.values(), strict=True))
    return frozenset([(path, type(one), one if type(one) in SIMPLE else _plain(one)) for path, one in fields.items()])


def _plain(value: Any) -> str:
    return f"<{value.kind}>" if isinstance(value, Alias) else shown(value) if not isinstance(value, ValueSet) else str(value)


class _Pair:
    """Two paired conversations, and their paired lines."""

    def __init__(self, golden: GoldenConversation, got: GoldenConversation, keys: _Keys, unordered: bool, effort: Effort) -> None:
        self.golden = golden
        self.got = got
        self.effort = effort
        self.lines: list[tuple[Line, Line]] = []
        self.missing: list[Line] = []
        self.extra: list[Line] = []
        self.moved: list[tuple[Line, Line]] = []
        self._pair_lines(keys)
        self._find_moved("response" if unordered else None)
        self.flows, self.flows_missing, self.flows_extra = alike(golden.flows, got.flows, _flow)

    def _pair_lines(self, keys: _Keys) -> None:
        one, other = _by_lane(self.golden), _by_lane(self.got)
        missing: list[Line] = []
        extra: list[Line] = []
        for lane in dict.fromkeys((*one, *other)):
            pairs, lost, new = divided(one.get(lane, []), other.get(lane, []), keys.levels, self.effort)
            self.lines += pairs
            for key in (keys.complete, keys.own, keys.content):
                # What says the same elsewhere
                moved, lost, new = alike(lost, new, key)
                self.moved += moved
            missing += lost
            extra += new
        for golden, got in [*self.lines, *self.moved]:
            if len(golden.responses) == len(got.responses) == 1:
                self.lines.append((golden.responses[0], got.responses[0]))
            elif golden.responses and got.responses:
                pairs, lost, new = divided(golden.responses, got.responses, keys.levels, self.effort)
                self.lines += pairs
                self.missing += lost
                self.extra += new
        self.missing += _not_implied(missing, extra)
        self.extra += _not_implied(extra, missing)

    def _find_moved(self, free: str | None) -> None:
        """Pairs whose order among those of their side and lane is another one; lines of the kind `free` have none."""
        self.moved = [pair for pair in self.moved if pair[0].kind != free]
        places = {line: at for at, line in enumerate(self.golden.lines)}
        when = {line: at for at, line in enumerate(self.got.lines)}
        known = {line for pair in self.moved for line in pair}
        lanes: defaultdict[tuple[int, str], list[tuple[Line, Line]]] = defaultdict(list)
        for golden, got in self.lines:
            if got.kind != free and golden not in known and golden.request not in known:
                lanes[golden.side, golden.lane].append((golden, got))
        for pairs in lanes.values():
            pairs.sort(key=lambda pair: when[pair[1]])
            self.moved += [pairs[at] for at in out_of_order([places[golden] for golden, _ in pairs])]

    def values(self) -> Iterator[tuple[Any, Any]]:
        """Values of the same field, in all that belongs together."""
        yield from zip(self.golden.ends, self.got.ends, strict=True)
        pairs: list[tuple[Line | Total, Line | Total]] = [*self.lines, *self.moved, *self.flows]
        for golden, got in pairs:
            if SIMPLE.issuperset(map(type, golden.fields.values())):
                continue
            named = ((path, value) for path, value in golden.fields.items() if type(value) not in SIMPLE)
            yield from ((value, got.fields[path]) for path, value in named if path in got.fields)


def _end_of(way: list[int], at: int) -> int:
    """Return the end of the path from a place, which is shortened for later calls."""
    while way[at] != at:
        way[at] = at = way[way[at]]
    return at


def _not_implied(lines: list[Line], others: list[Line]) -> list[Line]:
    """Return `lines` without the responses whose request is among the `others`."""
    asked: defaultdict[str, deque[Line]] = defaultdict(deque)
    for one in others:
        for name in dict.fromkeys(response.name for response in one.responses):
            asked[name].append(one)
    left: list[Line] = []
    implied: set[Line] = set()
    for line in lines:
        waiting = asked[line.name] if line.kind == "response" and line.request is None else deque[Line]()
        while waiting and waiting[0] in implied:
            waiting.popleft()
        if waiting:
            implied.add(waiting.popleft())
        else:
            left.append(line)
    return left


def _by_lane(conversation: GoldenConversation) -> dict[tuple[int, str], list[Line]]:
    """What does not belong to a request, by side and lane."""
    lanes: defaultdict[tuple[int, str], list[Line]] = defaultdict(list)
    for line in conversation.lines:
        if line.request is None:
            lanes[line.side, line.lane].append(line)
    return lanes


def _differences(golden: Transcript, got: Transcript, settings: CheckSettings, words: Words, effort: Effort) -> Iterator[Difference]:
    """Of one capture and its golden file."""
    keys = _Keys()
    matched = match(golden.conversations, got.conversations, keys, effort)
    pairs = {golden: _Pair(golden, got, keys, settings.unordered, effort) for golden, got in matched}
    same = _Same(values for pair in pairs.values() for values in pair.values())
    for one in golden.conversations:
        if one in pairs:
            reporter = DiffReporter(pairs[one], same, words)
            yield from reporter.lines()
            yield from reporter.flows()
        else:
            text = f"conversation {one.title}: is missing ({one.protocol}, {_count(one)})"
            yield Difference("missing", one.title, None, text, line=one.at, context=_first(one, "-"))
    titles = {got: golden.title for golden, got in matched}
    for one in got.conversations:
        if one not in titles:
            title = f"{one.title} of the capture"
            text = f"conversation {title}: is not in {words.there} ({one.protocol}, {_count(one)}{_at(one.packet)})"
            yield Difference("extra", title, None, text, packet=one.packet, context=_first(one, "+"))
    for one in got.conversations:
        yield from _latencies(one, titles.get(one, one.title), settings)


def _latencies(conversation: GoldenConversation, title: str, settings: CheckSettings) -> Iterator[Difference]:
    """Responses that took too long."""
    limits: dict[str, int] = {}
    for _, own in settings.scopes(conversation.protocol):
        limits |= own.max_latency
    for line in conversation.lines if limits else ():
        asked = line.request.name if line.request is not None else line.name
        most = limits.get(asked, limits.get("*"))
        if most is not None and line.latency_ns is not None and line.latency_ns > most:
            took, allowed = duration_text(line.latency_ns), duration_text(most)
            text = f"conversation {title}: {asked} answered after {took}, allowed are {allowed}{_at(line.packet)}"
            yield Difference("latency", title, line.name, text, [Change("latency", allowed, took)], line.packet)


class DiffReporter:
    """Reports the differences between two paired conversations."""

    def __init__(self, pair: _Pair, same: _Same, words: Words) -> None:
        self.pair = pair
        self.same = same
        self.words = words
        self.title = pair.golden.title
        self.golden = ordered(pair.golden.lines)
        self.got = ordered(pair.got.lines)
        self.place: dict[Line | None, int] = {line: at for at, line in enumerate(self.golden)}
        self.place_got = {line: at for at, line in enumerate(self.got)}
        partner = {got: golden for golden, got in (*pair.lines, *pair.moved)}
        self.before: dict[Line, Line | None] = {}
        """The golden line that belongs to the nearest in front of each of the capture."""
        nearest: Line | None = None
        for line in self.got:
            self.before[line] = nearest
            nearest = partner.get(line, nearest)
        self._around = cache(lambda line: f"    {_short(line)}")

    def lines(self) -> list[Difference]:
        """What differs in messages, in the order of the golden file."""
        pair = self.pair
        found = [(-1, difference) for difference in self._other_layout()]
        crossed: list[list[Change]] = []
        """Changes of notes reported with each pair that moved."""
        across: dict[int, list[Change]] = {}
        free = [*range(len(self.golden) + 1)]
        """The next place not crossed yet, or the way there."""
        for golden, got in pair.moved:
            low, high = sorted((self.place[golden], self.place.get(self.before[got], -1)))
            crossed.append([])
            at = _end_of(free, max(0, low))
            while at <= high:
                across[at] = crossed[-1]
                free[at] = at + 1
                at = _end_of(free, at)
        for golden, got in (*pair.lines, *pair.moved):
            at = self.place[golden]
            for difference in filter(None, (self._unlike_end(golden, got), self._unlike(golden, got))):
                if difference.kind == "field" and all(change.field == NOTES for change in difference.changes):
                    # Somebody stands elsewhere, and that is noted
                    around = across.get(at)
                    if around is not None:
                        around += [Change(f"{_what(golden)}: notes", one.golden, one.got) for one in difference.changes]
                        continue
                found.append((at, difference))
        found += [(self.place[golden], self._line("missing", f"{_what(golden)} is missing", golden)) for golden in pair.missing]
        for got in pair.extra:
            difference = self._line("extra", f"{_what(got)} is not in {self.words.there}", None, got, packet=got.packet)
            nearest = self.before[got]
            difference.line = pair.golden.at if nearest is None else nearest.at
            found.append((self.place.get(nearest, -1), difference))
        for (golden, got), notes in zip(pair.moved, crossed, strict=True):
            where, expected = _behind(self.got, self.place_got[got]), _behind(self.golden, self.place[golden])
            text = f"{_what(golden)} comes {where}, {self.words.then} {expected}{f'; {_said(notes, self.words)}' if notes else ''}"
            found.append((self.place[golden], self._line("moved", text, golden, None, notes, got.packet)))
        found.sort(key=lambda one: one[0])
        return [difference for _, difference in found]

    def _other_layout(self) -> Iterator[Difference]:
        golden, got = self.pair.golden, self.pair.got
        if golden.layout != got.layout:
            text = f"conversation {self.title}: layout is {_layout(got)}, {self.words.then} {_layout(golden)}"
            yield Difference("field", self.title, None, text, [Change("layout", golden.layout, got.layout)], got.packet, golden.at)

    def _unlike_end(self, golden: Line, got: Line) -> Difference | None:
        """A request that was answered in one of the two only."""
        if golden.kind != "request":
            return None
        if bool(golden.responses) == bool(got.responses) and (golden.responses or golden.outcome == got.outcome):
            return None
        now, then = _end(got), _end(golden)
        place = got.responses[0].packet if got.responses else got.packet
        text = f"{golden.name} {now}, {self.words.then} {_shorter(then, now)}"
        return self._line("answer", text, golden, got, [Change("outcome", then, now)], place)

    def _unlike(self, golden: Line, got: Line) -> Difference | None:
        """Return the difference between two paired lines."""
        changes = self.same.changes(golden, got)
        if golden.name != got.name:
            changes.insert(0, Change("name", golden.name, got.name))
        differs = golden.kind in ("response", GAP) and golden.outcome != got.outcome
        if not changes and not differs:
            return None
        # It may be the meaning of an answer that differs
        if golden.kind == "response" and (differs or any(one.field in golden.labels and one.field in got.labels for one in changes)):
            asked = golden.request.name if golden.request is not None else golden.name
            now, then = _answer(got, golden, changes), _answer(golden, got, changes)
            return self._line("answer", f"{asked} {now}, {self.words.then} {_shorter(then, now)}", golden, got, changes, got.packet)
        changes = changes or [Change("reason", golden.outcome, got.outcome)]
        return self._line("field", f"{_what(golden)}: {_said(changes, self.words)}", golden, got, changes, got.packet)

    def _line(
        self,
        kind: Kind,
        text: str,
        golden: Line | None,
        got: Line | None = None,
        changes: Sequence[Change] = (),
        packet: int | None = None,
    ) -> Difference:
        """Return a difference with the lines around it; in their middle the expected and the actual one."""
        changed = {change.field for change in changes}
        middle = [] if golden is None else [f"  - {_short(golden, changed)}"]
        if got is not None:
            middle.append(f"  + {_short(got, changed, self.same)}")
        part = golden or got
        assert part is not None
        lines, at = (self.golden, self.place[part]) if golden is not None else (self.got, self.place_got[part])
        around = lines[max(0, at - AROUND) : at], lines[at + 1 : at + 1 + AROUND]
        before, behind = ([*map(self._around, some)] for some in around)
        return self._difference(kind, part, text, changes, packet, part.at, [*before, *middle, *behind])

    def _difference(
        self,
        kind: Kind,
        part: Line | Total,
        text: str,
        changes: Sequence[Change],
        packet: int | None,
        line: int | None,
        context: list[str],
    ) -> Difference:
        text = f"conversation {self.title}: {text}{_at(packet)}"
        return Difference(kind, self.title, part.name, text, list(changes), packet, line, context)

    # Flows

    def flows(self) -> Iterator[Difference]:
        """What differs in flows."""
        for flow in self.pair.flows_missing:
            yield self._difference("missing", flow, f"{_what(flow)} is missing", (), None, flow.at, [f"  - {_short(flow)}"])
        for flow in self.pair.flows_extra:
            text = f"{_what(flow)} is not in {self.words.there}"
            yield self._difference("extra", flow, text, (), flow.packet, None, [f"  + {_short(flow)}"])
        for golden, got in self.pair.flows:
            changes = self.same.changes(golden, got)
            if changes:
                fields = {one.field for one in changes}
                context = [f"  - {_short(golden, fields)}", f"  + {_short(got, fields)}"]
                text = f"{_what(golden)}: {_said(changes, self.words)}"
                yield self._difference("field", golden, text, changes, got.packet, golden.at, context)
            yield from self._set(golden, got) if golden.form == "set" else self._items(golden, got)

    def _set(self, golden: Total, got: Total) -> Iterator[Difference]:
        lost, new = without(golden.items, got.items), without(got.items, golden.items)
        found = ([f"{ranges(lost)} missing"] if lost else []) + ([f"{ranges(new)} not in {self.words.there}"] if new else [])
        if found:
            packet = got.numbers.get(new[0][0]) if new else got.packet
            then, now = ranges(golden.items), ranges(got.items)
            text = f"{_what(golden)}: {' and '.join(found)}"
            yield self._difference("field", golden, text, [Change("items", then, now)], packet, golden.at, [f"  - {then}", f"  + {now}"])

    def _items(self, golden: Total, got: Total) -> Iterator[Difference]:
        one, other = ([_content(item) for item in flow.items] for flow in (golden, got))
        runs = [run for run in between(common(one, other, self.pair.effort), range(len(one)), range(len(other))) if any(run)]
        new = {tuple(other[at] for at in theirs): theirs for mine, theirs in runs if not mine}
        moved = {mine: new.pop(said) for mine, theirs in runs if not theirs and (said := tuple(one[at] for at in mine)) in new}
        for mine, there in moved.items():
            text = f"{_what(golden)}: {_numbered(mine)} {'stands' if len(mine) == 1 else 'stand'} at {there[0]}"
            context = [f"  - {_item(golden, mine[0])}"]
            yield self._difference("moved", golden, text, (), got.packets[there[0]], _item_line(golden, mine[0]), context)
        gone = set(moved.values())
        for mine, theirs in runs:
            if mine not in moved and (mine or theirs not in gone):
                yield self._run(golden, got, mine, theirs)

    def _run(self, golden: Total, got: Total, mine: range, theirs: range) -> Difference:
        """Items in a row that differ."""
        packet = got.packets[theirs[0]] if theirs else got.packet
        line = _item_line(golden, mine[0] if mine else max(0, mine.start - 1))
        context = [f"    {_item(golden, at)}" for at in range(max(0, mine.start - AROUND), mine.start)]
        context += [f"  - {_item(golden, at)}" for at in mine[:AROUND]]
        context += [f"  + {_item(got, at)}" for at in theirs[:AROUND]]
        context += [f"    {_item(golden, at)}" for at in range(mine.stop, min(len(golden.items), mine.stop + AROUND))]
        changes: list[Change] = []
        kind: Kind = "field"
        if not theirs:
            text = f"conversation {self.title}: {_what(golden)}: {_numbered(mine)} missing"
            return Difference("missing", self.title, golden.name, text, [], packet, line, context)
        if not mine:
            kind, text = "extra", f"{_numbered(theirs)} not in {self.words.there}"
        elif len(mine) != len(theirs):
            text = f"{count(len(theirs), 'other item')} instead of {_numbered(mine)}"
        else:
            changes = [
                Change(f"item {a} {change.field}", change.golden, change.got)
                for a, b in zip(mine, theirs, strict=True)
                for change in self.same.changed(golden.items[a], got.items[b], golden.labels, got.labels)
            ]
            more = f", and {count(len(mine) - 1, 'item')} after it" if len(mine) > 1 else ""
            first = changes[: 1 if len(mine) > 1 else None]
            text = f"{_said(first, self.words) if first else f'{_numbered(mine)} differ'}{more}"
        return self._difference(kind, golden, f"{_what(golden)}: {text}", changes[: 4 * FIELDS_SHOWN], packet, line, context)


# Which conversations belong together


def match(
    golden: Sequence[GoldenConversation], got: Sequence[GoldenConversation], keys: _Keys, effort: Effort
) -> list[tuple[GoldenConversation, GoldenConversation]]:
    """Pair conversations by content: equal ones first, then the most similar; in their order where several are equally similar."""
    place = {conversation: at for side in (golden, got) for at, conversation in enumerate(side)}
    pairs: list[tuple[GoldenConversation, GoldenConversation]] = []
    one, other = [*golden], [*got]
    if len(golden) > 1 or len(got) > 1:
        pairs, one, other = alike(golden, got, keys.digest)
    scores = _scores(one, other, place, effort)
    if scores is None:
        for key in (_names, attrgetter("protocol")):
            more, one, other = alike(one, other, key)
            pairs += more
    else:
        left = {*one, *other}
        for _, _, at, at_got in sorted(scores):
            if left.issuperset((golden[at], got[at_got])):
                pairs.append((golden[at], got[at_got]))
                left.difference_update(pairs[-1])
    return sorted(pairs, key=lambda pair: place[pair[0]])


def _scores(
    one: Sequence[GoldenConversation], other: Sequence[GoldenConversation], place: Mapping[GoldenConversation, int], effort: Effort
) -> list[tuple[float, int, int, int]] | None:
    """How alike conversations are, with their places; None where there are too many."""
    if not effort.spend(STEPS * len(one) * len(other)):
        return None
    if len(one) == len(other) == 1:
        return [(0.0, 0, place[one[0]], place[other[0]])] if one[0].protocol == other[0].protocol else []
    signs = {conversation: (_skeleton(conversation), _sketch(conversation)) for conversation in (*one, *other)}
    scores = []
    for a, b in product(one, other):
        if a.protocol == b.protocol:
            (one_names, one_fields), (other_names, other_fields) = signs[a], signs[b]
            names, fields = one_names.keys() & other_names.keys(), len(one_fields | other_fields)
            if not effort.spend(len(names)):
                return None
            both, total = sum(min(one_names[name], other_names[name]) for name in names), one_names.total() + other_names.total()
            score = (2 * both / total if total else 1.0) + (len(one_fields & other_fields) / fields if fields else 0.0) / 4
            if score >= ALIKE:
                scores.append((-score, abs(place[a] - place[b]), place[a], place[b]))
    return scores


def _names(conversation: GoldenConversation) -> Hashable:
    return conversation.protocol, frozenset(_skeleton(conversation).items())


def _skeleton(conversation: GoldenConversation) -> Counter[Hashable]:
    names: Counter[Hashable] = Counter((line.side, line.name, line.kind, line.outcome) for line in conversation.lines)
    names.update(map(_flow, conversation.flows))
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


# In words


def _at(packet: int | None) -> str:
    return "" if packet is None else f" (packet {packet})"


def _layout(conversation: GoldenConversation) -> str:
    """A layout, and what servers have it."""
    layout = conversation.layout or "not certain"
    rules = COMPARE_RULES.get(conversation.protocol)
    return layout if rules is None else rules.releases.get(layout, layout)


def _count(conversation: GoldenConversation) -> str:
    flows = f", {count(len(conversation.flows), 'flow')}" if conversation.flows else ""
    return f"{count(len(conversation.lines), 'message')}{flows}"


def _first(conversation: GoldenConversation, mark: str) -> list[str]:
    return [f"  {mark} {_short(line)}" for line in ordered(conversation.lines)[: 2 * AROUND]]


def _what(part: Line | Total) -> str:
    """A line or flow as people call it."""
    if isinstance(part, Total):
        return text_of(f"{part.name} {part.by}".strip())
    if part.kind == GAP:
        size = part.fields.get("size")
        return f"gap of {count(size, 'byte') if isinstance(size, int) else 'some bytes'} {part.outcome}"
    return text_of(f"{part.name} {part.kind.replace('one_way', 'message')}")


def _text(path: str, value: Any, labels: Mapping[str, str]) -> str:
    return " ".join(one[len(path) + 1 :] for one in fields_text([(path, value)], labels))


def _said(changes: Sequence[Change], words: Words) -> str:
    """The first change, and how many more there are."""
    field, golden, got = changes[0].field, changes[0].golden, changes[0].got
    name = {NOTES: "notes", FAULT: "fault"}.get(field, field)
    found = f"{name} is {got or ABSENT}, {words.then} {golden or ABSENT}"
    more = len(changes) - 1
    return f"{found}, and {count(more, 'more field')}" if more else found


def _answer(line: Line, other: Line, changes: Sequence[Change]) -> str:
    """How a response answers, in the words of the field that says so."""
    for change in changes if line.name == other.name else ():
        if change.field in line.labels:
            return f"answered `{text_of(line.labels[change.field])}`"
        if change.field in other.labels and change.field in line.fields:
            return f"answered `{shown(line.fields[change.field])}`"
    found = line.outcome or "not paired"
    return found if line.name == other.name else f"{found} by {text_of(line.name)}"


def _shorter(then: str, now: str) -> str:
    """Return the expected text without the word that both begin with."""
    return then.removeprefix("answered ") if now.startswith("answered `") and then.startswith("answered `") else then


def _end(line: Line) -> str:
    """How a request ended."""
    if line.responses:
        first = line.responses[0]
        label = next(iter(first.labels.values()), None)
        return f"answered `{text_of(label)}`" if label is not None else f"{first.outcome} by {text_of(first.name)}"
    return line.outcome if line.outcome is not None and line.outcome in ENDS else "not answered"


def _behind(lines: Sequence[Line], at: int) -> str:
    """Where a line stands among those of its side."""
    nearest = (lines[place] for place in range(at - 1, -1, -1))
    before = next((one for one in nearest if one.side == lines[at].side), None)
    return f"after {_what(before)}" if before is not None else "first"


def _numbered(run: range) -> str:
    return f"item {run[0]}" if len(run) == 1 else f"items {run[0]}-{run[-1]}"


def _item_line(flow: Total, at: int) -> int | None:
    return flow.ats[at] if at < len(flow.ats) else flow.at


def _item(flow: Total, at: int) -> str:
    return _row("+", flow.items[at].items(), flow.labels)


def _short(part: Line | Total, fields: set[str] | None = None, same: _Same | None = None) -> str:
    """A line or flow with the fields that matter, or its first ones."""
    chosen = ((path, value if same is None else same.named(value)) for path, value in part.fields.items() if not fields or path in fields)
    return _row(head(part), chosen, part.labels)


def _row(start: str, fields: Iterable[tuple[str, Any]], labels: Mapping[str, str]) -> str:
    """In one line what there is room for: each field has two columns at least."""
    text = "  ".join([start, *islice(fields_text(fields, labels), WIDE // 2)])
    return text if len(text) <= WIDE else f"{text[: WIDE - 3]}..."
