"""Serialises a graph of objects, so that another process can continue with it.

Sharing and cycles are preserved. The format is data only: reading it calls nothing but `prepare` of the classes below, so bytes of unknown
origin do no harm. It is not for other programs or other versions of this one: classes must have the same members as when it was written.

    [FORMAT, digest, msgpack of [classes, nodes]]

The root is node 0. A value inside a node is a scalar or a list: `[n]` is node n, `[kind, ...]` an object that the reader provides, that has
a name, or that msgpack lacks. Supported are the containers below, and named tuples, msgspec structs and other classes of the packages in
`PACKAGES`. All members are written except those in `DERIVED`, which the method `prepare` computes from the others. Functions, constants
and enumeration members of these packages are written by name. Of options and keys, which the reader provides, only the class is written.
"""

from __future__ import annotations

import re
import sys
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Collection, Iterator
from enum import Enum
from types import FunctionType
from typing import Any, NamedTuple

import msgspec

from .errors import ForeignState
from .model import Options
from .tls.keys import KeyLog

FORMAT = 11
"""Increase it when members change their meaning; reading detects added, removed and renamed members by itself."""

PACKAGES: tuple[str, ...] = (
    "bson",
    "conversation",
    "detect",
    "diagnose.network",
    "diagnose.rules",
    "entries",
    "errors",
    "layers",
    "layout",
    "model",
    "pair",
    "protocols",
    "quota",
    "tcp",
    "tls",
)
"""Packages whose classes can be written."""

GIVEN = (Options, KeyLog)

LIST, TUPLE, DICT, SET, FROZENSET, DEQUE, ORDERED_DICT, COUNTER, BYTEARRAY, BYTES, OBJECT = range(11)
_KINDS: dict[type, int] = {
    list: LIST,
    tuple: TUPLE,
    dict: DICT,
    set: SET,
    frozenset: FROZENSET,
    deque: DEQUE,
    OrderedDict: ORDERED_DICT,
    Counter: COUNTER,
    bytearray: BYTEARRAY,
    bytes: BYTES,
}
_MAKERS: dict[int, Callable[[], Any]] = {
    LIST: list,
    DICT: dict,
    SET: set,
    DEQUE: deque,
    ORDERED_DICT: OrderedDict,
    COUNTER: Counter,
}

SHARED_BYTES = 64
"""From this size on bytes are written once, even if several objects refer to them."""

_SCALARS = frozenset((type(None), bool, float))
_FLAT = frozenset((type(None), bool, float, int))
_SURROGATE = re.compile("[\ud800-\udfff]")
"""Characters that msgpack cannot encode."""

_LOWEST, _HIGHEST = -(1 << 63), (1 << 64) - 1

_GIVEN, _NAMED, _INTEGER, _TEXT = "given", "named", "integer", "text"

_PACKAGE = f"{__name__.rpartition('.')[0]}."

_PENDING = object()

_WRONG = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""Exceptions caused by values of unexpected types."""


class _Class(NamedTuple):
    """How objects of a class are written: common members, members left out, and its constants by identity."""

    members: tuple[str, ...]
    derived: frozenset[str]
    constants: dict[int, str]


_classes: dict[type, _Class] = {}


def encode(root: Any, leave_empty: Collection[int] = ()) -> bytes:
    """Return the graph of objects that `root` refers to. `leave_empty`: identities of dictionaries whose values are not needed."""
    writer = _Writer(leave_empty)
    writer.refer(root)
    # `objects` grows while its nodes are made; no recursion
    nodes = [writer.node(one) for one in writer.objects]
    body = msgspec.msgpack.encode([writer.classes, nodes])
    return msgspec.msgpack.encode([FORMAT, _digest(body), body])


def decode(data: bytes, *given: Any) -> Any:
    """Return the root of the graph that `encode` wrote; `given` replaces objects of the same classes. Raises `ForeignState`."""
    try:
        outer = msgspec.msgpack.decode(data)
    except (msgspec.MsgspecError, *_WRONG) as error:
        raise ForeignState("it cannot be read") from error
    if type(outer) is not list or not outer or type(outer[0]) is not int:
        raise ForeignState("it cannot be read")
    if outer[0] != FORMAT:
        raise ForeignState(f"its format is {outer[0]}, not {FORMAT}")
    if len(outer) != 3 or type(outer[2]) is not bytes or outer[1] != _digest(outer[2]):
        raise ForeignState("it is damaged")
    try:
        return _GraphReader(msgspec.msgpack.decode(outer[2], type=tuple[list[Any], list[list[Any]]]), given).root()
    except (msgspec.MsgspecError, *_WRONG) as error:
        raise ForeignState(f"{type(error).__name__}: {error}") from error


def _digest(body: bytes) -> bytes:
    from hashlib import blake2b

    return blake2b(body, digest_size=16).digest()


def _of_package(module: str, name: str) -> Any:
    """Return the object of this name in a module of a package."""
    inside = module.removeprefix(_PACKAGE)
    if not module.startswith(_PACKAGE) or not any(f"{inside}.".startswith(f"{one}.") for one in PACKAGES) or module not in sys.modules:
        raise TypeError(f"there is no module {module} whose objects are written")
    return vars(sys.modules[module]).get(name)


def _named(one: Any) -> list[Any]:
    """Return module and name of a class or function, which must identify it."""
    if _of_package(one.__module__, one.__qualname__) is not one:
        raise TypeError(f"{one.__module__}.{one.__qualname__} is nothing that has a name in its module")
    return [one.__module__, one.__qualname__]


def _class(kind: type) -> _Class:
    """Return how objects of this class are written; raises TypeError if they cannot be."""
    found = _classes.get(kind)
    if found is None:
        _named(kind)
        struct, named_tuple = issubclass(kind, msgspec.Struct), issubclass(kind, tuple) and hasattr(kind, "_fields")
        if kind in GIVEN or issubclass(kind, Enum) or (struct and kind.__struct_config__.frozen):  # type: ignore[attr-defined]
            raise TypeError(f"a {kind.__qualname__} cannot be written")
        slots = tuple(sorted(one for base in kind.__mro__ for one in vars(base).get("__slots__", ())))
        members = kind.__struct_fields__ if struct else kind._fields if named_tuple else slots  # type: ignore[attr-defined]
        derived = frozenset(one for base in kind.__mro__ for one in vars(base).get("DERIVED", ()))
        constants = {id(value): name for name, value in vars(sys.modules[kind.__module__]).items() if type(value) is kind}
        found = _classes[kind] = _Class(tuple([one for one in members if one not in derived]), derived, constants)
    return found


class _Writer:
    """Makes nodes of objects."""

    def __init__(self, leave_empty: Collection[int]) -> None:
        self.objects: list[Any] = []
        self.classes: list[tuple[str, str, tuple[str, ...]]] = []
        self._leave_empty = leave_empty
        self._index: dict[int, int] = {}
        self._class_index: dict[tuple[type, tuple[str, ...]], int] = {}

    def refer(self, one: Any) -> list[Any]:
        """Return a reference to an object, whose node is made later."""
        index = self._index.setdefault(id(one), len(self.objects))
        if index == len(self.objects):
            self.objects.append(one)
        return [index]

    def values(self, some: Collection[Any]) -> Iterator[Any]:
        for one in some:
            kind = type(one)
            if kind is str:
                yield one if one.isascii() or not _SURROGATE.search(one) else [_TEXT, one.encode("utf-8", "surrogatepass")]
            elif kind is int:
                yield one if _LOWEST <= one <= _HIGHEST else [_INTEGER, hex(one)]
            elif kind in _SCALARS or (kind is bytes and len(one) < SHARED_BYTES):
                yield one
            elif kind in _KINDS:
                yield self.refer(one)
            elif kind in GIVEN:
                yield [_GIVEN, kind.__name__]
            elif kind is FunctionType:
                yield [_NAMED, *_named(one)]
            elif isinstance(one, Enum):
                yield [_NAMED, *_named(kind), one.name]
            else:
                constant = _class(kind).constants.get(id(one))
                yield self.refer(one) if constant is None else [_NAMED, kind.__module__, constant]

    def node(self, one: Any) -> list[Any]:
        kind = _KINDS.get(type(one))
        if kind is None:
            return self._object(one)
        if kind in (BYTEARRAY, BYTES):
            return [kind, bytes(one)]
        if isinstance(one, dict):
            if id(one) in self._leave_empty:
                return [kind]
            one = _flat(one)
        elif kind == DEQUE and one.maxlen is not None:
            raise TypeError("a deque with a limit cannot be written")
        elif _FLAT.issuperset(map(type, one)):
            # Columns of numbers are most of the data
            numbers = [value for value in one if type(value) is int]
            if not numbers or (min(numbers) >= _LOWEST and max(numbers) <= _HIGHEST):
                return [kind, *one]
        return [kind, *self.values(one)]

    def _object(self, one: Any) -> list[Any]:
        kind = type(one)
        members, derived, _ = _class(kind)
        members += tuple([name for name in getattr(one, "__dict__", ()) if name not in derived])
        index = self._class_index.setdefault((kind, members), len(self.classes))
        if index == len(self.classes):
            self.classes.append((kind.__module__, kind.__qualname__, members))
        if isinstance(one, tuple):
            return [OBJECT, index, *self.values(one)]
        inside: Collection[Any] = _flat(one) if isinstance(one, dict) else one if isinstance(one, list) else ()
        return [OBJECT, index, *self.values([getattr(one, name) for name in members]), *self.values(inside)]


def _flat(one: dict[Any, Any]) -> list[Any]:
    return [part for pair in one.items() for part in pair]


class _GraphReader:
    """Makes objects of nodes: first the ones that can be created empty, then immutable ones; then it fills the former."""

    def __init__(self, written: tuple[list[Any], list[list[Any]]], given: Collection[Any]) -> None:
        classes, self._nodes = written
        self._given = {type(one).__name__: one for one in given}
        self._classes = [_known(*one) for one in classes]
        self._objects: list[Any] = []

    def root(self) -> Any:
        objects = self._objects
        immutable: list[int] = []
        for index, node in enumerate(self._nodes):
            objects.append(self._empty(node))
            if objects[-1] is _PENDING:
                immutable.append(index)
        # Inner objects mostly have higher indexes
        for index in reversed(immutable):
            self._make_immutable(index)
        prepared = []
        for one, node in zip(objects, self._nodes, strict=True):
            if node[0] != OBJECT:
                if node[0] in _MAKERS:
                    _fill(one, node[1:] if _FLAT.issuperset(map(type, node[1:])) else self._values(node[1:]))
            elif not isinstance(one, tuple):
                cls, members = self._classes[node[1]]
                values = self._values(node[2:])
                for name, value in zip(members, values, strict=False):
                    setattr(one, name, value)
                if len(values) > len(members):
                    _fill(one, values[len(members) :])
                if hasattr(cls, "prepare"):
                    prepared.append(one)
        for one in prepared:
            one.prepare()
        return objects[0]

    def _empty(self, node: list[Any]) -> Any:
        """Return an object without its contents, or `_PENDING` for a tuple or frozen set."""
        kind = node[0]
        maker = _MAKERS.get(kind)
        if maker is not None:
            return maker()
        if kind in (BYTES, BYTEARRAY) and len(node) == 2 and type(node[1]) is bytes:
            return node[1] if kind == BYTES else bytearray(node[1])
        if kind == OBJECT:
            cls, members = self._classes[node[1]]
            if len(node) < 2 + len(members) or (len(node) > 2 + len(members) and not issubclass(cls, dict | list)):
                raise ValueError(f"{len(node) - 2} values for {len(members)} members of {cls.__name__}")
            if not issubclass(cls, tuple):
                return cls(*[None] * len(members)) if issubclass(cls, msgspec.Struct) else cls.__new__(cls)
        elif kind not in (TUPLE, FROZENSET):
            raise ValueError(f"no kind of node: {kind!r}")
        return _PENDING

    def _make_immutable(self, index: int) -> None:
        """Make a tuple or frozen set, after those inside it."""
        objects, nodes = self._objects, self._nodes
        waiting = [index]
        opened: set[int] = set()
        while waiting:
            index = waiting[-1]
            if objects[index] is not _PENDING:
                waiting.pop()
                continue
            node = nodes[index]
            inner = [one[0] for one in node if type(one) is list and type(one[0]) is int and objects[one[0]] is _PENDING]
            if not inner:
                if node[0] == OBJECT:
                    objects[index] = tuple.__new__(self._classes[node[1]][0], self._values(node[2:]))
                else:
                    values = self._values(node[1:])
                    objects[index] = tuple(values) if node[0] == TUPLE else frozenset(values)
                waiting.pop()
            elif index in opened:
                raise ValueError("a tuple inside itself")
            else:
                opened.add(index)
                waiting += inner

    def _values(self, written: list[Any]) -> list[Any]:
        objects = self._objects
        return [
            one if type(one) is not list else objects[one[0]] if type(one[0]) is int and one[0] >= 0 else self._tagged(*one)
            for one in written
        ]

    def _tagged(self, what: str, *values: Any) -> Any:
        if what == _GIVEN:
            return self._given[values[0]]
        if what == _NAMED:
            return _by_name(*values)
        if what == _INTEGER:
            return int(values[0], 16)
        if what == _TEXT:
            return values[0].decode("utf-8", "surrogatepass")
        raise ValueError(f"no kind of value: {what!r}")


def _fill(one: Any, values: list[Any]) -> None:
    """Fill a container."""
    if isinstance(one, dict):
        one.update(zip(values[::2], values[1::2], strict=True))
    elif isinstance(one, set):
        one.update(values)
    else:
        one.extend(values)


def _known(module: str, name: str, members: list[str]) -> tuple[Any, list[str]]:
    kind = _of_package(module, name)
    if not isinstance(kind, type) or kind.__module__ != module:
        raise ForeignState(f"{module}.{name} is no class")
    found, values = _class(kind), tuple(members)
    free = kind.__dictoffset__ and not found.derived.intersection(values)
    if values[: len(found.members)] != found.members or not (free or values == found.members):
        raise ForeignState(f"{name} has other members now")
    return kind, members


def _by_name(module: str, name: str, member: str | None = None) -> Any:
    found = _of_package(module, name)
    if member is not None:
        if not (isinstance(found, type) and issubclass(found, Enum) and found.__module__ == module):
            raise ForeignState(f"{module}.{name} is no enumeration")
        return found[member]
    if not (found.__module__ == module if type(found) is FunctionType else type(found).__module__ == module):
        raise ForeignState(f"{module}.{name} is no function or constant")
    return found
