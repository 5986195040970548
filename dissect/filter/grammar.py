"""The filter language: parses text to a tree of terms, each with its place in the text."""

from __future__ import annotations

import re
from functools import cache
from typing import Any, NamedTuple

from lark import Lark, Token, Tree
from lark.exceptions import UnexpectedCharacters, UnexpectedInput, UnexpectedToken

from ..errors import FilterError
from ..units import TIMES

GRAMMAR = r"""
?start: any_of
any_of: all_of (("or" | "||") all_of)*
all_of: _term (("and" | "&&") _term)*
_term: negation | "(" any_of ")" | there | compare | member | search
negation: ("not" | "!") _term
there: NAME
compare: NAME OPERATOR _value
member: NAME "in" "{" _value ("," _value)* "}"
search: NAME (CONTAINS | MATCHES) _value
_value: WORD | QUOTED

CONTAINS: "contains"
MATCHES: "matches" | "~"
OPERATOR: /==|!=|<=|>=|<|>|(?:eq|ne|le|ge|lt|gt)\b/
NAME: /[^\W\d][\w$-]*(?:\.[\w$-]+|\[(?:"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')\])*/s
QUOTED: /"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'/s
WORD: /[^\s(){},"'=<>!&|]+/
%ignore /\s+/
"""

_PARTS = re.compile(r"""\.?([^.\[]+)|\[("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')\]""", re.DOTALL)
_ESCAPED = re.compile(r"""\\(?:([\\'"])|u([0-9a-fA-F]{4})|U((?:000[0-9a-fA-F]|0010)[0-9a-fA-F]{4}))""")
_PATTERN_ESCAPED = re.compile(r"""\\(?:u([0-9a-fA-F]{4})|U((?:000[0-9a-fA-F]|0010)[0-9a-fA-F]{4})|.)""", re.DOTALL)
_RAW_ESCAPED = re.compile(r"""\\([^\x20-\x7e])|\\.""", re.DOTALL)
_WRITTEN = re.compile(r"""((?:"(?:[^"\\]|\\.)*+"?)|(?:'(?:[^'\\]|\\.)*+'?))|\s|([^\s(){},"'=<>!&|]+)""", re.DOTALL)
"""Lexical parts of an expression: quoted texts, spaces, words."""

BACKSLASH, QUOTE = "\\", '"'
KEYWORDS = ("and", "or", "not", "in", "contains", "matches")

SYMBOLS = {"&": "and", "|": "or"}
"""Single symbols that are not operators, and what to write for them."""

WORDS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "~": "matches"}
"""Other spellings of operators."""

SIZES = {"k": 10**3, "M": 10**6, "G": 10**9, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
"""Units after a number."""

MAX_SHOWN = 40
"""Characters of a name or value shown in messages."""

LENGTH_LIMIT = 65_536
DEPTH_LIMIT = 40
"""Nested parentheses and `not`; Python's own compiler is limited to some hundred."""


class Name(NamedTuple):
    """A name as written; of `parts`, those in brackets are `BracketEntry`."""

    parts: tuple[str, ...]
    text: str
    start: int
    end: int

    def __str__(self) -> str:
        return shortened(self.text)


class BracketEntry(str):
    """A part of a name in brackets: an entry of a list of keys and values."""

    __slots__ = ()


class Value(NamedTuple):
    """The right side; `text` without its quotes, `pattern` the same as a regular expression."""

    text: str
    pattern: str
    quoted: bool
    start: int
    end: int


class Exists(NamedTuple):
    """A name alone: tests for presence."""

    name: Name


class Compare(NamedTuple):
    """`operator`: one of those, `in`, `contains` or `matches`."""

    name: Name
    operator: str
    values: tuple[Value, ...]


class Not(NamedTuple):
    term: Node


class All(NamedTuple):
    terms: tuple[Node, ...]


class Any_(NamedTuple):  # noqa: N801
    terms: tuple[Node, ...]


Node = Exists | Compare | Not | All | Any_


@cache
def _parser() -> Lark:
    return Lark(GRAMMAR, parser="lalr", keep_all_tokens=False, maybe_placeholders=False)


def parse(text: str) -> Node:
    """Return the terms of a filter; raise `FilterError` for invalid syntax."""
    if len(text) > LENGTH_LIMIT:
        raise FilterError(f"the filter has {len(text):,} characters; the limit is {LENGTH_LIMIT:,}", text, 0, 1)
    if not text.strip():
        raise FilterError("the filter is empty", text, 0, 0)
    try:
        tree: Any = _parser().parse(text)
    except UnexpectedInput as error:
        raise _wrong(error, text) from None
    return _node(tree, text, 0)


def _wrong(error: UnexpectedInput, text: str) -> FilterError:
    """Return the error for invalid syntax, with its place."""
    ended = isinstance(error, UnexpectedToken) and error.token.type == "$END"
    at = len(text) if ended or error.pos_in_stream is None else error.pos_in_stream
    wanted = _accepted(text[:at])
    rest = text[at:]
    symbol = next((one for one in SYMBOLS if rest.startswith(one)), None)
    end = at + len(symbol or (error.token if isinstance(error, UnexpectedToken) else " "))
    word = next(iter(rest.split(None, 1)), "")
    value = bool(wanted & {"WORD", "QUOTED"})
    operator = "OPERATOR" in wanted
    after_number = "AND" in wanted and text[:at].rstrip()[-1:].isdigit()
    causes = (
        (rest[:1] in ("'", '"') and "QUOTED" in wanted, "the quote that starts here is not closed"),
        (rest.startswith("=") and operator, "= is not an operator; use =="),
        (symbol is not None, f"write {SYMBOLS.get(symbol or '')}"),
        (rest.startswith("[") and operator, 'a key in brackets needs quotes: ["product"]'),
        (word == "not" and operator, "write `not` before the name: not NAME in {a, b}"),
        ("NAME" in wanted, "the name of a field is missing here" if ended else "the name of a field was expected here"),
        (value and ended, "a value is missing here"),
        (value, "a value was expected here; put quotes around text with special characters"),
        ("LBRACE" in wanted, "`in` needs a list: {a, b}"),
        (operator, f"`and`, `or` or an operator (==, !=, <, <=, >, >=, {', '.join(KEYWORDS[3:])}) was expected here"),
        (after_number and word in {**TIMES, **SIZES}, "write the unit directly after its number, without a space"),
        ("RBRACE" in wanted, "the list is not closed" if ended else "a comma or } was expected here"),
        ("RPAR" in wanted, "a parenthesis is not closed" if ended else "`and`, `or` or ) was expected here"),
        (True, "`and` or `or` was expected here"),
    )
    what = next(cause for applies, cause in causes if applies)
    return FilterError(what, text, at, max(end, at + 1))


def _accepted(text: str) -> set[str]:
    """Return the tokens accepted after this start of a filter."""
    if not text.strip():
        return {"NAME"}
    try:
        _parser().parse(text)
    except UnexpectedToken as error:
        return set(error.accepts or ())
    except UnexpectedCharacters:
        return set()
    # After a complete term: a name alone may continue
    return {"AND", "OR"} | ({"OPERATOR"} if "WORD" in _accepted(f"{text} ==") else set())


def _node(tree: Any, text: str, depth: int) -> Node:
    if depth > DEPTH_LIMIT:
        while not isinstance(tree, Token):
            tree = tree.children[0]
        raise FilterError(f"more than {DEPTH_LIMIT} nested parentheses or `not`", text, tree.start_pos or 0, tree.end_pos or 0)
    match tree:
        case Tree(data="any_of", children=[only]) | Tree(data="all_of", children=[only]):
            # One in parentheses counts once, by its any_of
            return _node(only, text, depth + (tree.data == "any_of"))
        case Tree(data="any_of", children=terms):
            return Any_(tuple([_node(one, text, depth + 1) for one in terms]))
        case Tree(data="all_of", children=terms):
            return All(tuple([_node(one, text, depth) for one in terms]))
        case Tree(data="negation", children=[term]):
            return Not(_node(term, text, depth + 1))
        case Tree(data="there", children=[name]):
            return Exists(_name(name))
        case Tree(data="compare", children=[name, operator, value]) | Tree(data="search", children=[name, operator, value]):
            return Compare(_name(name), WORDS.get(str(operator), str(operator)), (_value(value, text),))
        case Tree(data="member", children=[name, *values]):
            return Compare(_name(name), "in", tuple([_value(one, text) for one in values]))
    raise AssertionError(tree)


def _name(token: Any) -> Name:
    return Name(parts_of(str(token)), str(token), token.start_pos, token.end_pos)


def parts_of(text: str) -> tuple[str, ...]:
    """Return the parts of a name: `a.b["c.d"]` as a, b, c.d."""
    return tuple(BracketEntry(unquoted(entry)) if entry else word for word, entry in _PARTS.findall(text))


def unquoted(text: str) -> str:
    """Return the text in quotes: a backslash escapes a quote or backslash, `\\u` and `\\U` a code point."""
    return _ESCAPED.sub(lambda found: found[1] or chr(int(found[2] or found[3], 16)), text[1:-1])


def shortened(text: str) -> str:
    """Return a name or value shortened for messages."""
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."


def quoted(text: str) -> str:
    """Return text as a filter needs it: in quotes unless it is a word."""
    if (text.isalnum() or text.isidentifier()) and text not in KEYWORDS:
        return text
    return f'"{_escaped(text.replace(BACKSLASH, 2 * BACKSLASH).replace(QUOTE, BACKSLASH + QUOTE))}"'


def _escaped(text: str) -> str:
    """Return `text` with each character that could act on a terminal as `\\u` and its number."""
    if text.isprintable():
        return text
    return "".join([one if one.isprintable() else f"\\u{ord(one):04x}" if one < "\U00010000" else f"\\U{ord(one):08x}" for one in text])


def printable(expression: str) -> str:
    """Return a filter that means the same and has no character that could act on a terminal."""

    def written(found: re.Match[str]) -> str:
        if found[1] is not None:
            return _escaped(_RAW_ESCAPED.sub(lambda one: f"{2 * BACKSLASH}{one[1]}" if one[1] else one[0], found[1]))
        return (found[2] if found[2].isprintable() else quoted(found[2])) if found[2] else " "

    return expression if expression.isprintable() else _WRITTEN.sub(written, expression)


def _pattern(text: str) -> str:
    """Return the regular expression in quotes: only escapes of the quote and of code points are resolved, all others are its own."""

    def written(found: re.Match[str]) -> str:
        number = found[1] or found[2]
        return f"\\x{{{number}}}" if number else text[0] if found[0][1] == text[0] else found[0]

    return _PATTERN_ESCAPED.sub(written, text[1:-1])


def _value(token: Any, text: str) -> Value:
    word = str(token)
    if token.type == "QUOTED":
        return Value(unquoted(word), _pattern(word), True, token.start_pos, token.end_pos)
    if word in KEYWORDS:
        raise FilterError(f"a value was expected here; put quotes around {word} to use it as text", text, token.start_pos, token.end_pos)
    return Value(word, word, False, token.start_pos, token.end_pos)
