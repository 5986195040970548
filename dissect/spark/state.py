"""What is known of open conversations as bytes, from which another process goes on.

The whole graph of objects is written as it is, sharing and cycles included, in a form that is data only: reading it runs nothing but
the constructors of classes of this package that say so, so a file that anybody could have written does no harm. It is no format for
other programs, nor for other versions of this one: what the classes look like now has to be what they looked like then.

    [FORMAT, digest, msgpack of [classes, nodes]]

The root is node 0. A value inside a node is a scalar, or else a list: `[n]` is node n, `[what, ...]` something that is named or that
msgpack lacks. Objects of these kinds can be written: the containers below, named tuples, msgspec structs, dictionaries
of another class, classes with `__slots__`, and classes that say how they are made:

- `MADE_OF`: the members that their `__init__` takes, by which they are made again (`options` is what the reader is given);
- `DERIVED`: members that are not written, because `__init__` makes them; all others are laid over what it made;
- `resume()`, if there is one, is called afterwards, for what follows from both.

Members that are functions or constants of a module of this package, and members of its enumerations, are written by name.
"""

from __future__ import annotations

import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterator
from enum import Enum
from hashlib import blake2b
from types import FunctionType
from typing import Any, NamedTuple

import msgspec

from dissect.errors import ForeignState
from dissect.model import Options

FORMAT = 4
"""Changes with every change of what is written that reading does not find out by itself: what members mean, not which there are."""

LIST, TUPLE, DICT, SET, FROZENSET, DEQUE, ORDERED_DICT, BYTEARRAY, BYTES, OBJECT = range(10)
_KINDS: dict[type, int] = {
    list: LIST,
    tuple: TUPLE,
    dict: DICT,
    set: SET,
    frozenset: FROZENSET,
    deque: DEQUE,
    OrderedDict: ORDERED_DICT,
    bytearray: BYTEARRAY,
    bytes: BYTES,
}
_MAKERS: dict[int, Callable[[], Any]] = {LIST: list, DICT: dict, SET: set, DEQUE: deque, ORDERED_DICT: OrderedDict}
_FILLERS: dict[int, Callable[[Any, list[Any]], None]] = {
    LIST: list.extend,
    SET: set.update,
    DEQUE: deque.extend,
    DICT: lambda made, values: made.update(zip(values[::2], values[1::2], strict=True)),
    ORDERED_DICT: lambda made, values: made.update(zip(values[::2], values[1::2], strict=True)),
}

SHARED_BYTES = 64
"""From this size on bytes are written once, however many refer to them."""

_SCALARS = frozenset((type(None), bool, float))
_FLAT = frozenset((type(None), bool, float, int))
_LOWEST, _HIGHEST = -(1 << 63), (1 << 64) - 1

_OPTIONS, _NAMED, _INTEGER, _TEXT = "options", "named", "integer", "text"

_PACKAGE = f"{__name__.partition('.')[0]}."

_PENDING = object()

_STRUCT, _NAMED_TUPLE, _SLOTS, _MADE, _MAPPING = range(5)

_WRONG = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What values of unexpected types raise where they are used."""


class _Class(NamedTuple):
    """How objects of a class are written: its sort, the members that are, and its constants by identity."""

    sort: int
    members: tuple[str, ...]
    made_of: tuple[str, ...]
    derived: frozenset[str]
    constants: dict[int, str]


_classes: dict[type, _Class] = {}


def encode(root: Any, leave_empty: Collection[int] = ()) -> bytes:
    """The graph of objects that `root` refers to. `leave_empty`: identities of dictionaries whose values nobody will need."""
    writer = _Writer(leave_empty)
    writer.refer(root)
    # `objects` grows while its nodes are made, however deep they lie in each other
    nodes = [writer.node(one) for one in writer.objects]
    body = msgspec.msgpack.encode([writer.classes, nodes])
    return msgspec.msgpack.encode([FORMAT, _digest(body), body])


def decode(data: bytes, options: Options) -> Any:
    """The root of the graph that `encode` wrote; `options` take the place of those at that time. Raises `ForeignState`."""
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
        return _Reader(msgspec.msgpack.decode(outer[2], type=tuple[list[Any], list[list[Any]]]), options).root()
    except (msgspec.MsgspecError, *_WRONG) as error:
        raise ForeignState(f"{type(error).__name__}: {error}") from error


def _digest(body: bytes) -> bytes:
    return blake2b(body, digest_size=16).digest()


def _class(kind: type) -> _Class:
    """How objects of this class are written; TypeError where they cannot be."""
    found = _classes.get(kind)
    if found is None:
        found = _classes[kind] = _look(kind)
    return found


def _look(kind: type) -> _Class:
    module = sys.modules.get(kind.__module__)
    name = kind.__qualname__
    if not kind.__module__.startswith(_PACKAGE) or getattr(module, name, None) is not kind:
        raise TypeError(f"{kind.__module__}.{name} is no class of a module of this package")
    constants = {id(value): key for key, value in vars(module).items() if type(value) is kind}
    if issubclass(kind, msgspec.Struct) and not kind.__struct_config__.frozen:
        return _Class(_STRUCT, kind.__struct_fields__, (), frozenset(), constants)
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return _Class(_NAMED_TUPLE, kind._fields, (), frozenset(), constants)
    if issubclass(kind, dict):
        return _Class(_MAPPING, (), (), frozenset(), constants)
    slots = tuple(sorted(one for base in kind.__mro__ for one in vars(base).get("__slots__", ())))
    if hasattr(kind, "MADE_OF"):
        derived = frozenset(one for base in kind.__mro__ for one in vars(base).get("DERIVED", ()))
        return _Class(_MADE, slots, kind.MADE_OF, derived, constants)
    if not kind.__dictoffset__ and kind.__mro__[-1] is object:
        return _Class(_SLOTS, slots, (), frozenset(), constants)
    raise TypeError(f"{kind.__module__}.{name} does not say what it is made of")


class _Writer:
    """Makes nodes of objects."""

    def __init__(self, leave_empty: Collection[int]) -> None:
        self.objects: list[Any] = []
        self.classes: list[tuple[str, str, tuple[str, ...]]] = []
        self._leave_empty = leave_empty
        self._index: dict[int, int] = {}
        self._class_index: dict[tuple[type, tuple[str, ...]], int] = {}

    def refer(self, one: Any) -> list[Any]:
        """A reference to an object, which gets its node later."""
        index = self._index.get(id(one))
        if index is None:
            index = self._index[id(one)] = len(self.objects)
            self.objects.append(one)
        return [index]

    def values(self, some: Collection[Any]) -> Iterator[Any]:
        for one in some:
            kind = type(one)
            if kind is str:
                yield one if one.isascii() or _encodable(one) else [_TEXT, one.encode("utf-8", "surrogatepass")]
            elif kind is int:
                yield one if _LOWEST <= one <= _HIGHEST else [_INTEGER, hex(one)]
            elif kind in _SCALARS or (kind is bytes and len(one) < SHARED_BYTES):
                yield one
            elif kind in _KINDS:
                yield self.refer(one)
            elif kind is Options:
                yield [_OPTIONS, None]
            elif kind is FunctionType:
                yield [_NAMED, one.__module__, _name_of_function(one)]
            elif isinstance(one, Enum):
                _class_of_enum(kind)
                yield [_NAMED, kind.__module__, kind.__qualname__, one.name]
            else:
                constant = _class(kind).constants.get(id(one))
                yield self.refer(one) if constant is None else [_NAMED, kind.__module__, constant]

    def node(self, one: Any) -> list[Any]:
        kind = _KINDS.get(type(one))
        if kind is None:
            return self._object(one)
        if kind in (BYTEARRAY, BYTES):
            return [kind, bytes(one)]
        if kind in (DICT, ORDERED_DICT):
            if id(one) in self._leave_empty:
                return [kind]
            one = [part for pair in one.items() for part in pair]
        elif kind == DEQUE and one.maxlen is not None:
            raise TypeError("a deque with a limit cannot be written")
        elif _FLAT.issuperset(map(type, one)):
            # Columns of numbers are most of what there is
            numbers = [value for value in one if type(value) is int]
            if not numbers or (min(numbers) >= _LOWEST and max(numbers) <= _HIGHEST):
                return [kind, *one]
        return [kind, *self.values(one)]

    def _object(self, one: Any) -> list[Any]:
        kind = type(one)
        sort, members, _, derived, _ = _class(kind)
        if sort == _NAMED_TUPLE:
            values: Collection[Any] = one
        elif sort == _MAPPING:
            if getattr(one, "__dict__", None):
                raise TypeError(f"a {kind.__qualname__} with members cannot be written")
            values = [part for pair in one.items() for part in pair]
        else:
            if sort == _MADE:
                members = tuple([name for name in (*members, *vars(one)) if name not in derived])
            values = [getattr(one, name) for name in members]
        index = self._class_index.get((kind, members))
        if index is None:
            index = self._class_index[kind, members] = len(self.classes)
            self.classes.append((kind.__module__, kind.__qualname__, members))
        return [OBJECT, index, *self.values(values)]


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _name_of_function(function: FunctionType) -> str:
    name = function.__qualname__
    module = sys.modules.get(function.__module__)
    if not function.__module__.startswith(_PACKAGE) or getattr(module, name, None) is not function:
        raise TypeError(f"{function.__module__}.{name} is no function of a module of this package")
    return name


def _class_of_enum(kind: Any) -> None:
    if not kind.__module__.startswith(_PACKAGE) or getattr(sys.modules.get(kind.__module__), kind.__qualname__, None) is not kind:
        raise TypeError(f"{kind.__module__}.{kind.__qualname__} is no enumeration of a module of this package")


class _Reader:
    """Makes objects of nodes: first all that can be made empty, then what has to be made whole, then fills the former."""

    def __init__(self, written: tuple[list[Any], list[list[Any]]], options: Options) -> None:
        classes, self._nodes = written
        self._options = options
        self._classes = [_known(*one) for one in classes]
        self._objects: list[Any] = []

    def root(self) -> Any:
        whole: list[int] = []
        structs: list[int] = []
        containers: list[int] = []
        mappings: list[int] = []
        made: list[int] = []
        objects = self._objects
        for index, node in enumerate(self._nodes):
            kind = node[0]
            maker = _MAKERS.get(kind)
            if maker is not None:
                containers.append(index)
                objects.append(maker())
            elif kind in (BYTES, BYTEARRAY):
                if len(node) != 2 or type(node[1]) is not bytes:
                    raise ValueError("no bytes")
                objects.append(node[1] if kind == BYTES else bytearray(node[1]))
            elif kind == OBJECT:
                cls, known, members = self._classes[node[1]]
                if len(node) != 2 + len(members) and known.sort != _MAPPING:
                    raise ValueError(f"{len(node) - 2} values for {len(members)} members of {cls.__name__}")
                if known.sort == _NAMED_TUPLE:
                    whole.append(index)
                    objects.append(_PENDING)
                elif known.sort == _STRUCT:
                    structs.append(index)
                    objects.append(cls(*[None] * len(members)))
                else:
                    (made if known.sort == _MADE else mappings if known.sort == _MAPPING else structs).append(index)
                    objects.append(cls.__new__(cls))
            elif kind in (TUPLE, FROZENSET):
                whole.append(index)
                objects.append(_PENDING)
            else:
                raise ValueError(f"no kind of node: {kind!r}")
        # What is inside another was mostly met later
        for index in reversed(whole):
            self._make_whole(index)
        for index in structs:
            one = objects[index]
            node = self._nodes[index]
            for name, value in zip(self._classes[node[1]][2], self._values(node[2:]), strict=True):
                setattr(one, name, value)
        for index in containers:
            node = self._nodes[index]
            values = node[1:]
            _FILLERS[node[0]](objects[index], values if _FLAT.issuperset(map(type, values)) else self._values(values))
        for index in mappings:
            _FILLERS[DICT](objects[index], self._values(self._nodes[index][2:]))
        for index in made:
            self._lay_over(index)
        for index in made:
            resume = getattr(objects[index], "resume", None)
            if resume is not None:
                resume()
        return objects[0]

    def _make_whole(self, index: int) -> None:
        """Make a tuple or frozen set, after those that are in it."""
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

    def _lay_over(self, index: int) -> None:
        """Make an object by its `__init__`, and put the members that were written over its own."""
        one, node = self._objects[index], self._nodes[index]
        cls, known, members = self._classes[node[1]]
        values = dict(zip(members, self._values(node[2:]), strict=True))
        one.__init__(*[self._options if name == "options" else values[name] for name in known.made_of])
        if {*known.members, *vars(one)} - known.derived != values.keys():
            raise ForeignState(f"{cls.__qualname__} has other members now")
        for name, value in values.items():
            setattr(one, name, value)

    def _values(self, written: list[Any]) -> list[Any]:
        objects = self._objects
        return [
            one if type(one) is not list else objects[one[0]] if type(one[0]) is int and one[0] >= 0 else self._tagged(*one)
            for one in written
        ]

    def _tagged(self, what: str, *told: Any) -> Any:
        if what == _OPTIONS:
            return self._options
        if what == _NAMED:
            return _by_name(*told)
        if what == _INTEGER:
            return int(told[0], 16)
        if what == _TEXT:
            return told[0].decode("utf-8", "surrogatepass")
        raise ValueError(f"no kind of value: {what!r}")


def _of_package(module: str, name: str) -> Any:
    """What has this name in a module of this package that is there already."""
    if not module.startswith(_PACKAGE) or module not in sys.modules:
        raise ForeignState(f"there is no module {module}")
    found = vars(sys.modules[module]).get(name)
    if found is None:
        raise ForeignState(f"{module} has no {name}")
    return found


def _known(module: str, name: str, members: list[str]) -> tuple[Any, _Class, list[str]]:
    kind = _of_package(module, name)
    if not isinstance(kind, type) or kind.__module__ != module:
        raise ForeignState(f"{module}.{name} is no class")
    found = _class(kind)
    if found.sort != _MADE and list(found.members) != members:
        raise ForeignState(f"{name} has other members now")
    return kind, found, members


def _by_name(module: str, name: str, member: str | None = None) -> Any:
    found = _of_package(module, name)
    if member is not None:
        if not (isinstance(found, type) and issubclass(found, Enum) and found.__module__ == module):
            raise ForeignState(f"{module}.{name} is no enumeration")
        return found[member]
    if not (found.__module__ == module if type(found) is FunctionType else type(found).__module__ == module):
        raise ForeignState(f"{module}.{name} is no function or constant")
    return found
