"""WebSocket: an HTTP/1.1 upgrade, then frames. The payloads of a side's data frames, joined, are the byte stream inside.

RFC 6455. The border of a message is where an item begins, so that protocols may look for frames there. Frames that RFC 6455 forbids but
that can be read are read; a note describes the error.
"""

from __future__ import annotations

from base64 import b64encode
from hashlib import sha1
from typing import Any

import msgspec

from ..model import Close, SideData, StreamGap, Verdict
from .frames import FrameReader, FrameSearch, FrameTrace, WebSocketClose
from .http import LONGEST, REQUEST, RESPONSE, SWITCHING, HttpHead, fits, read_head

GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"

FIRST_BYTES = REQUEST[:1], RESPONSE[:1]

MOST_HELD, PIECES = 65_536, 4_096
"""Bytes and segments that are held until the answer to an upgrade is known."""

Items = list[SideData | StreamGap]


class Upgrade(msgspec.Struct, gc=False):
    """The state of the HTTP messages. `asked`, `answered`: the number of requests and, without interim ones, responses."""

    asked: int = 0
    answered: int = 0
    request: HttpHead | None = None
    response: HttpHead | None = None
    accepted: bool = False
    packet: int = 0
    """The number of the packet with the response."""

    def add(self, head: HttpHead, packet: int) -> None:
        """Note the next head of a side, and the packet that completed it."""
        if head.target is not None:
            self.asked += 1
            self.request = head
        elif head.status >= 200 or head.status == SWITCHING:
            self.answered += 1
            self.response, self.packet = head, packet
            self.accepted = head.upgrades

    def damaged(self) -> str | None:
        """Return the error of the answer, or None."""
        request, response = self.request, self.response
        if request is None or response is None or not response.upgrades:
            return None
        key, accept = request.fields.get("sec-websocket-key"), response.fields.get("sec-websocket-accept")
        if key is None or accept == accept_of(key):
            return None
        return "Sec-WebSocket-Accept is missing" if accept is None else "Sec-WebSocket-Accept does not belong to the key of the request"


class WebSocketOutcome(msgspec.Struct, gc=False):
    """How an upgrade, and the conversation after it, ended. `packet`: the number of the packet with the answer; `refused`, `damaged`: what
    is wrong with it, if anything."""

    target: str | None
    packet: int
    refused: str | None
    damaged: str | None
    close: WebSocketClose | None


class WebSocketSide(msgspec.Struct, gc=False):
    """One side: the head of an HTTP message that it sends, or its frames."""

    frames: FrameReader
    head: bytes = b""
    """The first bytes of a head that is not complete."""
    body: int = 0
    """Bytes of a response that follow its head."""
    http: bool = True
    waits: bool = False
    """The upgrade was asked for, and not answered."""
    lost: bool = False
    """Bytes are missing: what follows is not a head."""
    handshake: int = 0
    """Bytes of HTTP."""
    held: Items = []

    def sizes(self) -> tuple[int, ...]:
        """Return the bytes of HTTP, and those of `FrameReader.sizes`."""
        return self.handshake + len(self.head) + sum(map(size_of, self.held)), *self.frames.sizes()


class Opening(msgspec.Struct, gc=False):
    """The first items of a conversation, and what they show."""

    first: list[bytes] = msgspec.field(default_factory=lambda: [b"", b""])
    """The first bytes of each side."""
    heads: list[HttpHead | None] = msgspec.field(default_factory=lambda: [None, None])
    """The head that these begin with, once it is complete."""
    broken: list[bool] = msgspec.field(default_factory=lambda: [False, False])
    """Bytes are missing in them."""
    held: Items = []
    size: int = 0
    """Bytes in `held`."""

    def head(self, side: int) -> HttpHead | bool | None:
        """Return the head that a side begins with, as `read_head` does, or None; a complete one is read once, whatever follows."""
        found = self.heads[side] or (read_head(self.first[side]) if self.first[side] else None)
        self.heads[side] = found if isinstance(found, HttpHead) else None
        return found


class WebSocketLayer(msgspec.Struct, gc=False):
    """Strips the upgrade, the headers of frames and control frames from both sides."""

    from_start: bool
    """Whether the start of the conversation was captured."""
    traces: tuple[list[FrameTrace], list[FrameTrace]] | None = None
    """For `scrub`: see `FrameReader.trace`."""
    client: int | None = None
    sides: tuple[WebSocketSide, WebSocketSide] | None = None
    """Set once it is certain that this is WebSocket, or an upgrade that was refused."""
    upgrade: Upgrade | None = None
    opening: Opening | None = None
    """Before that: set while it is open what the first bytes are."""
    middle: FrameSearch | None = None
    """Looks for frames where the start was not captured."""

    # What the conversation calls

    def feed(self, items: Items, last: bool) -> tuple[Items, bool]:
        """Return the bytes inside, and whether it is certain that there is no WebSocket; `last`: nothing follows."""
        if self.sides is not None:
            return self._unwrap(items), False
        if self.middle is not None:
            return items, False
        opening = self.opening
        if opening is None:
            if not items:
                # TLS may be about to show whether this is the start
                return items, last
            if type(first := items[0]) is SideData and not first.data.startswith(FIRST_BYTES):
                # As nearly all conversations begin
                return self._without_upgrade(items)
            opening = self.opening = Opening()
        for at, item in enumerate(items):
            opening.held.append(item)
            decided = self._look(opening, item)
            if decided is not None:
                self.opening, held = None, opening.held + items[at + 1 :]
                if decided:
                    return self._unwrap(held), False
                return self._without_upgrade(held)
        if last:
            self.opening = None
            return opening.held, True
        return [], False

    @property
    def held(self) -> Items:
        """The items held until it is known what they are."""
        return [] if self.opening is None else self.opening.held

    def searched(self, items: Items) -> bool:
        """Return whether these items make frames certain, in the middle of a conversation; `begin_inside` then reads all so far."""
        return self.middle is not None and self.middle.add(items)

    def begin_inside(self, items: Items) -> Items:
        """Return the bytes inside, where the upgrade was not captured; `items`: all so far."""
        assert self.middle is not None
        self._begin(self.middle.client)
        assert self.sides is not None
        self.middle = None
        for side in self.sides:
            side.http = False
            side.frames.begin_inside()
        return self._unwrap(items)

    def plain_sizes(self) -> tuple[int, int] | None:
        """Return the bytes inside by side; None if this is not WebSocket."""
        return None if self.sides is None else (self.sides[0].frames.position, self.sides[1].frames.position)

    @property
    def from_beginning(self) -> bool:
        """Whether the bytes inside were captured from their beginning."""
        upgrade = self.upgrade
        return upgrade is not None and (self.from_start or (upgrade.request is not None and upgrade.response is not None))

    @property
    def refused(self) -> HttpHead | None:
        """The response of a server that did not agree."""
        return self.upgrade.response if self.upgrade is not None and not self.upgrade.accepted else None

    @property
    def close(self) -> WebSocketClose | None:
        """The first Close frame of either side."""
        closes = () if self.sides is None else [side.frames.close for side in self.sides if side.frames.close is not None]
        return min(closes, default=None)

    def closing(self) -> Close | None:
        """Return what announced the end."""
        close = self.close
        return None if close is None else (f"WebSocket Close{f' {close.code}' if close.code else ''}", close.side, close.order)

    def outcome(self) -> WebSocketOutcome | None:
        """Return what the diagnosis needs; None if this is not WebSocket."""
        upgrade, refused = self.upgrade, self.refused
        if self.sides is None:
            return None
        target = None if upgrade is None or upgrade.request is None else shown_target(upgrade.request.target or "")
        packet = 0 if upgrade is None else upgrade.packet
        damaged = None if upgrade is None else upgrade.damaged()
        return WebSocketOutcome(target, packet, None if refused is None else refused.outcome(), damaged, self.close)

    def verdict(self) -> Verdict:
        """Return the verdict if the protocol inside is not known."""
        if self.refused is not None:
            return Verdict(None, 1.0, (self.evidence(),), "WebSocket, refused")
        return Verdict(None, 1.0, (self.evidence(),), "WebSocket")

    def evidence(self) -> str:
        """Return what shows that this is WebSocket."""
        if self.upgrade is None:
            return "in frames of WebSocket, whose upgrade was not captured"
        refused = self.refused
        if refused is not None:
            return f"an upgrade to WebSocket was answered with {refused.outcome()}"
        return "inside WebSocket"

    def row(self) -> dict[str, Any]:
        """Return the facts for the row of `conversations`."""
        if self.sides is None:
            return {}
        upgrade, (one, two) = self.upgrade, self.sides
        close = self.close
        facts: dict[str, Any] = {
            "websocket": "upgrade not captured" if upgrade is None else _upgraded(upgrade),
            "websocket_target": None if upgrade is None or upgrade.request is None else shown_target(upgrade.request.target or ""),
            "websocket_protocol": None if upgrade is None else _field(upgrade.response, "sec-websocket-protocol"),
            "websocket_extensions": None if upgrade is None else _field(upgrade.response, "sec-websocket-extensions"),
            "websocket_damaged": None if upgrade is None else upgrade.damaged(),
            "websocket_close": None if close is None else f"{close.text} by the {'client' if close.side == self.client else 'server'}",
            "websocket_compressed": sum(side.frames.compressed for side in self.sides) or None,
        }
        for name, *pair in zip(("handshake", "header", "control", "plain", "unread"), one.sizes(), two.sizes(), strict=True):
            facts[f"websocket_{name}_bytes"] = pair if any(pair) or name == "plain" else None
        return {name: fact for name, fact in facts.items() if fact is not None}

    # Is it WebSocket?

    def _without_upgrade(self, items: Items) -> tuple[Items, bool]:
        """Return these items, which do not begin with an upgrade, and whether it is certain that there is no WebSocket."""
        if self.from_start:
            return items, True
        self.middle = FrameSearch()
        return items, False

    def _look(self, opening: Opening, item: SideData | StreamGap) -> bool | None:
        """Return whether these are an upgrade and its answer; None while that is open."""
        side = item.side
        if type(item) is not SideData:
            opening.broken[side] = True
            return None if any(opening.first) or not self.from_start else False if all(opening.broken) else None
        opening.size += len(item.data)
        if not opening.broken[side]:
            opening.first[side] += item.data
        decided = self._decide(opening)
        if decided is None and (opening.size > MOST_HELD or len(opening.held) > PIECES):
            return False
        return decided

    def _decide(self, opening: Opening) -> bool | None:
        first = opening.first
        client = next((side for side in (0, 1) if first[side] and fits(first[side], REQUEST)), None)
        if client is None:
            server = next((side for side in (0, 1) if first[side] and fits(first[side], RESPONSE)), None)
            if server is None:
                return False
            client = 1 - server
        if self.from_start and client:
            return False
        asked = first[client]
        request, response = opening.head(client), opening.head(1 - client)
        if isinstance(request, HttpHead):
            if not request.upgrades or response is False:
                return False
            if isinstance(response, HttpHead) or FrameReader.begins(asked[request.size : request.size + 14], True):
                return self._begin(client, Upgrade(), not isinstance(response, HttpHead))
            return None
        if isinstance(response, HttpHead) and response.upgrades and (opening.broken[client] or not asked):
            return self._begin(client, Upgrade())
        if request is False or response is False or isinstance(response, HttpHead):
            return False
        return False if all(opening.broken) else None

    def _begin(self, client: int, upgrade: Upgrade | None = None, accepted: bool = False) -> bool:
        """Note that this is WebSocket; `accepted`: the client sends frames, whatever the server answered."""
        traces = self.traces or (None, None)
        one, two = [WebSocketSide(FrameReader(side, side == client, traces[side])) for side in (0, 1)]
        self.client, self.sides, self.upgrade = client, (one, two), upgrade
        if upgrade is not None:
            upgrade.accepted = accepted
        return True

    # Both sides

    def _unwrap(self, items: Items) -> Items:
        assert self.sides is not None
        out: Items = []
        for item in items:
            side = self.sides[item.side]
            if side.http:
                self._read_http(side, item, out)
            else:
                side.frames.feed(item, out)
        return out

    def _read_http(self, side: WebSocketSide, item: SideData | StreamGap, out: Items) -> None:
        """Read the next bytes of a side that has sent no frame."""
        upgrade = self.upgrade
        assert upgrade is not None and self.sides is not None
        if side.waits:
            side.held.append(item)
            self._resume(side, out)
            return
        if isinstance(item, StreamGap):
            side.handshake += len(side.head)
            side.head, side.lost = b"", True
            self._after_loss(side, item, out)
            return
        data = item.data
        while data:
            if side.body:
                passed = min(side.body, len(data))
                side.body -= passed
                side.handshake += passed
                data = data[passed:]
                continue
            if side.lost:
                self._after_loss(side, _rest(item, data), out)
                return
            have = len(side.head)
            head = read_head(side.head + data)
            if head is True:
                side.head += data
                return
            if head is False:
                side.handshake += have
                side.head, side.lost = b"", True
                continue
            assert isinstance(head, HttpHead)
            raw, side.head = (side.head + data)[: head.size], b""
            side.handshake += head.size
            data = data[head.size - have :]
            if self.traces is not None:
                at = item.position + len(item.data) - len(data) - head.size
                self.traces[item.side].append(FrameTrace("http", 0, at, head.size, raw))
            upgrade.add(head, item.mark[1])
            if head.target is not None:
                side.waits = True
                if data:
                    side.held.append(_rest(item, data))
                self._resume(side, out)
                return
            if upgrade.accepted:
                self._agree(head)
                side.http = False
            else:
                side.lost, side.body = head.body is None, head.body or 0
            self._resume(self.sides[1 - item.side], out)
            if not side.http:
                if data:
                    side.frames.feed(_rest(item, data), out)
                return

    def _after_loss(self, side: WebSocketSide, item: SideData | StreamGap, out: Items) -> None:
        """Read the bytes after missing ones: frames, or unread bytes."""
        assert self.upgrade is not None
        if self.upgrade.accepted:
            self._frames(side, [item], out)
        else:
            side.handshake += size_of(item)

    def _resume(self, side: WebSocketSide, out: Items) -> None:
        """Read what the client sent behind its request, once the answer is known, or if these are frames."""
        upgrade = self.upgrade
        assert upgrade is not None
        if not side.waits:
            return
        if not upgrade.accepted and upgrade.answered < upgrade.asked:
            first = b"".join([one.data for one in side.held[:16] if isinstance(one, SideData)])
            upgrade.accepted = FrameReader.begins(first, True)
            if not upgrade.accepted and len(side.held) <= PIECES:
                return
        side.waits, held = False, side.held
        side.held = []
        if upgrade.accepted:
            self._frames(side, held, out)
            return
        for item in held:
            self._read_http(side, item, out)

    def _frames(self, side: WebSocketSide, items: Items, out: Items) -> None:
        side.http = False
        if side.lost and items:
            side.frames.lose("lost", items[0], out)
        for item in items:
            side.frames.feed(item, out)

    def _agree(self, head: HttpHead) -> None:
        """Note the extensions of both sides."""
        assert self.sides is not None
        deflated = any(one.partition(";")[0].strip() == "permessage-deflate" for one in head.tokens("sec-websocket-extensions"))
        for side in self.sides:
            side.frames.deflated = deflated


def size_of(item: SideData | StreamGap) -> int:
    """Return the bytes of an item, captured or not."""
    return len(item.data) if isinstance(item, SideData) else item.size or 0


def accept_of(key: str) -> str:
    """Return the value of Sec-WebSocket-Accept for this Sec-WebSocket-Key."""
    return b64encode(sha1(key.encode("latin-1") + GUID).digest()).decode()


def shown_target(target: str) -> str:
    """Return the target of a request without its query, which may contain a token."""
    path, mark, query = target.partition("?")
    return path[:LONGEST] + (f"?<redacted {len(query)} bytes>" if mark else "")


def _upgraded(upgrade: Upgrade) -> str:
    if upgrade.response is None:
        return "upgraded, answer not captured"
    return "upgraded" if upgrade.accepted else f"refused with {upgrade.response.outcome()}"


def _field(head: HttpHead | None, name: str) -> str | None:
    """Return a header field; a long one may be a token that the client sent as a name."""
    value = None if head is None else head.fields.get(name)
    return None if not value else value if len(value) <= LONGEST else f"<redacted {len(value)} bytes>"


def _rest(item: SideData, data: bytes) -> SideData:
    """Return the last bytes of an item."""
    return (
        item
        if len(data) == len(item.data)
        else msgspec.structs.replace(item, position=item.position + len(item.data) - len(data), data=data)
    )
