"""Compiles terms to one Python predicate for each kind of record.

Terms that cannot be true for a kind of record (a gap has no name) are removed at compile time, and terms on keys are evaluated before
terms on fields. Constants reach the generated text by name only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

from ..errors import FilterError
from ..model import Entry, Head, Options, Record
from ..options import SETTINGS
from ..protocols.field_registry import INT, OBJECT, OTHER, WORDS
from ..protocols.records import rfc3339
from . import literals
from .grammar import All, Any_, Compare, Exists, Name, Node, Not, Value, parse, shortened
from .literals import Misfit, Want
from .names import (
    ADDRESS,
    DELTA,
    DURATION,
    ENDPOINT,
    ENTRIES,
    FIELDS,
    PROTOCOL,
    RAW,
    RELATIVE,
    TIME,
    Key,
    NameTable,
    Path,
    ResolvedName,
    nearest,
    table_of,
)
from .values import Earlier, Test, open_values, present, some, texts

TRUE, FALSE = "True", "False"

R = TypeVar("R", bound=Record | Entry)


class May:
    """Key of the predicate on a `Head`: whether the message may be kept."""


class Must:
    """Key of the predicate on a `Head`: whether the message is kept whatever its fields are."""


ON: dict[type, type] = {May: Must, Must: May}
"""The key of a negated term."""

OF_HEADS = frozenset(("record", "protocol", "conversation", "port", "ip", "name", "kind"))
"""Names known for a `Head`."""

LISTS = tuple(one.option for one in SETTINGS.values() if one.written == "list")
"""Options that provide labels."""

CHEAP, DERIVED, DEEP = range(3)
"""Cost of a term: a key, a derived value, fields."""

SHORT_NS = 1_000
"""A time without a unit below this was probably not meant in nanoseconds."""


class _Piece(NamedTuple):
    """A term as Python text over the record `r`."""

    text: str
    cost: int


class Filter:
    """A compiled filter.

    `reads_raw`: whether it reads the bytes of messages, which needs `Options.detail`.
    `reads_fields`: whether it reads `fields`, notes or faults, so that messages must be decoded completely.
    `wanted`: whether it may keep a message with this `Head`; None if a head never decides.
    `kinds`: the kinds of records that it can match.
    `hints`: valid parts that are probably mistakes.
    """

    def __init__(
        self,
        text: str,
        tests: dict[type, Callable[[Any], Any]],
        wanted: Callable[[Head], bool] | None,
        earlier: Earlier | None,
        reads_fields: bool,
        reads_raw: bool,
        kinds: frozenset[type],
        hints: list[str],
    ) -> None:
        self.text = text
        self.wanted = wanted
        self.reads_fields = reads_fields
        self.reads_raw = reads_raw
        self.kinds = kinds
        self.hints = hints
        self._tests = tests
        self._earlier = earlier

    def keeps(self, record: Record | Entry) -> bool:
        """Return whether a record matches. Call it for all records of a run, in order."""
        if self._earlier is not None:
            self._earlier.learn((record,))
        return self.matches(record)

    def matches(self, record: Record | Entry) -> bool:
        """Return whether a record matches, after `learn` got it and all before it."""
        return bool(self._tests[type(record)](record))

    def select(self, records: Iterable[R]) -> list[R]:
        """Return the records that match."""
        if self._earlier is not None:
            return [record for record in records if self.keeps(record)]
        tests = self._tests
        return [record for record in records if tests[type(record)](record)]

    def begin(self, time_ns: int) -> None:
        """Count relative times from the first packet of the capture; without that, they count from the first record."""
        if self._earlier is not None:
            self._earlier.begin(time_ns)

    def learn(self, records: Iterable[Record | Entry]) -> None:
        """Learn from records not passed to `keeps` or `select`, which learn from theirs."""
        if self._earlier is not None:
            self._earlier.learn(records)

    def __repr__(self) -> str:
        return f"<Filter {self.text!r}>"


def compile_filter(text: str, options: Options | None = None, entries: bool = False) -> Filter:
    """Compile a filter of records, or of `entries`; raise `FilterError` with the place of the error."""
    options = options or Options()
    builder = _Builder(text, table_of(options, entries), options)
    node = parse(text)
    return builder.filter(node)


OF_EARLIER = ("client", "server", RELATIVE, DELTA)
"""Names derived from earlier records."""

_OF_BODIES = (f"r.{FIELDS}", "r.notes", "r.fault")
"""Keys that are incomplete if bodies are not decoded."""


class _Builder:
    def __init__(self, text: str, names: NameTable, options: Options) -> None:
        self.text = text
        self.names = names
        self.messages_only = not (options.exchanges or names.records is ENTRIES)
        """Only responses show what became of a request: entries show it themselves, as exchanges do."""
        self.earlier = Earlier()
        self.hints: list[str] = []
        self.reads_fields = False
        self.namespace: dict[str, Any] = {
            **self.earlier.scope(),
            "present": present,
            RAW: partial(texts, show_secrets=options.show_secrets),
            "some": some,
            "open_values": open_values,
            "rfc3339": rfc3339,
            "map": map,
            "any": any,
        }

    def filter(self, node: Node) -> Filter:
        pieces = self.pieces(node)
        records = self.names.records
        tests: dict[type, Callable[[Any], Any]] = {record: self._function(record.__name__, pieces[record].text) for record in records}
        asks = any(f"{name}(r)" in piece.text for piece in pieces.values() for name in OF_EARLIER)
        may = pieces[May].text
        wanted = None if may == TRUE else self._function(Head.__name__, may)
        kinds = frozenset(record for record in records if pieces[record].text != FALSE)
        raw = any("raw(r)" in pieces[record].text for record in records)
        return Filter(self.text, tests, wanted, self.earlier if asks else None, self.reads_fields, raw, kinds, self.hints)

    def _function(self, name: str, body: str) -> Callable[[Any], Any]:
        scope = {"__builtins__": {}, **self.namespace}
        made: Callable[[Any], Any] = eval(compile(f"lambda r: {body}", f"<filter of {name}>", "eval"), scope)
        return made

    def constant(self, value: Any) -> str:
        name = f"k{len(self.namespace)}"
        self.namespace[name] = value
        return name

    def pieces(self, node: Node) -> dict[type, _Piece]:
        """Return the text of a term for each kind of record."""
        match node:
            case Exists(name=name):
                return self._there(name)
            case Compare():
                return self._compare(node)
            case Not(term=term):
                return _opposite(self.pieces(term))
            case All(terms=terms):
                self._hint_response(terms)
                return _joined([self.pieces(one) for one in terms], " and ", TRUE, FALSE)
            case Any_(terms=terms):
                return _joined([self.pieces(one) for one in terms], " or ", FALSE, TRUE)

    def meaning(self, name: Name) -> ResolvedName:
        found = self.names.resolve(name.parts)
        if found is None:
            raise self.unknown(name)
        if any(part in key.source for key in found.keys.values() for part in _OF_BODIES):
            self.reads_fields = True
        return found

    def unknown(self, name: Name) -> FilterError:
        more = self.names.advice(self.names.meant(name.text))
        return FilterError(f"no field is named {name}; {more}", self.text, name.start, name.end)

    def _there(self, name: Name) -> dict[type, _Piece]:
        if self.names.is_protocol(name.text):
            value = Value(name.text, name.text, False, name.start, name.end)
            return self._compare(Compare(name._replace(parts=(PROTOCOL,), text=PROTOCOL), "==", (value,)))
        meaning = self.meaning(name)
        # Only names of fields need the tables, which contain the messages
        valued = self.names.key_with(name.text, bool(meaning.paths))
        if valued is not None:
            self.hints.append(f"{name} alone tests for a field with that name; did you mean {valued} == {name.text}?")
        return self._pieces(name, meaning, lambda key: _Piece(f"present({key.source})", _cost(key)), lambda path: [(path.steps, present)])

    def _pieces(
        self,
        name: Name,
        meaning: ResolvedName,
        of_key: Callable[[Key], _Piece],
        of_path: Callable[[Path], list[tuple[tuple[str, ...], Test]]],
    ) -> dict[type, _Piece]:
        """Return a term for each kind of record that has a key or a path of this name."""
        # That with fields comes first
        deep, *_ = self.names.records
        pieces: dict[type, _Piece] = dict.fromkeys(self.names.records, _Piece(FALSE, CHEAP))
        pieces |= {record: of_key(key) for record, key in meaning.keys.items()}
        if meaning.paths:
            pairs = {protocol: [pair for path in paths for pair in of_path(path)] for protocol, paths in meaning.paths.items()}
            fields = self._deep({protocol: some for protocol, some in pairs.items() if some})
            pieces[deep] = _joined([{deep: pieces[deep]}, {deep: fields}], " or ", FALSE, TRUE)[deep]
        return pieces | _of_heads(name, pieces[deep])

    def _deep(self, pairs: dict[str, list[tuple[tuple[str, ...], Test]]]) -> _Piece:
        """Return a term over fields: the paths of each protocol, each with its test."""
        self.reads_fields = True
        table = self.constant({protocol: tuple(some) for protocol, some in pairs.items()}.get)
        fields = "open_values(r)" if self.names.records is ENTRIES else "r.fields"
        return _Piece(f"some({fields}, {table}(r.protocol, ()))", DEEP)

    def _compare(self, term: Compare) -> dict[type, _Piece]:
        meaning = self.meaning(term.name)
        fitting = _Fitting(self, term)
        pieces = self._pieces(term.name, meaning, lambda key: self._key(key, fitting), fitting.path)
        below = self._below(term.name, meaning)
        more = "" if below is None else f"; in some messages its value is {below}"
        if term.name.parts[-1] in self.names.unlabelled:
            more = f"; {' and '.join(LISTS)} can give it other labels"
        fitting.end(more)
        if below is not None:
            self.hints.append(f"{term.name} is an object in some messages; there its value is {below}")
        if any(DURATION in key.kinds for key in meaning.keys.values()):
            for one in (value.text for value in term.values if value.text.isdigit() and 0 < int(value.text) < SHORT_NS):
                self.hints.append(f"{term.name}: {one} is in nanoseconds; did you mean {one}s or {one}ms?")
        if term.operator in ("==", "!=", "in"):
            self._hint(term)
        return _opposite(pieces) if term.operator == "!=" else pieces

    def _below(self, name: Name, meaning: ResolvedName) -> str | None:
        """Return the name of the value of a field that is an object in some messages; None for others."""
        both = any(OBJECT in path.kinds and len(path.kinds) > 1 for paths in meaning.paths.values() for path in paths)
        return f"{name.text}.value" if both and self.names.resolve((*name.parts, "value")) is not None else None

    def _hint(self, term: Compare) -> None:
        """Add hints for unknown message names, which are probably misspelt, and for `command`, which is `name` here."""
        for value in term.values:
            if term.name.text == "command" and self.names.is_message(value.text):
                self.hints.append(f"command is a field name; did you mean name {term.operator} {value.text}?")
            elif term.name.text == "name" and not self.names.is_message(value.text) and not value.text.startswith("unknown"):
                near = nearest(value.text, self.names.messages)
                more = f"did you mean {near}?" if near else "for the field with that name write fields.name"
                self.hints.append(f"no message is named {shortened(value.text)}; {more}")

    def _hint_response(self, terms: Sequence[Node]) -> None:
        """Add a hint where all terms must hold for a message that only responses could match."""
        named = [one.values[0] for one in terms if isinstance(one, Compare) and one.operator == "==" and one.name.text == "name"]
        asked = [one.name for one in terms if isinstance(one, Exists | Compare) and _of_responses(one)]
        for value in named if asked and self.messages_only else ():
            if self.names.answers_nothing(value.text):
                self.hints.append(f"only responses have {asked[0]}, and no {value.text} is one; select a response by name instead")

    def _key(self, key: Key, fitting: _Fitting) -> _Piece:
        found = fitting.key(key)
        if found is None:
            return _Piece(FALSE, CHEAP)
        test, wants = found
        source, cost = key.source, _cost(key)
        if source.startswith("'"):
            # The kind of a record is known at compile time
            return _Piece(TRUE if test(source[1:-1]) else FALSE, CHEAP)
        if key.source == "r.time_ns" and fitting.term.operator in ("contains", "matches"):
            source = "rfc3339(r.time_ns)"
        if key.several:
            return _Piece(f"any(map({self.constant(test)}, {source}))", cost)
        if wants is not None and key.kinds == {WORDS} and not key.struct:
            texts = [text for want in wants for text in want.texts]
            what = f"== {self.constant(texts[0])}" if len(texts) == 1 else f"in {self.constant(frozenset(texts))}"
            return _Piece(f"{source} {what}", cost)
        return _Piece(f"{self.constant(test)}({source})", cost)


class _Fitting:
    """Matches the values of a comparison with every type of the name: a value that fits none is an error."""

    def __init__(self, builder: _Builder, term: Compare) -> None:
        self.builder = builder
        self.term = term
        self._misfits: dict[int, Misfit] = {}
        self._fits: set[int] = set()

    def key(self, key: Key) -> tuple[Test, list[Want] | None] | None:
        """Return the test of a key, and the wanted values if the test is a plain equality; None: no value fits."""
        test, _, wants = self._test(key.kinds, (), key.choices, False)
        return None if test is None else (test, wants)

    def path(self, path: Path) -> list[tuple[tuple[str, ...], Test]]:
        """Return the steps to values and labels, with their tests."""
        test, labels, _ = self._test(path.kinds, path.labels, (), path.wide)
        pairs = [(path.steps, test)] if test is not None else []
        return pairs if labels is None else [*pairs, (path.label_steps, labels)]

    def _test(
        self, kinds: frozenset[str], labels: tuple[str, ...], choices: tuple[str, ...], wide: bool
    ) -> tuple[Test | None, Test | None, list[Want] | None]:
        operator, values = self.term.operator, self.term.values
        if operator in ("==", "!=", "in"):
            wants = []
            for at, value in enumerate(values):
                try:
                    wants.append(literals.want(value, kinds | {INT} if wide else kinds, labels, choices))
                    self._fits.add(at)
                except Misfit as misfit:
                    self._misfit(at, misfit)
            return (*literals.equal(wants, wide), wants) if wants else (None, None, None)
        try:
            if operator in literals.ORDER:
                test = literals.ordered(operator, values[0], kinds | {INT} if wide else kinds)
            else:
                in_labels = bool(labels) and not kinds & {WORDS, OTHER}
                test = literals.searched(operator, values[0], kinds, in_labels)
                if in_labels:
                    self._fits.add(0)
                    return None, test, None
            self._fits.add(0)
            return test, None, None
        except Misfit as misfit:
            self._misfit(0, misfit)
            return None, None, None

    def _misfit(self, at: int, misfit: Misfit) -> None:
        before = self._misfits.get(at)
        if before is None or (misfit.about and not before.about):
            self._misfits[at] = misfit

    def end(self, more: str) -> None:
        """Raise the error for the first value that fits no type, with `more` appended."""
        for at, value in enumerate(self.term.values):
            if at not in self._fits:
                reason = self._misfits[at].reason
                raise FilterError(f"{self.term.name} {reason}{more}", self.builder.text, value.start, value.end)


def _of_responses(term: Exists | Compare) -> bool:
    """Return whether of all messages only responses can match."""
    if term.name.text in ("latency", "latency_ns"):
        return isinstance(term, Exists) or term.operator != "!="
    outcomes = [one.text for one in term.values] if isinstance(term, Compare) and term.operator in ("==", "in") else []
    return term.name.text == "outcome" and outcomes != [] and {*outcomes} <= {"answered", "refused"}


def _cost(key: Key) -> int:
    return DERIVED if key.several or key.kinds & {ENDPOINT, ADDRESS, OBJECT, TIME} else CHEAP


def _of_heads(name: Name, piece: _Piece) -> dict[type, _Piece]:
    """Return the predicates of a term before fields are known."""
    known = piece.text in (TRUE, FALSE)
    if not known and name.text not in OF_HEADS:
        return {May: _Piece(TRUE, CHEAP), Must: _Piece(FALSE, CHEAP)}
    if known or name.text not in ("name", "kind"):
        return {May: piece, Must: piece}
    key = f"r.{name.text}"
    return {
        May: _Piece(f"({key} is None or {piece.text})", piece.cost),
        Must: _Piece(f"({key} is not None and {piece.text})", piece.cost),
    }


def _opposite(pieces: dict[type, _Piece]) -> dict[type, _Piece]:
    return {kind: _negated(pieces[ON.get(kind, kind)]) for kind in pieces}


def _negated(piece: _Piece) -> _Piece:
    if piece.text in (TRUE, FALSE):
        return _Piece(FALSE if piece.text == TRUE else TRUE, CHEAP)
    return _Piece(f"not ({piece.text})", piece.cost)


def _joined(parts: list[dict[type, _Piece]], word: str, empty: str, decided: str) -> dict[type, _Piece]:
    """Join terms, the cheapest first; one `decided` decides the result, `empty` ones are left out."""
    joined = {}
    for record in parts[0]:
        pieces = sorted((one[record] for one in parts), key=lambda piece: piece.cost)
        left = [piece for piece in pieces if piece.text != empty]
        if any(piece.text == decided for piece in left):
            joined[record] = _Piece(decided, CHEAP)
        elif len(left) > 1:
            joined[record] = _Piece(f"({word.join(piece.text for piece in left)})", left[-1].cost)
        else:
            joined[record] = left[0] if left else _Piece(empty, CHEAP)
    return joined
