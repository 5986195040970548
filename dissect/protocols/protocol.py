"""What a protocol declares, and what its heuristic and its dissector are given."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple
from typing import Protocol as Typed

import msgspec

from ..model import ConversationRow, Message, Options, Verdict
from .compare_rules import CompareRules
from .scrub_rules import ScrubRules
from .work_budget import WorkBudget

if TYPE_CHECKING:
    from .dissector import Dissector


class Tally(msgspec.Struct, gc=False):
    """How many messages and gaps were made, how many of them are gaps, the bytes that these lack, the messages with a fault, the
    requests that ended without a response, and those that were refused."""

    records: int = 0
    gaps: int = 0
    gap_bytes: int = 0
    faults: int = 0
    unanswered: int = 0
    refused: int = 0

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


class SideView(msgspec.Struct):
    """One side's bytes so far, for detection: contiguous `runs` of (position, bytes).

    `from_start`: position 0 is the true first byte. `segments`: positions where segments start.
    """

    runs: list[tuple[int, bytes]]
    from_start: bool
    segments: list[int]

    @property
    def end(self) -> int:
        """The position behind the last byte; 0 where there is none."""
        return self.runs[-1][0] + len(self.runs[-1][1]) if self.runs else 0

    @property
    def begins(self) -> bool:
        """Whether the first byte is there: though a SYN was captured, the first packet with data may be missing."""
        return self.from_start and bool(self.runs) and not self.runs[0][0]


class DetectionView(msgspec.Struct):
    """A conversation as detection sees it; `final` when no more bytes will come.

    `work_budget` bounds what a heuristic may do, and `known` holds what it found out that no further byte will change, by its own names.
    `hinges`: what is found would perhaps be another thing if `final` were, so that it is to be looked for again.
    """

    sides: tuple[SideView, SideView]
    ports: tuple[int, int]
    from_start: bool
    final: bool
    work_budget: WorkBudget = msgspec.field(default_factory=WorkBudget)
    known: dict[Any, Any] = msgspec.field(default_factory=dict)
    hinges: bool = False

    def ends(self) -> bool:
        """Whether no more bytes will come; asked only where that makes a difference."""
        self.hinges = True
        return self.final


class Traffic(NamedTuple):
    """What a message does with the messages of users: how many it publishes or delivers, up to which offset of a partition, what of that is
    committed; and by how much it changes the credit of a subscription, which it may begin, None where that ends."""

    published: int = 0
    delivered: int = 0
    partition: int | None = None
    offset: int | None = None
    committed: int | None = None
    subscription: int | None = None
    credit: int | None = 0
    begins: bool = False


class InfoWithContext(Typed):
    """Says messages, of which it is told before, whether they are shown or not."""

    def learn(self, message: Message) -> None: ...

    def __call__(self, message: Message) -> str: ...


class LoadedProtocol(msgspec.Struct, frozen=True):
    """The heuristic, the dissector and the tables of a protocol."""

    dissector: type[Dissector]
    heuristic: Callable[[DetectionView], Verdict | None]
    info: Callable[[Message], str]
    tables: tuple[Any, ...] | Callable[[], tuple[Any, ...]] = ()
    """Its layouts and other tables, for documentation and the names of fields; or what makes them once they are asked for."""
    text: str = ""
    """Paragraphs for `streamdump protocols NAME` that no table holds."""
    added: tuple[tuple[str, str, str], ...] = ()
    """Fields that no table holds, as rows of one: path, type, note. Most are put beside those that are on the wire."""
    labelled: Callable[[Options], Mapping[str, Iterable[str]]] | None = None
    """By field, the labels that options bring."""
    alarms: Mapping[str, Callable[[Message], bool]] = {}
    """By name: whether such a message is a cause of trouble, though it is no request that was refused."""
    paired: Callable[[Message, Message], list[str]] | None = None
    """Notes for a response that only its request lets one say (a deadline that had passed)."""
    unanswered: Callable[[Message, int], str | None] | None = None
    """Why a request has no response at a time (ns), where its own fields say so (a deadline that had passed)."""
    relate: Callable[[list[ConversationRow]], None] | None = None
    """Adds to the rows of this protocol what its conversations tell about each other."""
    hint: Callable[[ConversationRow, Options], str | None] | None = None
    """What a user could do to see more of a conversation of this protocol, for the closing line."""
    login: re.Pattern[bytes] | None = None
    """Finds a login in the bytes of a client."""
    forced: tuple[str, ...] = ()
    """Layout names that `-d tcp.port==N,protocol:LAYOUT` takes."""
    compare_rules: CompareRules | None = None
    """What of its messages is behaviour, and what is chance."""
    scrub_rules: ScrubRules | None = None
    """What of its messages is nobody else's business."""
    info_with_context: Callable[[], InfoWithContext] | None = None
    """Makes a `info` for a view that shows the messages of a run in their order: it remembers what it was told."""

    @property
    def layouts(self) -> tuple[Any, ...]:
        tables = self.tables
        return tables() if callable(tables) else tables

    names: tuple[str, ...] = ()
    """The names of its messages, where `tables` are made only once they are asked for."""
    traffic: Callable[[Message], Traffic | None] | None = None
    """What a message does with those of users."""
    verb: Callable[[Message], str | None] | None = None
    """What a request asks for, where its name does not say so."""
    code: tuple[str, ...] = ()
    """Where a response tells how it went, as paths of labelled fields: the first that is there."""
    server_time_ns: Callable[[Message], int | None] | None = None
    """The nanoseconds that a response says the server worked on it."""


class Protocol(msgspec.Struct, frozen=True):
    """One entry of PROTOCOLS. Its package is imported only for a conversation or an option that needs it."""

    name: str
    title: str
    ports: tuple[int, ...]
    load: Callable[[], LoadedProtocol]
    may_begin: Callable[[DetectionView], bool] = lambda view: True
    """Whether the first bytes allow this protocol: False only where the heuristic would return None, and True where the beginning was not
    captured."""

    @property
    def loaded(self) -> LoadedProtocol:
        return self.load()
