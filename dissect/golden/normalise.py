"""From the records of a capture to what is compared of them: no times, no numbers, no place of a chance."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from streamdump.golden.model import FAULT, GAP, NOTES, GoldenConversation, Line, Total, Transcript, unpair
from streamdump.golden.ranges import merged
from streamdump.golden.rules import FieldRule, FieldRules, reduced
from streamdump.golden.settings import CheckSettings
from streamdump.golden.values import Alias, Placeholder, ValueSet, key, same, shortened, shown
from streamdump.model import ConversationRow, Exchange, Gap, Message, Record
from streamdump.patterns import encodable
from streamdump.protocols import PROTOCOLS
from streamdump.protocols.compare_rules import TotalRule as FlowTable

_REDACTED = re.compile(r"<redacted [0-9]+ bytes>")
_ENDPOINT = re.compile(r"(?:[0-9]+(?:\.[0-9]+){3}|\[[0-9a-f:.]+\]):[0-9]+")
_NUMERALS = re.compile(r"0x[0-9a-f]{5,}|[0-9]{9,}")
"""Checksums and the like, in what is said of a message."""
_INDEX = re.compile(r"\[[0-9]+\]")

_NONE = (None, "", 0, "0")
"""What says that there is no id, address or port."""

CHANCE = frozenset(("response begins before its request ends",))
"""Notes on times."""

COMPARE_RULES = {protocol.name: protocol.compare_rules for protocol in PROTOCOLS}


def without_index(path: str) -> str:
    """A path without the numbers of lists."""
    return _INDEX.sub("", path) if "[" in path else path


class IdNames:
    """Renames ids by first use, and endpoints by role."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], Alias] = {}
        self._count: dict[str, int] = {}
        self.endpoints: dict[str, Alias] = {}

    def alias(self, kind: str, value: Any) -> Alias:
        name = kind, shown(value)
        found = self._known.get(name)
        if found is None:
            found = self._known[name] = self.new(kind)
        return found

    def new(self, kind: str) -> Alias:
        self._count[kind] = number = self._count.get(kind, 0) + 1
        return Alias(kind, number)


class Normaliser:
    """Takes the records of one capture."""

    def __init__(self, settings: CheckSettings, only: Iterable[str] = (), heartbeats: bool = True, used: set[str] | None = None) -> None:
        """`only` and `heartbeats`: what a golden file leaves out besides what the settings do. `used` collects what of the user's rules
        was of use."""
        self.settings = settings
        self.only = frozenset(only) | ({settings.only} - {"all"})
        self.heartbeats = settings.heartbeats and heartbeats
        self.used: set[str] = set() if used is None else used
        self._names = IdNames()
        self._texts = settings.texts()
        self._rules: dict[str, FieldRules] = {}
        self._records: list[Message | Gap] = []
        self._ended: dict[int, str] = {}
        self._asked: list[tuple[Line, int]] = []
        """Responses with the numbers of their requests, which may have been captured later."""
        self._answered: dict[int, tuple[int, str]] = {}
        """By the number of a response: its request, and how it answers, as far as the response does not say so itself."""

    def take(self, records: Iterable[Record]) -> None:
        """Keep what is compared of these records."""
        for record in records:
            if isinstance(record, Exchange):
                if record.response is not None:
                    self._answered[record.response] = record.request, record.outcome
                elif record.reason != "timeout":
                    self._ended[record.request] = record.outcome
            elif isinstance(record, Message | Gap):
                self._records.append(record)

    def finish(self, rows: Sequence[ConversationRow]) -> Transcript:
        """All of it; `rows` are the conversations of the capture."""
        places: dict[int, _Place] = {}
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
            places[row.conversation] = _Place(conversation, client, server)
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
        said = Transcript(unread=unread, only=self.only, heartbeats=self.heartbeats)
        for place in places.values():
            place.finish()
            restrict(place.conversation, self.only, self.heartbeats)
            if place.conversation.lines or place.conversation.flows:
                said.conversations.append(place.conversation)
        return said

    def rules(self, protocol: str) -> FieldRules:
        """What is done with the fields of a protocol."""
        found = self._rules.get(protocol)
        if found is None:
            found = self._rules[protocol] = FieldRules(COMPARE_RULES.get(protocol), self.settings, protocol, self.used)
        return found

    def again(self, said: Transcript) -> None:
        """Do to what a golden file says what the settings ask for now."""
        for conversation in said.conversations:
            rules = self.rules(conversation.protocol)
            for part in conversation.parts():
                self._again(rules, part.name, "", part.fields)
                if isinstance(part, Total) and part.form != "set":
                    prefix = _prefix(conversation.protocol, part.name)
                    for item in part.items:
                        self._again(rules, part.name, prefix, item)
            restrict(conversation, self.only, self.heartbeats)
        said.conversations = [one for one in said.conversations if one.lines or one.flows]

    def _again(self, rules: FieldRules, name: str, prefix: str, fields: dict[str, Any]) -> None:
        if not rules.asked:
            return
        for path, value in list(fields.items()):
            if path.startswith("@"):
                if rules.of(name, path) is not None or rules.of(name, path[1:]) is not None:
                    del fields[path]
                continue
            bare = without_index(path)
            for stop in [*_borders(bare), len(bare)]:
                rule = rules.of(name, prefix + bare[:stop])
                if rule is None:
                    continue
                if rule.what == "drop":
                    del fields[path]
                    break
                if stop == len(bare):
                    fields[path] = _each(rule, value)
            else:
                if path in fields and self._texts:
                    fields[path] = self._masked(fields[path])

    # One record

    def _add(self, place: _Place, record: Message | Gap, lines: dict[int, Line], asked: dict[int, Message]) -> None:
        conversation = place.conversation
        side = 0 if record.src == place.client else 1
        if isinstance(record, Gap):
            place.lines.append(Line(side, GAP, GAP, record.reason, {"size": record.size, "in_frame": record.in_frame}))
            return
        rules = self.rules(record.protocol)
        compare_rules = rules.compare_rules
        if conversation.packet is None:
            conversation.packet = record.packets[1]
        number, outcome = record.request, record.outcome
        if number is None:
            number, outcome = self._answered.get(record.number, (None, outcome))
        table = next((one for one in compare_rules.flows.get(record.name, ()) if one.kind == record.kind), None)
        if table is not None and outcome != "refused" and record.fault is None:
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
        line.lane = record.name if record.name in compare_rules.apart else ""
        self._fill(place, rules, record.name, record.fields, "", "", line.fields, line.labels, line)
        self._odd(rules, record, line.fields)
        place.lines.append(line)

    def _odd(self, rules: FieldRules, record: Message, fields: dict[str, Any]) -> None:
        notes = [self._said(note) for note in record.notes if note not in CHANCE]
        if notes and rules.of(record.name, "notes") is None:
            fields[NOTES] = notes
        if record.fault is not None and rules.of(record.name, "fault") is None:
            fields[FAULT] = self._said(f"{record.fault.field}: {record.fault.reason}")

    def _said(self, text: str) -> str:
        return str(self._masked(_NUMERALS.sub("...", text)))

    def _flow(self, place: _Place, side: int, record: Message, table: FlowTable, rules: FieldRules, request: Message | None) -> None:
        by = table.by(record.fields, {} if request is None else request.fields)
        by = self._masked(_ENDPOINT.sub("<address>", by))
        flow = place.flow(side, record.name, by, table, record.packets[1])
        prefix = table.content[0] if table.content else ""
        fields: dict[str, Any] = {}
        self._fill(place, rules, record.name, record.fields, "", "", fields, flow.labels, None, frozenset(table.content))
        self._odd(rules, record, fields)
        place.several(flow, fields)
        if table.items is None or rules.of(record.name, prefix) is not None:
            return
        for item in table.items(record.fields, {} if request is None else request.fields):
            if table.form == "set":
                flow.numbers[item] = record.packets[1]
                continue
            inner: dict[str, Any] = {}
            self._fill(place, rules, record.name, item, "", prefix, inner, flow.labels, None)
            flow.items.append(inner)
            flow.packets.append(record.packets[1])

    # Fields

    def _fill(
        self,
        place: _Place,
        rules: FieldRules,
        name: str,
        value: Any,
        path: str,
        bare: str,
        into: dict[str, Any],
        labels: dict[str, str],
        line: Line | None,
        left_out: frozenset[str] = frozenset(),
    ) -> None:
        """Put the fields of `value` into `into`, by path; `bare` is the path without numbers."""
        rule = rules.of(name, bare) if bare else None
        if rule is not None and (rule.what == "drop" or self._left_out(rule, place, line, value, path, into)):
            return
        if isinstance(value, dict):
            if not value and path:
                into[path] = {}
            for member, one in value.items():
                if member.endswith("_label") and member[:-6] in value:
                    if isinstance(one, str):
                        labels[path + key(member[:-6], not path)] = one
                    continue
                inner = bare + key(member, not bare)
                if inner not in left_out:
                    self._fill(place, rules, name, one, path + key(member, not path), inner, into, labels, line, left_out)
        elif isinstance(value, list):
            self._list(place, rules, name, value, path, bare, into, labels, line)
        else:
            into[path] = self._leaf(place, rule, value)

    def _list(
        self,
        place: _Place,
        rules: FieldRules,
        name: str,
        value: list[Any],
        path: str,
        bare: str,
        into: dict[str, Any],
        labels: dict[str, str],
        line: Line | None,
    ) -> None:
        if not any(isinstance(one, dict | list) for one in value):
            rule = rules.of(name, bare)
            into[path] = shortened([self._leaf(place, rule, one) for one in value])
        elif _is_map(value):
            for entry in value:
                part = f"[{shown(entry['key'])}]"
                self._fill(place, rules, name, entry["value"], path + part, bare + part, into, labels, line)
        else:
            for index, one in enumerate(value):
                if isinstance(one, dict | list):
                    self._fill(place, rules, name, one, f"{path}[{index}]", bare, into, labels, line)
                else:
                    into[f"{path}[{index}]"] = self._leaf(place, rules.of(name, bare), one)

    def _left_out(self, rule: FieldRule, place: _Place, line: Line | None, value: Any, path: str, into: dict[str, Any]) -> bool:
        """Whether an id says no more than which request is answered."""
        if rule.what != "paired":
            if rule.what == "type":
                into[path] = reduced(rule, value)
                return True
            return False
        if line is not None and line.kind == "request":
            used = place.used.setdefault(line.side, set())
            if shown(value) in used:
                into[path] = Placeholder("used before")
            used.add(shown(value))
        return True

    def _leaf(self, place: _Place, rule: FieldRule | None, value: Any) -> Any:
        if rule is not None:
            if rule.what in ("alias", "host", "port"):
                if value in _NONE:
                    return value
                return self._names.alias(rule.with_ or rule.what, str(value) if rule.what == "port" else value)
            value = reduced(rule, value)
        if isinstance(value, str):
            if _REDACTED.fullmatch(value):
                return Placeholder("redacted")
            if ":" in value:
                value = self._named(place, value)
        return shortened(self._masked(value))

    def _named(self, place: _Place, text: str) -> Any:
        """Text with the endpoints in it called by their roles."""
        known = self._names.endpoints
        if text in known:
            return known[text]

        def name(found: re.Match[str]) -> str:
            whole = found[0]
            if whole == place.client:
                return "<client>"
            if whole == place.server:
                return "<server>"
            return shown(known[whole]) if whole in known else whole

        return _ENDPOINT.sub(name, text)

    def _masked(self, value: Any) -> Any:
        if self._texts and isinstance(value, str):
            for word, pattern in self._texts.items():
                value = pattern.sub(f"<{word}>", encodable(value))
        elif self._texts and isinstance(value, list):
            return [self._masked(one) for one in value]
        return value


class _Place:
    """A conversation while it is put together."""

    def __init__(self, conversation: GoldenConversation, client: str, server: str) -> None:
        self.conversation = conversation
        self.client = client
        self.server = server
        self.lines = conversation.lines
        self.used: dict[int, set[str]] = {}
        self._flows: dict[tuple[int, str, str, str], Total] = {}
        self._values: dict[Total, dict[str, list[Any]]] = {}
        self._messages: dict[Total, int] = {}

    def flow(self, side: int, name: str, by: str, table: FlowTable, packet: int | None) -> Total:
        found = self._flows.get((side, name, by, table.kind))
        if found is None:
            found = self._flows[side, name, by, table.kind] = Total(side, name, by, table.form, packet=packet)
            self._values[found] = {}
        return found

    def several(self, flow: Total, fields: dict[str, Any]) -> None:
        values = self._values[flow]
        for path, value in fields.items():
            known = values.setdefault(path, [])
            if not any(same(value, one) for one in known):
                known.append(value)

    def finish(self) -> None:
        for flow, values in self._values.items():
            for path, known in values.items():
                flow.fields[path] = known[0] if len(known) == 1 else ValueSet(tuple(known))
            if flow.form == "set":
                flow.items = merged((number, number) for number in flow.numbers)
        self.conversation.flows = sorted(self._flows.values(), key=lambda one: (one.side, one.name, one.by))


def restrict(conversation: GoldenConversation, only: frozenset[str], heartbeats: bool) -> None:
    """Leave of a conversation what is compared."""
    compare_rules = COMPARE_RULES.get(conversation.protocol)
    lines = conversation.lines
    if compare_rules is not None and not heartbeats:
        beats = frozenset(compare_rules.heartbeats)
        lines = [one for one in lines if not _of(one, beats)]
    if "handshake" in only:
        names = frozenset(compare_rules.handshake if compare_rules is not None else ())
        if names:
            lines = [one for one in lines if _of(one, names)]
        else:
            first = next((one for one in lines if one.kind == "request"), None)
            lines = [one for one in lines if one is first or (first is not None and one.request is first)]
        conversation.flows = []
    if "names" in only:
        parts: list[Line | Total] = [*lines, *conversation.flows]
        for part in parts:
            part.fields.clear()
            part.labels.clear()
            if isinstance(part, Total):
                part.items.clear()
                part.packets.clear()
    unpair(lines)
    conversation.lines = lines


def _of(line: Line, names: frozenset[str]) -> bool:
    return line.name in names or (line.request is not None and line.request.name in names)


def _is_map(value: list[Any]) -> bool:
    """Whether a list is one of keys and values, without a key twice."""
    if not all(isinstance(one, dict) and len(one) == 2 and isinstance(one.get("key"), str) and "value" in one for one in value):
        return False
    return len({one["key"] for one in value}) == len(value)


def _prefix(protocol: str, name: str) -> str:
    compare_rules = COMPARE_RULES.get(protocol)
    tables = compare_rules.flows.get(name, ()) if compare_rules is not None else ()
    content = next((one.content for one in tables if one.items is not None and one.content), ())
    return f"{content[0]}." if content else ""


def _borders(path: str) -> list[int]:
    """Where the parts of a path begin."""
    found: list[int] = []
    inside = False
    for at, one in enumerate(path):
        inside ^= one == '"'
        if one in ".[" and not inside:
            found.append(at)
    return found


def _each(rule: FieldRule, value: Any) -> Any:
    if rule.what == "type" and not isinstance(value, ValueSet):
        return reduced(rule, value)
    if isinstance(value, list):
        return [reduced(rule, one) for one in value]
    if isinstance(value, ValueSet):
        return ValueSet(tuple(_each(rule, one) for one in value.values))
    return reduced(rule, value)
