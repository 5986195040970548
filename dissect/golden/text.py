"""Golden files: conversations as text that people can read, diff line by line, and that is read back without loss.

    streamdump golden 1

    conversation client 1 > server 1 rabbitmq-stream
      > PeerProperties  version=1  peer_properties.product="..."
      < PeerProperties answered  version=1  response_code=1:"OK"

After the name comes what is unusual: `one-way`, the outcome of a response, `unanswered` for a request. A response belongs to
the oldest request of its name that waits, else to the oldest that waits; where it does not, `@2` names the second last request before
it, `@0` none. Lines of both sides stand in an order that does not depend on when each came: a response as soon as it can.
"""

from __future__ import annotations

import re
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ..errors import StreamdumpError
from ..units import count
from .model import GAP, GoldenConversation, Line, Total, Transcript, ordered
from .normalise import FIELDS, LINES, rules_of
from .ranges import Run, merged, ranges
from .values import Alias, Unreadable, ValueSet, cut, quoted, read, read_path, shown, text_of

VERSION = 1
FIRST = "streamdump golden"
WIDE = 140
"""Columns up to which the fields of a message stand in its own line."""

ARROWS = ">", "<"
ENDS = ("unanswered", "superseded")
KINDS: dict[str, tuple[str, str | None]] = {
    "": ("request", None),
    **{word: ("request", word) for word in ENDS},
    "answered": ("response", "answered"),
    "refused": ("response", "refused"),
    "response": ("response", None),
    "one-way": ("one_way", None),
}
"""The kind of a message and its outcome, by the word behind its name."""

REASONS = ("lost", "cut", "skipped")

QUOTED = 120
"""Characters of unreadable text that an error quotes."""

_WORD = re.compile(r" ([a-z][a-z-]*|@[0-9]{1,18})(?= |$)")
_RUN = re.compile(r"([0-9]{1,20})(?:-([0-9]{1,20}))?")
_NAME = re.compile(r"[A-Za-z_][\w.-]*")
_HEAD = re.compile(r"conversation ([a-z]+) ([0-9]{1,18}) ([>-]) ([a-z]+) ([0-9]{1,18}) ([\w-]+)(?: layout=([\w.+/ -]+))?")


class GoldenError(StreamdumpError):
    """A golden file that cannot be read: the place and the error."""

    def __init__(self, file: str, line: int, what: str) -> None:
        super().__init__(f"{file}:{line}: {what}; streamdump check --update rewrites it")


# Writing


def written(transcript: Transcript) -> str:
    """Return the text of a golden file."""
    lines = [f"{FIRST} {VERSION}"]
    if transcript.only:
        lines.append(f"only {' '.join(sorted(transcript.only))}")
    if transcript.heartbeats:
        lines.append("with heartbeats")
    for conversation in transcript.conversations:
        lines.append("")
        lines += _conversation(conversation)
    return "".join(f"{line}\n" for line in lines)


def _conversation(conversation: GoldenConversation) -> Iterator[str]:
    one, other = conversation.ends
    arrow = ">" if conversation.roles else "-"
    layout = f" layout={conversation.layout}" if conversation.layout else ""
    yield f"conversation {one.kind} {one.number} {arrow} {other.kind} {other.number} {conversation.protocol}{layout}"
    asked = (_Asked(), _Asked())
    for line in ordered(conversation.lines):
        reference = asked[1 - line.side].reference(line) if line.kind == "response" else ""
        yield from _wrapped(f"  {head(line)}{reference}", line.fields, line.labels)
        if line.kind == "request":
            asked[line.side].add(line)
    for flow in conversation.flows:
        yield from _wrapped(f"  {head(flow)}", flow.fields, flow.labels)
        if flow.form == "set" and flow.items:
            yield f"    = {ranges(flow.items)}"
        elif flow.form != "set":
            for item in flow.items:
                yield from _wrapped("    +", item, flow.labels)


def head(part: Line | Total) -> str:
    """Return the start of a line: direction, name, and what is unusual about the message."""
    name = part.name if _NAME.fullmatch(part.name) else quoted(part.name)
    if isinstance(part, Total):
        more = f"{'set' if part.form == 'set' else 'flow'} {quoted(part.by)}"
    else:
        more = "one-way" if part.kind == "one_way" else part.outcome or ("response" if part.kind == "response" else "")
    return f"{ARROWS[part.side]} {name} {more}".rstrip()


def fields_text(fields: Iterable[tuple[str, Any]], labels: Mapping[str, str]) -> Iterator[str]:
    """Each field as `path=value`, with what the value means behind it."""
    for path, value in fields:
        if type(value) is ValueSet:
            yield from (f"{path}={shown(one)}" for one in value.values)
        elif labels and path in labels and isinstance(value, int):
            yield f"{path}={shown(value)}:{quoted(labels[path])}"
        else:
            yield f"{path}={shown(value)}"


def _wrapped(start: str, fields: Mapping[str, Any], labels: Mapping[str, str]) -> Iterator[str]:
    texts = list(fields_text(fields.items(), labels))
    if len(texts) < 2 or sum(map(len, texts)) + 2 * len(texts) + len(start) <= WIDE:
        yield "  ".join([start, *texts])
        return
    indent = " " * (len(start) - len(start.lstrip()) + 4)
    group = ""
    rows: list[str] = []
    for one in texts:
        # what belongs to one object stands in one line
        owner = _owner(one)
        if owner and owner == group and len(rows[-1]) + len(one) + 4 <= WIDE:
            rows[-1] += f"  {one}"
        else:
            rows.append(one)
        group = owner
    yield start
    yield from (indent + row for row in rows)


def _owner(field: str) -> str:
    """The object that a field belongs to, "" where that is the message."""
    path = field[: field.index("=")]
    if "[" not in path:
        return path.rpartition(".")[0]
    stop = path.find("]") + 1
    return path[:stop] if stop < len(path) else ""


class _Asked:
    """The requests of one side so far, and those of them that wait."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self._at: dict[Line, int] = {}
        self._waiting: OrderedDict[Line, None] = OrderedDict()
        self._named: defaultdict[str, OrderedDict[Line, None]] = defaultdict(OrderedDict)

    def add(self, line: Line) -> None:
        self._at[line] = len(self.lines)
        self.lines.append(line)
        if line.outcome is None:
            self._waiting[line] = self._named[line.name][line] = None

    def usual(self, name: str) -> Line | None:
        """The request that a response of this name answers unless it says something else."""
        return next(iter(self._named[name] or self._waiting), None)

    def answer(self, line: Line | None) -> None:
        if line is not None and line in self._waiting:
            del self._waiting[line], self._named[line.name][line]

    def reference(self, line: Line) -> str:
        """Return the reference of a response to its request, if it is not the usual one."""
        usual, request = self.usual(line.name), line.request
        self.answer(request)
        if usual is request:
            return ""
        return " @0" if request is None else f" @{len(self.lines) - self._at[request]}"


# Reading


def parsed(text: str, file: str) -> Transcript:
    """Return the content of a golden file; raise `GoldenError` if it cannot be read."""
    return _GoldenReader(text, file).transcript()


class _Repeated(list[Any]):
    """The values of a field that came more than once."""


class _GoldenReader:
    """Reads a golden file line by line."""

    def __init__(self, text: str, file: str) -> None:
        self.lines = text.split("\n")
        self.file = file
        self.number = 0
        self.asked: tuple[_Asked, _Asked] = (_Asked(), _Asked())
        self._part: Line | Total | None = None
        """The message or flow read last."""
        self._into: tuple[dict[str, Any], dict[str, str]] | None = None
        """Where the fields in lines of their own go."""
        self._values = 0
        self._repeated: list[tuple[dict[str, Any], str]] = []

    def wrong(self, what: str) -> GoldenError:
        return GoldenError(self.file, self.number, cut(text_of(what), QUOTED))

    def transcript(self) -> Transcript:
        transcript = Transcript()
        if len(self.lines) > LINES:
            self.number = LINES + 1
            raise self.wrong(f"more than {LINES:,} lines")
        for line in self.lines:
            self.number += 1
            text = line.rstrip()
            try:
                self._line(text.lstrip(" "), len(text) - len(text.lstrip(" ")), transcript)
            except Unreadable as wrong:
                raise self.wrong(f"{wrong} at column {wrong.at + 1}") from wrong
        for fields, path in self._repeated:
            fields[path] = ValueSet(tuple(fields[path]))
        return transcript

    def _line(self, text: str, indent: int, transcript: Transcript) -> None:
        """Read one line, which stands below the part and its fields that were read before."""
        part, into = self._part, self._into
        if self.number == 1:
            self._version(text)
        elif not text or text.startswith("#"):
            pass
        elif indent == 0:
            self._part = self._into = None
            self._top(text, transcript)
        elif indent == 2 and transcript.conversations:
            self._part = part = self._message(text, transcript.conversations[-1])
            self._into = part.fields, part.labels
        elif indent == 4 and isinstance(part, Total):
            self._into = self._item(text, part)
        elif indent > 4 and into is not None:
            self._fields(text, 0, *into)
        else:
            raise self.wrong("a line that stands nowhere")

    def _version(self, text: str) -> None:
        begins, version = text.startswith(FIRST), text.removeprefix(FIRST).strip()
        if not begins or version != str(VERSION):
            unknown = f"version {version or 'none'} of the format is not known, only {VERSION}"
            raise self.wrong(unknown if begins else f"a golden file begins with {FIRST!r}")

    def _top(self, text: str, transcript: Transcript) -> None:
        found = _HEAD.fullmatch(text)
        if text.startswith("only "):
            transcript.only = frozenset(text.split()[1:])
        elif text == "with heartbeats":
            transcript.heartbeats = True
        elif found is None:
            raise self.wrong("neither a conversation nor what the file is about")
        else:
            one, number, arrow, other, its, protocol, layout = found.groups()
            ends = Alias(one, int(number)), Alias(other, int(its))
            transcript.conversations.append(GoldenConversation(protocol, layout, arrow == ">", ends, at=self.number))
            self.asked = (_Asked(), _Asked())

    def _message(self, text: str, conversation: GoldenConversation) -> Line | Total:
        if text[:2] not in ("> ", "< "):
            raise self.wrong("a message begins with > or <")
        side = ARROWS.index(text[0])
        name, at = self._name(text, 2)
        words: list[str] = []
        reference: int | None = None
        while (found := _WORD.match(text, at)) is not None:
            word = found[1]
            at = found.end()
            if word in ("flow", "set"):
                by, at = read(text, at + 1)
                flow = Total(side, name, str(by), "set" if word == "set" else "list", at=self.number)
                self._fields(text, at, flow.fields, flow.labels)
                conversation.flows.append(flow)
                return flow
            if word.startswith("@"):
                reference = int(word[1:])
            else:
                words.append(word)
        word = words[0] if words else ""
        if len(words) > 1:
            raise self.wrong(f"{words[1]} after {word}")
        kind = (GAP, word) if name == GAP and word in REASONS else KINDS.get(word)
        if kind is None:
            raise self.wrong(f"{word} is not an outcome or kind of a message")
        line = Line(side, name, *kind, at=self.number)
        self._fields(text, at, line.fields, line.labels)
        if line.kind == "response":
            self._answers(line, reference)
        elif line.kind == "request":
            self.asked[side].add(line)
        apart = name in rules_of(conversation.protocol).apart
        line.lane = name if apart else line.request.lane if line.request is not None else ""
        conversation.lines.append(line)
        return line

    def _answers(self, line: Line, reference: int | None) -> None:
        asked = self.asked[1 - line.side]
        if reference is None:
            line.request = asked.usual(line.name)
        elif reference > len(asked.lines):
            raise self.wrong(f"@{reference}: there {'is' if len(asked.lines) == 1 else 'are'} {count(len(asked.lines), 'request')} before")
        elif reference:
            line.request = asked.lines[-reference]
        asked.answer(line.request)
        if line.request is not None:
            line.request.responses.append(line)

    def _item(self, text: str, flow: Total) -> tuple[dict[str, Any], dict[str, str]]:
        if flow.form == "set":
            if not text.startswith("= "):
                raise self.wrong("what a set holds begins with =")
            flow.items = self._numbers(text[2:])
            return {}, {}
        if not text.startswith("+"):
            raise self.wrong("what a flow holds begins with +")
        fields: dict[str, Any] = {}
        self._fields(text, 1, fields, flow.labels)
        flow.items.append(fields)
        flow.packets.append(None)
        flow.ats.append(self.number)
        return fields, flow.labels

    def _numbers(self, text: str) -> list[Run]:
        runs: list[Run] = []
        for run in text.split(", "):
            self._values += 1
            if self._values > FIELDS:
                raise self._excess()
            found = _RUN.fullmatch(run)
            first, last = (0, -1) if found is None else (int(found[1]), int(found[2] or found[1]))
            if first > last:
                raise self.wrong(f"{run} is not a range of numbers")
            runs.append((first, last))
        return merged(runs)

    def _excess(self) -> GoldenError:
        return self.wrong(f"more than {FIELDS:,} values")

    def _name(self, text: str, at: int) -> tuple[str, int]:
        if text[at : at + 1] == '"':
            name, at = read(text, at)
            return str(name), at
        found = _NAME.match(text, at)
        if found is None:
            raise self.wrong("a message without a name")
        return found[0], found.end()

    def _fields(self, text: str, at: int, fields: dict[str, Any], labels: dict[str, str]) -> None:
        size = len(text)
        while at < size:
            if text[at] == " ":
                at += 1
                continue
            self._values += 1
            if self._values > FIELDS:
                raise self._excess()
            stop = read_path(text, at)
            if text[stop : stop + 1] != "=":
                raise Unreadable(stop, "a field without a value")
            path = text[at:stop]
            value, at = read(text, stop + 1)
            if text[at : at + 1] == ":":
                label, at = read(text, at + 1)
                labels[path] = str(label)
            if path not in fields:
                fields[path] = value
            elif isinstance(fields[path], _Repeated):
                fields[path].append(value)
            else:
                fields[path] = _Repeated((fields[path], value))
                self._repeated.append((fields, path))
