"""What of a protocol's messages is behaviour, and what is chance: the words of the tables that `golden` compares by.

A protocol says so in a table of its own folder (`Protocol.compare_rules`); without one, names that speak for themselves do
(`golden.rules`). A field is named by its path without the numbers of lists, an entry of a list of keys and values by its key:
`chunk.entries.offset`, `peer_properties["version"]`. `Open:virtual_host` speaks of one message only, `*.checksum` of that name at
any depth, and whatever is said of a field is said of all below it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

Fields = dict[str, Any]


class TotalRule(NamedTuple):
    """Messages of one name whose division is chance: what they carry together counts, and not their place among the others."""

    kind: Literal["request", "response", "one_way"]
    by: Callable[[Fields, Fields], str]
    """Tells flows of one name apart, by the fields of a message and those of its request."""
    items: Callable[[Fields, Fields], list[Any]] | None = None
    """What a message carries: objects, or integers where `form` is "set"; None where that is nothing that counts."""
    content: tuple[str, ...] = ()
    """The fields that the items stand for. Items are called as what is in the first of them."""
    form: Literal["list", "set"] = "list"
    """Whether the order of the items counts. The other fields are compared by the values they have, each once."""


class CompareRules(NamedTuple):
    """What is compared of a protocol's messages, and how."""

    dropped: tuple[str, ...] = ()
    """Sizes, times, checksums, counters of a server's own: they differ between two recordings of one behaviour."""
    paired: tuple[str, ...] = ()
    """Ids that do nothing but tell which request is answered; one that is used twice is told."""
    aliases: Mapping[str, tuple[str, ...]] = {}
    """Ids that are renamed by first use, by what they are called then: {"session": ("session",)}."""
    hosts: tuple[str, ...] = ()
    ports: tuple[str, ...] = ()
    """Addresses or names of machines, and ports, renamed in the same way."""
    masked: Mapping[str, tuple[str, ...]] = {}
    """What a word stands for: {"version": ('peer_properties["version"]',)}."""
    reduced: Mapping[str, Callable[[Any], str | None]] = {}
    """The word that stands for a value, or None to leave it."""
    heartbeats: tuple[str, ...] = ()
    """Messages that only say that a side is there."""
    handshake: tuple[str, ...] = ()
    """Requests up to which, with their responses, a connection is being opened."""
    ready: tuple[str, ...] = ()
    """Those of them of which one has to be answered for the connection to be open; without it any."""
    releases: Mapping[str, str] = {}
    """A layout with the servers that have it, in words."""
    apart: tuple[str, ...] = ()
    """Messages whose place among the others of their side is chance; among themselves it counts."""
    flows: Mapping[str, tuple[TotalRule, ...]] = {}
    """By the messages' name."""


class HandshakeProgress:
    """How far a conversation gets with opening its connection. `from_start`: its beginning is there."""

    __slots__ = ("done", "midway", "names", "opening", "step")

    def __init__(self, compare_rules: CompareRules | None = None, from_start: bool = True) -> None:
        self.names = () if compare_rules is None else compare_rules.handshake
        self.opening = self.names if compare_rules is None else compare_rules.ready or self.names
        self.step: str | None = None
        """How far that is, in words; None where nothing of it was seen."""
        self.midway = False
        """What was answered last is of the handshake, which is to go on, and none of its requests is open."""
        self.done = not (self.names and from_start)
        """Nothing more is to be learned."""

    def unanswered(self, name: str) -> None:
        """A request has no answer, or none so far."""
        if name in self.names:
            self.step, self.midway = f"{name}, without an answer", False

    def answered(self, name: str, outcome: str) -> bool:
        """A request was answered; whether that opens the connection."""
        self.midway = False
        if name in self.names:
            self.done = outcome == "answered" and name in self.opening
            self.step = "ready" if self.done else f"{name}, {outcome}"
            self.midway = outcome == "answered" and not self.done
        return self.done
