"""The state of open conversations as bytes: everything comes back as it was, and nothing but state comes back at all."""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields
from enum import Enum
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamdump import snapshot
from streamdump.bson import Special
from streamdump.errors import ForeignState
from streamdump.model import Options, SideData, StreamGap
from streamdump.pair.open_requests import RequestBatch
from streamdump.protocols.iggy.candidates import PendingRequest
from streamdump.protocols.rabbitmq.dissector import Phase, StreamDissector
from streamdump.protocols.seastar.info import paired
from streamdump.protocols.seastar.terms import UNKNOWN, NegotiatedTerms
from streamdump.session import Session
from streamdump.tcp.assembler import Pool, SideCounts
from streamdump.tls.keys import KeyLog
from tests.spark.lots import first_state

GOLDEN = Path(__file__).parents[2] / "captures" / "golden"
OPTIONS = Options(show_secrets=True, waiting_limit=77)


def again(root: Any) -> Any:
    return snapshot.decode(snapshot.encode(root), OPTIONS)


def same(one: Any, two: Any) -> None:
    """Fails unless both graphs are alike: classes, values, and what is one object in the one is one in the other."""
    known: dict[int, Any] = {}
    back: dict[int, Any] = {}
    waiting = [(one, two)]
    while waiting:
        one, two = waiting.pop()
        assert type(one) is type(two)
        if isinstance(one, float) and math.isnan(one):
            assert math.isnan(two)
        elif isinstance(one, int | float | str | type(None)) or (isinstance(one, bytes) and len(one) < snapshot.SHARED_BYTES):
            assert one == two
        elif id(one) in known:
            assert known[id(one)] is two
        elif one != ():
            assert id(two) not in back
            known[id(one)], back[id(two)] = two, one
            parts, others = parted(one), parted(two)
            assert len(parts) == len(others)
            waiting += zip(parts, others, strict=True)


def parted(one: Any) -> list[Any]:
    if isinstance(one, bytes | bytearray):
        return list(one)
    if isinstance(one, dict):
        return [*one.keys(), *one.values()]
    if isinstance(one, set | frozenset):
        return sorted(one)
    if isinstance(one, msgspec.Struct):
        return [getattr(one, name) for name in one.__struct_fields__]
    if isinstance(one, RequestBatch):
        return [one.asked, one.left, one.refused]
    if isinstance(one, Pool):
        return [one._queue, one.total, one.count, one._tickets]
    assert isinstance(one, list | tuple | deque)
    return list(one)


def pool(parts: list[Any]) -> Pool:
    made = Pool(OPTIONS)
    made._queue = parts  # type: ignore[assignment]
    return made


def batch(parts: list[Any]) -> RequestBatch:
    made = RequestBatch(None, 1)  # type: ignore[arg-type]
    made.asked, made.left = parts  # type: ignore[assignment]
    return made


MUTABLE: list[Callable[[], Any]] = [list, dict, deque, OrderedDict, Special, lambda: pool([]), lambda: batch([None, 1])]

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(1 << 70), 1 << 70)
    | st.floats()
    | st.text(st.characters())
    | st.binary(max_size=100)
)


@st.composite
def graphs(draw: st.DrawFn) -> Any:
    """A graph of all kinds of objects, with parts in common and cycles through those that can be changed."""
    objects: list[Any] = []
    for _ in range(draw(st.integers(1, 12))):
        at = draw(st.integers(0, len(MUTABLE) + 5))
        if at < len(MUTABLE):
            objects.append(MUTABLE[at]())
            continue
        parts = draw(st.lists(st.sampled_from(objects) | scalars if objects else scalars, max_size=5))
        made: list[Callable[[], Any]] = [
            lambda parts=parts: tuple(parts),
            lambda parts=parts: PendingRequest._make((parts * 7 + [None] * 7)[:7]),
            lambda: frozenset(draw(st.sets(st.integers(), max_size=5))),
            lambda: bytearray(draw(st.binary())),
            lambda: draw(st.binary(min_size=snapshot.SHARED_BYTES)),
            lambda parts=parts: StreamGap(*(parts * 8 + [None] * 8)[:8]),
        ]
        objects.append(made[at - len(MUTABLE)]())
    for one in objects:
        parts = draw(st.lists(st.sampled_from(objects) | scalars, max_size=5))
        if isinstance(one, list | deque):
            one.extend(parts)
        elif isinstance(one, dict):
            one.update(zip(draw(st.lists(st.text() | st.integers(), unique=True, min_size=5, max_size=5)), parts, strict=False))
        elif isinstance(one, Pool):
            one._queue = parts  # type: ignore[assignment]
        elif isinstance(one, RequestBatch) and len(parts) > 1:
            one.asked, one.left = parts[:2]
    return objects


@given(graphs())
def test_graphs_come_back_as_they_were(root: Any) -> None:
    same(root, again(root))


def test_what_is_one_object_stays_one() -> None:
    data = SideData(0, 0, b"abc", (1, 2, 0, 7))
    found = again([data, data])
    assert found[0] is found[1]
    assert found[0] == data


def test_a_cycle_through_a_tuple() -> None:
    root: list[Any] = []
    root.append((root, [root]))
    found = again(root)
    assert found[0][0] is found
    assert found[0][1][0] is found


@pytest.mark.parametrize("kind", [list, tuple])
def test_any_depth(kind: Any) -> None:
    root: Any = kind()
    for _ in range(20_000):
        root = kind((root,))
    found = again(root)
    depth = 0
    while found:
        (found,) = found
        depth += 1
    assert depth == 20_000


def test_numbers_and_texts_beyond_msgpack() -> None:
    values = [1 << 64, (1 << 64) - 1, -(1 << 63), -(1 << 63) - 1, True, 1, 1.0, "\ud800", "\u00e9", [1 << 64], [None, True, 2.5, 1]]
    found = again(values)
    assert found == values
    assert [type(one) for one in found] == [type(one) for one in values]


def test_what_has_a_name_is_the_thing_itself() -> None:
    found = again([paired, Phase.TUNED, UNKNOWN, NegotiatedTerms((), (), (), ())])
    assert found[0] is paired
    assert found[1] is Phase.TUNED
    assert found[2] is UNKNOWN
    assert found[3] == NegotiatedTerms((), (), (), ())


def test_options_are_those_of_the_reader() -> None:
    assert again([Options()])[0] is OPTIONS


def test_what_is_derived_is_made_anew() -> None:
    before = Pool(Options(waiting_limit=1))
    before.total = 5
    found = again(before)
    assert (found.total, found.limit) == (5, 77)


def test_dictionaries_nobody_needs_are_left_empty() -> None:
    needless, other = {"a": [1]}, {"a": [1]}
    assert snapshot.decode(snapshot.encode([needless, other], {id(needless)}), OPTIONS) == [{}, other]


class Foreign:
    __slots__ = ()


class ForeignTuple(NamedTuple):
    one: int


class ForeignEnum(Enum):
    ONE = 1


def foreign() -> None:
    """A function of another package."""


def local() -> Any:
    def inner() -> None:
        """A function without a name of its own in its module."""

    inner.__module__ = paired.__module__
    return inner


@pytest.mark.parametrize(
    "wrong",
    [Foreign(), ForeignTuple(1), ForeignEnum.ONE, foreign, lambda: None, local(), object(), iter(()), OPTIONS.__class__, range(3)],
)
def test_anything_else_cannot_be_written(wrong: Any) -> None:
    with pytest.raises(TypeError):
        snapshot.encode([wrong])


def test_what_would_come_back_otherwise_cannot_be_written() -> None:
    for wrong in (deque([1], 5), StreamDissector):
        with pytest.raises(TypeError):
            snapshot.encode([wrong])


def forged(classes: Any, nodes: Any) -> bytes:
    body = msgspec.msgpack.encode([classes, nodes])
    return msgspec.msgpack.encode([snapshot.FORMAT, blake2b(body, digest_size=16).digest(), body])


SIDE = [SideCounts.__module__, "Side", sorted(SideCounts.__slots__)]


@pytest.mark.parametrize(
    ("classes", "nodes"),
    [
        ([], []),
        ([], [[]]),
        ([], [[99]]),
        ([], [[[1]]]),
        ([], [[snapshot.LIST, [1]]]),
        ([], [[snapshot.LIST, [-1]]]),
        ([], [[snapshot.LIST, []]]),
        ([], [[snapshot.LIST, ["what", 1]]]),
        ([], [[snapshot.LIST, ["integer", "x"]]]),
        ([], [[snapshot.DICT, 1]]),
        ([], [[snapshot.DICT, [0], 1]]),
        ([], [[snapshot.TUPLE, [1]], [snapshot.TUPLE, [0]]]),
        ([], [[snapshot.TUPLE, [0]]]),
        ([], [[snapshot.BYTES, 1]]),
        ([], [[snapshot.OBJECT, 0]]),
        ([SIDE], [[snapshot.OBJECT, 0, 1]]),
        ([[*SIDE[:2], [*SIDE[2], "more"]]], []),
        ([[SIDE[0], "Gone", []]], []),
        ([["streamdump.gone", "Side", []]], []),
        ([["subprocess", "Popen", ["args"]]], [[snapshot.OBJECT, 0, "true"]]),
        ([["streamdump.capture.live", "Any", []]], []),
        ([["streamdump.snapshot", "FunctionType", []]], []),
        ([["streamdump.model", "Options", [one.name for one in fields(Options)]]], []),
        ([["streamdump.inspector", "Inspector", []]], [[snapshot.OBJECT, 0]]),
        ([["streamdump.tcp.assembler", "Pool", ["total"]]], [[snapshot.OBJECT, 0, 1]]),
        ([["streamdump.pair.pairer", "Pairer", []]], [[snapshot.OBJECT, 0]]),
        ([], [[snapshot.LIST, ["named", "os", "system"]]]),
        ([], [[snapshot.LIST, ["named", "streamdump.snapshot", "sys"]]]),
        ([], [[snapshot.LIST, ["named", "streamdump.snapshot", "blake2b"]]]),
        ([], [[snapshot.LIST, ["named", "streamdump.snapshot", "msgspec", "x"]]]),
        ([], [[snapshot.LIST, ["named", "streamdump.protocols.rabbitmq.dissector", "Phase", "GONE"]]]),
        ([], [[snapshot.LIST, ["named", 1, 2]]]),
        ([1], []),
        ([[1, 2, 3]], []),
        (1, 2),
    ],
)
def test_what_no_writer_of_this_version_wrote(classes: Any, nodes: Any) -> None:
    with pytest.raises(ForeignState, match="another version of streamdump"):
        snapshot.decode(forged(classes, nodes), OPTIONS)


def test_another_format() -> None:
    data = msgspec.msgpack.encode([snapshot.FORMAT + 1, b"", b""])
    with pytest.raises(ForeignState, match=f"its format is {snapshot.FORMAT + 1}, not {snapshot.FORMAT}"):
        snapshot.decode(data, OPTIONS)


def test_the_state_of_something_else() -> None:
    with pytest.raises(ForeignState, match="something else"):
        Session.restore(snapshot.encode([]), OPTIONS, KeyLog())


@pytest.fixture(scope="module")
def real() -> bytes:
    return first_state(GOLDEN / "seastar-rpc" / "inflight.pcap", 40)


@given(st.data())
def test_damaged_bytes(real: bytes, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(real) - 1))
    damaged = bytearray(real)
    damaged[at] ^= data.draw(st.integers(1, 255))
    for wrong in (bytes(damaged), real[:at], real[at + 1 :], real + b"\0"):
        with pytest.raises(ForeignState):
            Session.restore(wrong, OPTIONS, KeyLog())


@given(st.binary(max_size=50))
def test_any_bytes(data: bytes) -> None:
    with pytest.raises(ForeignState):
        snapshot.decode(data, OPTIONS)


@given(st.data())
def test_altered_nodes_are_refused_or_read(real: bytes, data: st.DataObject) -> None:
    classes, nodes = msgspec.msgpack.decode(msgspec.msgpack.decode(real)[2])
    for _ in range(data.draw(st.integers(1, 3))):
        node = nodes[data.draw(st.integers(0, len(nodes) - 1))]
        if node:
            at = data.draw(st.integers(0, len(node) - 1))
            node[at] = data.draw(scalars_of_msgpack | st.tuples(st.integers(-2, len(nodes))) | st.just(["given", "Options"]))
    with suppress(ForeignState):
        snapshot.decode(forged(classes, nodes), OPTIONS)


scalars_of_msgpack = st.none() | st.booleans() | st.integers(-2, 12) | st.floats() | st.text(max_size=5) | st.binary(max_size=5)
