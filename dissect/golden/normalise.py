"""Turns the records of a capture into the lines that are compared: without times, numbers and other values that vary from run to run."""

from __future__ import annotations

import marshal
import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

from ..errors import CaptureError
from ..model import ConversationRow, Exchange, Gap, Message, Record
from ..patterns import encodable
from ..protocols import PROTOCOLS
from ..protocols.compare_rules import CompareRules, TotalRule
from .model import FAULT, GAP, NOTES, GoldenConversation, Line, Total, Transcript, ordered, unpair
from .ranges import merged
from .rules import FieldRule, FieldRules, reduced
from .settings import CheckSettings
from .values import LONG, SIMPLE, Alias, Placeholder, ValueSet, digest, identity, key, mapped, shortened, shown

_REDACTED = re.compile(r"<redacted [0-9]+ bytes>")
_ENDPOINT = re.compile(r"(?:(?<![0-9])[0-9]{1,3}(?:\.[0-9]{1,3}){3}|\[[0-9a-f:.]{2,45}\]):[0-9]+")
_NUMERALS = re.compile(r"0x[0-9a-f]{5,}|[0-9]{9,}")
"""Checksums and similar numbers in notes and faults."""
_BORDER = re.compile(r'"[^"]*(?:"|$)|([.\[])')
_INDEX = re.compile(r"\[[0-9]+\]")

MAX_PATH, MAX_PATTERN = 320, 1_000
"""Characters of the path to an object in the paths of its members, and, without numbers, in the keys of rules; names
in documents of users may be long, and each stands before all that it holds."""

LINES, FIELDS = 100_000, 500_000
"""Lines that a golden file may have, and fields and runs of numbers: it may come from anybody."""

MESSAGES = 500_000
"""Messages and gaps of a capture that are kept, as most may be of flows, which need few lines."""

NAMES = 32 << 20
"""Characters that the paths of all fields may have together."""

SEARCHED, A_CHARACTER = 500_000_000, 300
"""The instructions of RE2 that the user's patterns may cost: a number, and more for each character that they search. Where the states of a
pattern explode, RE2 looks at each instruction for each character, which takes 10 ns."""

_PLAIN = frozenset((int, bool, float, type(None)))
"""Types of values that are kept as they are where no rule speaks of them."""
_NONE = (None, "", 0, "0")
"""Values that mean that there is no id, address or port."""

SHARED, SHARED_BYTES = 1_024, 512
"""Different messages whose lines share their fields, and the bytes of such a message and of its fields."""

CHANCE = frozenset(("response begins before its request ends",))
"""Notes on times."""

COMPARE_RULES = {protocol.name: protocol.loaded.compare_rules for protocol in PROTOCOLS}


def rules_of(protocol: str) -> CompareRules:
    """What a protocol's table says, which is nothing where it has none."""
    return COMPARE_RULES.get(protocol) or CompareRules()


class IdNames:
    """Renames ids by first use, and endpoints by role."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], Alias] = {}
        self._count: Counter[str] = Counter()
        self.endpoints: dict[str, Alias] = {}

    def alias(self, kind: str, value: Any) -> Alias:
        name = kind, shown(value)
        if name not in self._known:
            self._known[name] = self.new(kind)
        return self._known[name]

    def new(self, kind: str) -> Alias:
        self._count[kind] += 1
        return Alias(kind, self._count[kind])


class Normaliser:
    """Makes the `Transcript` of the records of one capture."""

    def __init__(
        self,
        settings: CheckSettings,
        only: Iterable[str] = (),
        heartbeats: bool = True,
        used: set[str] | None = None,
        name: str | None = None,
    ) -> None:
        """`only` and `heartbeats`: what a golden file leaves out besides what the settings do. `used` collects what of the user's rules
        was of use; `name` is what the capture is called in errors."""
        self.settings = settings
        self.name = name
        self.only = frozenset(only) | ({settings.only} - {"all"})
        self.heartbeats = settings.heartbeats and heartbeats
        self.used: set[str] = set() if used is None else used
        self._names = IdNames()
        self._texts = settings.texts()
        self._instructions = sum(pattern.programsize for pattern in self._texts.values())
        self._searched = 0
        self._rules: dict[str, FieldRules] = {}
        self._records: list[Message | Gap] = []
        self._ended: dict[int, str] = {}
        self._asked: list[tuple[Line, int]] = []
        """Responses with the numbers of their requests, which may have been captured later."""
        self._answered: dict[int, tuple[int, str]] = {}
        """By the number of a response: its request, and how it answers, as far as the response does not say so itself."""
        self._lines = self._fields = self._characters = 0
        self._shared: dict[tuple[str, str, bytes | None], tuple[dict[str, Any], dict[str, str]]] = {}
        """By message and its fields the fields and labels that its lines share."""
        self._dependent = 0
        """Values so far that depend on more than themselves: rules, endpoints and patterns."""

    def feed(self, records: Iterable[Record]) -> None:
        """Keep those of these records that are compared."""
        for record in records:
            if isinstance(record, (Message, Gap)):
                if self._has_room(record):
                    self._records.append(record)
            elif isinstance(record, Exchange):
                if record.response is not None:
                    self._answered[record.response] = record.request, record.outcome
                elif record.reason != "timeout":
                    self._ended[record.request] = record.outcome

    def _has_room(self, record: Message | Gap) -> bool:
        """Whether a record is kept, which counts; where there are too many, records that `restrict` leaves out are not."""
        if type(record) is Message:
            rules = rules_of(record.protocol)
            self._lines += record.name not in rules.flows and (self.heartbeats or record.name not in rules.heartbeats)
        if self._lines <= LINES and len(self._records) < MESSAGES:
            return True
        if "handshake" in self.only:
            return isinstance(record, Message) and record.name in rules.handshake
        most = f"{LINES:,} lines" if self._lines > LINES else f"{MESSAGES:,} messages"
        raise CaptureError(f"has more than the {most} that can be compared; --only handshake compares less", self.name)

    def finish(self, rows: Sequence[ConversationRow]) -> Transcript:
        """Return the transcript; `rows` are the conversations of the capture."""
        places: dict[int, _OpenConversation] = {}
        unread: list[str] = []
        for row in rows:
            first, second = row.endpoints
            roles = row.client is not None
            client, server = (row.client or first, row.server or second) if roles else (first, second)
            if row.protocol is None:
                if row.name is not None and row.name.startswith("TLS") and any(row.bytes):
                    unread.append(row.name)
                continue
            one = self._names.new("client" if roles else "peer")
            other = self._names.alias("server", server) if roles else self._names.new("peer")
            self._names.endpoints.setdefault(client, one)
            self._names.endpoints.setdefault(server, other)
            conversation = GoldenConversation(row.protocol, row.layout, roles, (one, other))
            places[row.conversation] = _OpenConversation(conversation, client, server)
        lines: dict[int, Line] = {}
        asked: dict[int, Message] = {}
        for record in self._records:
            place = places.get(record.conversation)
            if place is not None:
                self._add(place, record, lines, asked)
        self._records.clear()
        for line, number in self._asked:
            request = lines.get(number)
            if request is not None:
                line.request = request
                request.responses.append(line)
                line.outcome = line.outcome or "answered"
                line.lane = line.lane or request.lane
        transcript = Transcript(unread=unread, only=self.only, heartbeats=self.heartbeats)
        for place in places.values():
            place.finish()
            restrict(place.conversation, self.only, self.heartbeats)
            if place.conversation.lines or place.conversation.flows:
                transcript.conversations.append(place.conversation)
        _renumber(transcript)
        return transcript

    def rules(self, protocol: str) -> FieldRules:
        """Return the rules for the fields of a protocol."""
        if protocol not in self._rules:
            self._rules[protocol] = FieldRules(COMPARE_RULES.get(protocol), self.settings, protocol, self.used)
        return self._rules[protocol]

    def again(self, transcript: Transcript) -> None:
        """Apply the current settings to the content of a golden file."""
        for conversation in transcript.conversations:
            rules = self.rules(conversation.protocol)
            for part in conversation.parts():
                self._again(rules, part.name, "", part.fields)
                if isinstance(part, Total) and part.form != "set":
                    prefix = _prefix(conversation.protocol, part.name)
                    for item in part.items:
                        self._again(rules, part.name, prefix, item)
            restrict(conversation, self.only, self.heartbeats)
        transcript.conversations = [one for one in transcript.conversations if one.lines or one.flows]

    def _again(self, rules: FieldRules, name: str, prefix: str, fields: dict[str, Any]) -> None:
        if not rules.asked:
            return
        for path, value in list(fields.items()):
            if path.startswith("@"):
                along = [rules.of(name, path), rules.of(name, path[1:])]
                dropped = along != [None, None]
            else:
                pattern = prefix + _INDEX.sub("", path)
                stops = (found.start() for found in _BORDER.finditer(pattern, len(prefix)) if found[1])
                along = [rules.of(name, pattern[:stop]) for stop in (*stops, len(pattern))]
                dropped = any(rule is not None and rule.what == "drop" for rule in along)
            if dropped:
                del fields[path]
            elif not path.startswith("@"):
                fields[path] = self._masked(value if along[-1] is None else _each(along[-1], value))

    # One record

    def _add(self, place: _OpenConversation, record: Message | Gap, lines: dict[int, Line], asked: dict[int, Message]) -> None:
        conversation = place.conversation
        side = 0 if record.src == place.client else 1
        if isinstance(record, Gap):
            conversation.lines.append(Line(side, GAP, GAP, record.reason, {"size": record.size, "in_frame": record.in_frame}))
            return
        rules = self._rules.get(record.protocol) or self.rules(record.protocol)
        compare_rules = rules.compare_rules
        if conversation.packet is None:
            conversation.packet = record.packets[1]
        number, outcome = record.request, record.outcome
        if number is None and record.number in self._answered:
            number, outcome = self._answered[record.number]
        tables = compare_rules.flows.get(record.name)
        table = tables and next((one for one in tables if one.kind == record.kind and (one.of is None or one.of(record.fields))), None)
        if table and outcome != "refused" and record.fault is None:
            if record.kind == "request":
                asked[record.number] = record
            self._flow(place, side, record, table, rules, asked.get(number) if number is not None else None)
            return
        line = Line(side, record.name, record.kind, outcome, packet=record.packets[1], latency_ns=record.latency_ns)
        if record.kind == "request":
            line.outcome = self._ended.get(record.number)
            lines[record.number] = line
        elif number is not None:
            self._asked.append((line, number))
        if record.name in compare_rules.apart:
            line.lane = record.name
        self._fill_line(line, _Into(place, rules, record.name, line.fields, line.labels, line), record)
        if record.notes or record.fault is not None:
            line.fields = {**line.fields}
            self._odd(rules, record, line.fields)
        left_out = self.only and compare_rules.handshake and record.name not in compare_rules.handshake and record.kind != "response"
        if "names" in self.only or ("handshake" in self.only and left_out):
            line.fields = {}
        self._count(line.fields)
        conversation.lines.append(line)

    def _fill_line(self, line: Line, into: _Into, record: Message) -> None:
        """Fill the fields and labels of a line. Lines of equal messages share them, where no value depends on anything else."""
        try:
            content = marshal.dumps(record.fields, 2) if record.size <= SHARED_BYTES else None
        except ValueError:
            content = None
        message = record.protocol, record.name, content
        shared = self._shared.get(message)
        if shared is not None:
            line.fields, line.labels = shared
            return
        before = self._dependent
        self._fill(into, record.fields)
        if content is None or len(content) > SHARED_BYTES or before != self._dependent:
            return
        if SIMPLE.issuperset(map(type, line.fields.values())):
            if len(self._shared) >= SHARED:
                self._shared.clear()
            self._shared[message] = line.fields, line.labels

    def _odd(self, rules: FieldRules, record: Message, fields: dict[str, Any]) -> None:
        notes = record.notes and [self._said(note) for note in record.notes if note not in CHANCE]
        if notes and rules.of(record.name, "notes") is None:
            fields[NOTES] = notes
        if record.fault is not None and rules.of(record.name, "fault") is None:
            fields[FAULT] = self._said(f"{record.fault.field}: {record.fault.reason}")

    def _said(self, text: str) -> str:
        return str(self._masked(_NUMERALS.sub("...", text)))

    def _flow(
        self, place: _OpenConversation, side: int, record: Message, table: TotalRule, rules: FieldRules, request: Message | None
    ) -> None:
        by = table.by(record.fields, {} if request is None else request.fields)
        by = self._masked(_ENDPOINT.sub("<address>", by))
        flow = place.flow(side, record.name, by, table, record.packets[1])
        prefix = table.content[0] if table.content else ""
        fields: dict[str, Any] = {}
        self._fill(_Into(place, rules, record.name, fields, flow.labels, left_out=table.content), record.fields)
        self._odd(rules, record, fields)
        place.several(flow, fields)
        if table.items is None or rules.of(record.name, prefix) is not None:
            return
        for item in table.items(record.fields, {} if request is None else request.fields):
            if table.form == "set":
                flow.numbers[item] = record.packets[1]
                continue
            inner: dict[str, Any] = {}
            self._fill(_Into(place, rules, record.name, inner, flow.labels), item, pattern=prefix)
            if self.only:
                inner.clear()
            self._count(inner)
            flow.items.append(inner)
            flow.packets.append(record.packets[1])

    # Fields

    def _count(self, fields: dict[str, Any]) -> None:
        """Count the fields that are kept."""
        self._fields += len(fields)
        self._characters += sum(map(len, fields))
        if self._fields > FIELDS or self._characters > NAMES:
            most = f"{FIELDS:,} fields, or {NAMES >> 20} MiB of their names,"
            raise CaptureError(f"has more than the {most} that can be compared; --only handshake compares less", self.name)

    def _excess(self, message: str) -> CaptureError:
        return CaptureError(f"has a {message} of more than {FIELDS:,} fields, or {NAMES >> 20} MiB of their names", self.name)

    def _fill(self, into: _Into, members: dict[str, Any], path: str = "", pattern: str = "", keyed: bool = False) -> None:
        """Put the fields of an object where they belong, by path; `pattern` is the path without numbers."""
        place, rules, name, fields, labels, _, left_out = into
        if path:
            if not members:
                fields[path] = {}
            if len(path) > MAX_PATH or len(pattern) > MAX_PATTERN:
                path, pattern = _abridged(path, MAX_PATH), _abridged(pattern, MAX_PATTERN)
            if len(path) * len(members) > NAMES:
                raise self._excess(name)
        if len(fields) + len(members) > FIELDS:
            raise self._excess(name)
        steps, unnumbered = rules.steps(name, pattern, keyed), path == pattern
        for member, value in members.items():
            labelled, part, inner, rule = steps[member]
            if labelled is not None and labelled in members:
                if type(value) is str:
                    labels[path + key(labelled, not path)] = value
            elif inner not in left_out:
                inside = inner if unnumbered else path + part if path else part.removeprefix(".")
                kind = type(value)
                if rule is not None or kind is list:
                    if rule is None or rule.what != "drop":
                        self._put(into, value, inside, inner, rule)
                elif kind in _PLAIN:
                    fields[inside] = value
                elif isinstance(value, dict):
                    self._fill(into, value, inside, inner)
                else:
                    fields[inside] = self._leaf(place, None, value)

    def _put(self, into: _Into, value: Any, path: str, pattern: str, rule: FieldRule | None) -> None:
        """Put what a field holds where it belongs."""
        self._dependent += rule is not None
        if rule is not None and rule.what in ("paired", "type"):
            if rule.what == "type":
                into.fields[path] = reduced(rule, value)
            elif rule.what == "paired" and into.line is not None and into.line.kind == "request":
                # An id says no more than which request is answered
                used, text = into.place.used[into.line.side], shown(value)
                if text in used:
                    into.fields[path] = Placeholder("used before")
                used.add(text)
        elif isinstance(value, dict):
            self._fill(into, value, path, pattern)
        elif type(value) is not list:
            into.fields[path] = self._leaf(into.place, rule, value)
        elif not any(isinstance(one, dict | list) for one in value):
            into.fields[path] = shortened([self._leaf(into.place, rule, one) for one in value])
        elif (entries := _entries(value)) is not None:
            self._fill(into, entries, path, pattern, True)
        else:
            path = _abridged(path, MAX_PATH)
            if len(into.fields) + len(value) > FIELDS or len(path) * len(value) > NAMES:
                raise self._excess(into.name)
            for index, one in enumerate(value):
                self._put(into, one, f"{path}[{index}]", pattern, rule)

    def _leaf(self, place: _OpenConversation, rule: FieldRule | None, value: Any) -> Any:
        if rule is not None:
            if rule.what in ("alias", "host", "port"):
                if value in _NONE:
                    return value
                return self._names.alias(rule.with_ or rule.what, str(value) if rule.what == "port" else value)
            if rule.what == "pattern" and isinstance(value, str | bytes):
                self._search(rule.with_.programsize, value)
            value = reduced(rule, value)
        if type(value) is str:
            if value[:1] == "<" and _REDACTED.fullmatch(value):
                return Placeholder("redacted")
            if ":" in value:
                self._dependent += 1
                value = self._named(place, value)
            if self._texts:
                self._dependent += 1
                value = self._masked(value)
            if type(value) is str and len(value) <= LONG:
                return value
        return value if type(value) in _PLAIN else shortened(value)

    def _named(self, place: _OpenConversation, text: str) -> Any:
        """Text with the endpoints in it called by their roles."""
        known = self._names.endpoints
        if text in known:
            return known[text]
        roles = {place.server: "<server>", place.client: "<client>"}
        return _ENDPOINT.sub(lambda found: roles.get(found[0]) or (shown(known[found[0]]) if found[0] in known else found[0]), text)

    def _search(self, instructions: int, value: str | bytes) -> None:
        """Count what searching `value` with patterns of this size may cost."""
        self._searched += max(0, instructions - A_CHARACTER) * len(value)
        if self._searched > SEARCHED:
            what = f"has too much text for patterns of {instructions:,} instructions of RE2 in check.mask"
            raise CaptureError(f"{what}; up to {A_CHARACTER} search any text", self.name)

    def _masked(self, value: Any) -> Any:
        if self._texts and isinstance(value, str):
            self._search(self._instructions, value)
            for word, pattern in self._texts.items():
                value = pattern.sub(f"<{word}>", encodable(value))
        elif self._texts and isinstance(value, list):
            return [self._masked(one) for one in value]
        return value


class _Into(NamedTuple):
    """Where the fields of a message go."""

    place: _OpenConversation
    rules: FieldRules
    name: str
    fields: dict[str, Any]
    labels: dict[str, str]
    line: Line | None = None
    left_out: tuple[str, ...] = ()


class _OpenConversation:
    """A conversation while it is put together."""

    def __init__(self, conversation: GoldenConversation, client: str, server: str) -> None:
        self.conversation = conversation
        self.client = client
        self.server = server
        self.used: defaultdict[int, set[str]] = defaultdict(set)
        """The ids of requests, by side."""
        self._flows: dict[tuple[int, str, str, str], Total] = {}
        self._values: defaultdict[Total, defaultdict[str, dict[Hashable, Any]]] = defaultdict(lambda: defaultdict(dict))

    def flow(self, side: int, name: str, by: str, table: TotalRule, packet: int | None) -> Total:
        key = side, name, by, table.kind
        if key not in self._flows:
            self._flows[key] = Total(side, name, by, table.form, packet=packet)
        return self._flows[key]

    def several(self, flow: Total, fields: dict[str, Any]) -> None:
        for path, value in fields.items():
            self._values[flow][path].setdefault(identity(value), value)

    def finish(self) -> None:
        for flow in self._flows.values():
            for path, known in self._values[flow].items():
                values = tuple(known.values())
                flow.fields[path] = values[0] if len(values) == 1 else ValueSet(values)
            if flow.form == "set":
                flow.items = merged((number, number) for number in flow.numbers)
        self.conversation.flows = sorted(self._flows.values(), key=lambda one: (one.side, one.name, one.by))


def _renumber(transcript: Transcript) -> None:
    """Number aliases by where they stand in a golden file."""
    names = IdNames()

    def named(value: Any) -> Any:
        return names.alias(value.kind, value) if type(value) is Alias else value

    for conversation in transcript.conversations:
        conversation.ends = named(conversation.ends[0]), named(conversation.ends[1])
        parts: list[Line | Total] = [*ordered(conversation.lines), *conversation.flows]
        for part in parts:
            items = part.items if isinstance(part, Total) and part.form != "set" else ()
            for fields in (part.fields, *items):
                if SIMPLE.issuperset(map(type, fields.values())):
                    continue
                for path, value in fields.items():
                    if type(value) not in SIMPLE:
                        fields[path] = mapped(value, named)


def restrict(conversation: GoldenConversation, only: frozenset[str], heartbeats: bool) -> None:
    """Remove the parts of a conversation that are not compared."""
    compare_rules = rules_of(conversation.protocol)
    lines = conversation.lines
    if compare_rules.heartbeats and not heartbeats:
        lines = [one for one in lines if not _of(one, compare_rules.heartbeats)]
    if "handshake" in only:
        if compare_rules.handshake:
            lines = [one for one in lines if _of(one, compare_rules.handshake)]
        else:
            first = next((one for one in lines if one.kind == "request"), None)
            lines = [one for one in lines if one is first or (first is not None and one.request is first)]
        conversation.flows = []
    conversation.lines = lines
    if "names" in only:
        for part in conversation.parts():
            part.fields.clear()
            part.labels.clear()
            if isinstance(part, Total):
                part.items.clear()
                part.packets.clear()
    unpair(lines)


def _of(line: Line, names: tuple[str, ...]) -> bool:
    return line.name in names or (line.request is not None and line.request.name in names)


def _abridged(path: str, most: int) -> str:
    """A path, or its digest if it is a long one."""
    return path if len(path) <= most else f'["{digest(path.encode("utf-8", "surrogatepass"), "bytes of path").text}"]'


def _entries(value: list[Any]) -> dict[str, Any] | None:
    """A list of keys and values, without a key twice, as an object; None if it is another list."""
    if not all(isinstance(one, dict) and len(one) == 2 and isinstance(one.get("key"), str) and "value" in one for one in value):
        return None
    found = {one["key"]: one["value"] for one in value}
    return found if len(found) == len(value) else None


def _prefix(protocol: str, name: str) -> str:
    tables = rules_of(protocol).flows.get(name, ())
    content = next((one.content for one in tables if one.items is not None and one.content), ())
    return f"{content[0]}." if content else ""


def _each(rule: FieldRule, value: Any) -> Any:
    if rule.what != "type":
        return mapped(value, partial(reduced, rule))
    return ValueSet(tuple(_each(rule, one) for one in value.values)) if isinstance(value, ValueSet) else reduced(rule, value)
