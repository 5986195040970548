"""Whatever function raises an exception, and at whichever of its calls: it costs one conversation, and that is told."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import sys
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

import streamdump.layout
import streamdump.protocols
from streamdump.errors import BARRIER
from tests.support.planting import BATCHES, GOLDEN, Result, check, run

CAPTURES = [path for path in sorted(GOLDEN.rglob("*.pcap*")) if path.suffix != ".jsonl" and path.stat().st_size < 30_000]

ROOMS = [
    "streamdump.tcp.assembler",
    "streamdump.detect",
    "streamdump.pair.doubt",
    "streamdump.pair.exchanges",
    "streamdump.pair.pairer",
    "streamdump.bson",
    "streamdump.conversation.conversation",
]
ROOMS += [
    info.name
    for package in (streamdump.protocols, streamdump.layout)
    for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
]

ERRORS = (ZeroDivisionError, TypeError, AttributeError, AssertionError, MemoryError, RecursionError)
"""None of those that say that bytes cannot be read."""

PASSED_OVER = {
    "streamdump.conversation.conversation": """__init__ _end _gaps _hand_on _settle decide fail feed finish guard
        note parse relieve report row united wake""",
    "streamdump.pair.pairer": "_compacted _forget _is_small compact fail",
    "streamdump.protocols.parser": "bytes_of hand_on unread",
    "streamdump.protocols.records": "count_fault count_gap range_of rfc3339 _second_text",
    "streamdump.tcp.assembler": "__init__",
}
"""What deals with exceptions itself, and what is not about one conversation."""

GOES_ON = ("LengthOnly", "Pool", "Tally")
"""What there is where reassembly has failed, and for all conversations."""


def left_out(module: str, owner: str, name: str) -> bool:
    return owner in GOES_ON or name in PASSED_OVER.get(module, "").split()


class Function:
    """A function of one of the rooms, and where it is known."""

    def __init__(self, owner: Any, name: str, raw: Any) -> None:
        self.raw = raw
        self.name = f"{owner.__name__}.{name}"
        self.function: Any = raw.__func__ if isinstance(raw, classmethod | staticmethod) else raw
        self.places = [(owner, name)]
        if isinstance(owner, ModuleType):
            modules = [one for key, one in sys.modules.items() if key.startswith("streamdump.") and one is not owner]
            self.places += [(one, key) for one in modules for key, value in vars(one).items() if value is raw]

    def __repr__(self) -> str:
        return self.name

    @property
    def code(self) -> CodeType:
        code: CodeType = inspect.unwrap(self.function).__code__
        return code

    def replacement(self, made: Any) -> Any:
        return type(self.raw)(made) if isinstance(self.raw, classmethod | staticmethod) else made


@cache
def functions() -> list[Function]:
    found = []
    for name in ROOMS:
        module = importlib.import_module(name)
        for key, one in list(vars(module).items()):
            if getattr(one, "__module__", None) != name:
                continue
            if isinstance(one, FunctionType):
                if not left_out(name, "", key):
                    found.append(Function(module, key, one))
            elif isinstance(one, type):
                for member, raw in list(vars(one).items()):
                    plain = isinstance(raw, FunctionType | classmethod | staticmethod) and (member == "__init__" or member[:2] != "__")
                    if plain and not left_out(name, one.__name__, member):
                        found.append(Function(one, member, raw))
    return found


@cache
def called(path: Path) -> tuple[bytes, Result, list[tuple[Function, int]]]:
    """A capture, what it says, and how often each function is called for it."""
    data, counts = path.read_bytes(), dict[CodeType, int]()

    def count(frame: Any, event: str, _: Any) -> None:
        if event == "call":
            counts[frame.f_code] = counts.get(frame.f_code, 0) + 1

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        run(data, 7)
    finally:
        sys.setprofile(before)
    result = run(data)
    return data, result, [(one, counts[one.code]) for one in functions() if one.code in counts]


class Planted:
    """While it is entered a function raises at one of its calls."""

    def __init__(self, function: Function, call: int, error: type[Exception]) -> None:
        self.function = function
        self.call = call
        self.error = error
        self.calls = 0
        self._patch = pytest.MonkeyPatch()

    def __enter__(self) -> Planted:
        original = self.function.function

        def step() -> None:
            self.calls += 1
            if self.calls == self.call:
                raise self.error

        if inspect.isgeneratorfunction(original):

            def planted(*given: Any, **named: Any) -> Any:
                step()
                yield from original(*given, **named)
        else:

            def planted(*given: Any, **named: Any) -> Any:
                step()
                return original(*given, **named)

        for owner, name in self.function.places:
            self._patch.setattr(owner, name, self.function.replacement(planted))
        self._patch.delenv(BARRIER)
        return self

    def __exit__(self, *_: object) -> None:
        self._patch.undo()


@pytest.mark.sweep
@hypothesis.settings(max_examples=max(500, hypothesis.settings().max_examples))
@given(data=st.data())
def test_an_exception_anywhere_costs_one_conversation(data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(CAPTURES))
    capture, before, known = called(path)
    function, calls = data.draw(st.sampled_from(known))
    call = data.draw(st.integers(1, calls) | st.integers(1, min(calls, 8)))
    error, rows = data.draw(st.sampled_from(ERRORS)), data.draw(st.sampled_from(BATCHES))
    with Planted(function, call, error) as planted:
        result = run(capture, rows)
    assert len(result.reports) == (planted.calls >= call)
    assert all(report.what.split()[0] == error.__name__ for report in result.reports)
    assert not any("nothing was read" in report.cost for report in result.reports)
    check(result, before)


def test_most_of_what_is_called_is_tried() -> None:
    tried = {function.name for path in CAPTURES[::10] for function, _ in called(path)[2]}
    assert len(tried) > 300
