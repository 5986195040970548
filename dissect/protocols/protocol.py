"""What a protocol declares, and the input of its heuristic and dissector."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple
from typing import Protocol as Typed

import msgspec

from ..model import ConversationRow, Message, Options, Verdict
from ..quota import UnpackPool
from .compare_rules import CompareRules
from .scrub_rules import ScrubRules
from .work_budget import WorkBudget

if TYPE_CHECKING:
    from .dissector import Dissector
    from .entries import EntrySource


class Tally:
    """Counts of records (messages and gaps), gaps, bytes in gaps, messages with a fault, and unanswered and refused requests; and of those
    messages whose fault is that of a newer version of the protocol (`Unreadable`)."""

    __slots__ = ("faults", "gap_bytes", "gaps", "records", "refused", "unanswered", "unreadable")

    def __init__(self) -> None:
        self.records = 0
        self.gaps = 0
        self.gap_bytes = 0
        self.faults = 0
        self.unanswered = 0
        self.refused = 0
        self.unreadable = 0

    @property
    def messages(self) -> int:
        return self.records - self.gaps


class Context(msgspec.Struct, gc=False):
    """The conversation a dissector works for. `client` is the side (0 or 1) that is the client, None if unknown.

    `from_start`: the beginning of the conversation was captured, so both byte streams start at their true first byte.
    """

    conversation: int
    endpoints: tuple[str, str]
    ports: tuple[int, int]
    client: int | None
    from_start: bool
    verdict: Verdict
    options: Options
    unpack_pool: UnpackPool = msgspec.field(default_factory=UnpackPool)


class SideView(msgspec.Struct):
    """One side's bytes so far, for detection: contiguous `runs` of (position, bytes).

    `from_start`: position 0 is the true first byte. `segments`: positions where segments start.
    """

    runs: list[tuple[int, bytes]]
    from_start: bool
    segments: list[int]

    @property
    def end(self) -> int:
        """The position behind the last byte; 0 if there is none."""
        return self.runs[-1][0] + len(self.runs[-1][1]) if self.runs else 0

    @property
    def begins(self) -> bool:
        """Whether the first byte is there: though a SYN was captured, the first packet with data may be missing."""
        return self.from_start and bool(self.runs) and not self.runs[0][0]


class DetectionView(msgspec.Struct):
    """A conversation as detection sees it; `final` when no more bytes will come.

    `work_budget` limits the work of a heuristic; `known` is its cache, under its own names, of results that no further byte changes.
    `hinges`: the result depended on `final`, so that the heuristic has to be called again if that changes.
    """

    sides: tuple[SideView, SideView]
    ports: tuple[int, int]
    from_start: bool
    final: bool
    work_budget: WorkBudget = msgspec.field(default_factory=WorkBudget)
    known: dict[Any, Any] = msgspec.field(default_factory=dict)
    hinges: bool = False
    dictionaries: tuple[bytes, ...] = ()
    """Those of the options."""

    def ends(self) -> bool:
        """Return `final`; call it only where that makes a difference."""
        self.hinges = True
        return self.final


STALL_NS = 100_000_000
"""A subscription without credit for so long has a stall."""


class Traffic(NamedTuple):
    """The user messages of a protocol message: how many it publishes or delivers, up to which offset of a partition, the committed offset;
    and the change of a subscription's credit, by its unit ("chunks", "bytes"), which is that of its first (`begins`: a new subscription;
    None: it ends). `active`: whether the subscription gets anything, of a single active consumer. `ends`: subscriptions of this stream end.
    `consumer`: who asks for messages."""

    published: int = 0
    delivered: int = 0
    partition: int | None = None
    offset: int | None = None
    committed: int | None = None
    subscription: int | None = None
    credit: Mapping[str, int] | None = {}
    begins: bool = False
    active: bool | None = None
    ends: str | None = None
    consumer: str | None = None


class InfoWithContext(Typed):
    """An `info` that depends on earlier messages: `learn` gets all of them, shown or not."""

    def learn(self, message: Message) -> None: ...

    def __call__(self, message: Message) -> str: ...


class LoadedProtocol(msgspec.Struct, frozen=True):
    """The heuristic, the dissector and the tables of a protocol."""

    dissector: type[Dissector]
    heuristic: Callable[[DetectionView], Verdict | None]
    info: Callable[[Message], str]
    tables: tuple[Any, ...] | Callable[[], tuple[Any, ...]] = ()
    """Layouts and other tables, for documentation and names of fields; or a function that makes them when needed."""
    text: str = ""
    """Paragraphs for `streamdump protocols NAME` besides the tables."""
    added: tuple[tuple[str, str, str], ...] = ()
    """Fields that are not on the wire, as table rows: path, type, note."""
    labelled: Callable[[Options], Mapping[str, Iterable[str]]] | None = None
    """Labels that depend on options, by field."""
    alarms: Mapping[str, Callable[[Message], bool]] = {}
    """By message name: whether a message reports a problem without being a refused request."""
    paired: Callable[[Message, Message], list[str]] | None = None
    """Notes for a response that depend on its request (a deadline that had passed)."""
    unanswered: Callable[[Message, int], str | None] | None = None
    """Why a request has no response at a time (ns), if its fields explain that (a deadline that had passed)."""
    relate: Callable[[list[ConversationRow]], None] | None = None
    """Adds to the rows of this protocol what its conversations reveal about each other."""
    hint: Callable[[ConversationRow, Options], str | None] | None = None
    """How a user can see more of such a conversation, for the closing line."""
    login: re.Pattern[bytes] | None = None
    """Matches a login in the bytes of a client."""
    dissectors: Mapping[str, type[Dissector]] = {}
    """Those of layouts with a dissector of their own."""
    forced: tuple[str, ...] = ()
    """Layout names for `-d tcp.port==N,protocol:LAYOUT`."""
    compare_rules: CompareRules | None = None
    """Which parts of its messages `check` compares."""
    scrub_rules: ScrubRules | None = None
    """Which parts of its messages `scrub` overwrites."""
    info_with_context: Callable[[], InfoWithContext] | None = None
    """Makes an `info` with memory, for views that show the messages of a run in order."""

    @property
    def layouts(self) -> tuple[Any, ...]:
        tables = self.tables
        return tables() if callable(tables) else tables

    names: tuple[str, ...] = ()
    """The names of messages that no table describes."""
    traffic: Callable[[Message], Traffic | None] | None = None
    """How many user messages a message carries."""
    entries: Callable[[], EntrySource] | None = None
    """Makes what returns the user messages of the messages of a run."""
    verb: Callable[[Message], str | None] | None = None
    """The verb of a request, if its name does not contain it."""
    code: tuple[str, ...] = ()
    """Paths of the labelled fields with the result of a response: the first present one counts."""
    server_time_ns: Callable[[Message], int | None] | None = None
    """How long (ns) the server worked on a request, according to its response."""


class Protocol(msgspec.Struct, frozen=True):
    """One entry of PROTOCOLS. Its package is imported only for a conversation or an option that needs it."""

    name: str
    title: str
    ports: tuple[int, ...]
    load: Callable[[], LoadedProtocol]
    may_begin: Callable[[DetectionView], bool] = lambda view: True
    """Whether the first bytes allow this protocol: False only where the heuristic would return None, and True where the beginning was not
    captured."""
    websocket: tuple[int, ...] = ()
    """Those of `ports` on which servers expect WebSocket."""
    system: str = ""
    """What OpenTelemetry calls the system whose protocol this is, if not `name`."""

    @property
    def loaded(self) -> LoadedProtocol:
        return self.load()
