"""Rules for `check`: which parts of a protocol's messages are behaviour, and which differ by chance.

A protocol has a table of these in its own package (`Protocol.compare_rules`); the default goes by the names of fields (`golden.rules`). A
field is given by its path without list indexes, an entry of a list of keys and values by its key: `chunk.entries.offset`,
`peer_properties["version"]`. `Open:virtual_host` is for one message only, `*.checksum` for that name at any depth. A rule for a field
applies to everything below it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

Fields = dict[str, Any]


class TotalRule(NamedTuple):
    """Messages of one name that split their contents by chance: only the total contents are compared, not the order."""

    kind: Literal["request", "response", "one_way"]
    by: Callable[[Fields, Fields], str]
    """Returns the flow of a message, from its fields and those of its request."""
    items: Callable[[Fields, Fields], list[Any]] | None = None
    """Returns the contents of a message: objects, or integers if `form` is "set". None: contents are not compared."""
    content: tuple[str, ...] = ()
    """The fields with these contents; the first gives the items their name."""
    form: Literal["list", "set"] = "list"
    """Whether the order of the items counts. Of other fields the set of values is compared."""
    of: Callable[[Fields], bool] | None = None
    """Whether the rule is for a message with these fields; None: for all of this kind. The first that fits counts."""


class CompareRules(NamedTuple):
    """How the messages of a protocol are compared."""

    dropped: tuple[str, ...] = ()
    """Fields that differ between recordings of the same behaviour: sizes, times, checksums, internal counters of a server."""
    paired: tuple[str, ...] = ()
    """Ids that only identify the request of a response; reuse is reported."""
    aliases: Mapping[str, tuple[str, ...]] = {}
    """Ids that are renamed in order of first use, by their new name: {"session": ("session",)}."""
    hosts: tuple[str, ...] = ()
    ports: tuple[str, ...] = ()
    """Addresses or names of machines, and ports, renamed in the same way."""
    masked: Mapping[str, tuple[str, ...]] = {}
    """Fields replaced by a word: {"version": ('peer_properties["version"]',)}."""
    reduced: Mapping[str, Callable[[Any], str | None]] = {}
    """Functions that return the word for a value, None to keep it."""
    heartbeats: tuple[str, ...] = ()
    """Keep-alive messages."""
    handshake: tuple[str, ...] = ()
    """The requests of the handshake."""
    ready: tuple[str, ...] = ()
    """Those of which one must be answered to open the connection; empty: any."""
    login: tuple[str, ...] = ()
    """The requests that log in; empty: the handshake does not show whether the server knows the client."""
    releases: Mapping[str, str] = {}
    """Layouts with a description of their servers."""
    apart: tuple[str, ...] = ()
    """Messages whose order relative to others of their side is chance; their order among themselves counts."""
    flows: Mapping[str, tuple[TotalRule, ...]] = {}
    """By message name."""

    def authenticated(self, step: str | None) -> bool | None:
        """Return whether the server had accepted a login after a step of `HandshakeProgress`; None if that is unknown."""
        name, _, outcome = (step or "").partition(", ")
        if not self.login or (name != "ready" and name not in self.handshake):
            return None
        if name in self.login:
            # An answer may also be a challenge, and the next step shows which it was
            return False if outcome == "refused" else None
        return name == "ready" or self.handshake.index(name) > self.handshake.index(self.login[-1])


class HandshakeProgress:
    """The progress of the handshake."""

    __slots__ = ("done", "midway", "names", "opening", "step")

    def __init__(self, compare_rules: CompareRules | None = None) -> None:
        self.names = () if compare_rules is None else compare_rules.handshake
        self.opening = self.names if compare_rules is None else compare_rules.ready or self.names
        self.step: str | None = None
        """The last step, as text; None if none was seen."""
        self.midway = False
        """The last answer belongs to the handshake, which is not complete, and none of its requests is open."""
        self.done = not self.names
        """No more messages need to be checked."""

    def unanswered(self, name: str) -> None:
        """Register a request without an answer so far."""
        if name in self.names:
            self.step, self.midway = f"{name}, without an answer", False

    def answered(self, name: str, outcome: str) -> bool:
        """Register an answered request; return whether it opens the connection."""
        self.midway = False
        if name in self.names:
            self.done = outcome == "answered" and name in self.opening
            self.step = "ready" if self.done else f"{name}, {outcome}"
            self.midway = outcome == "answered" and not self.done
        return self.done


NO_HANDSHAKE = HandshakeProgress()
"""Of conversations whose beginning was not captured: it never changes."""
