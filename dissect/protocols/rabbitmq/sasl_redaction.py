"""Which frames of a handshake may be shown, by position in the handshake rather than by command.

From the client's SaslHandshake, or the start of the capture, until the server accepts, any client frame may contain a password: one
flipped bit makes its key another command, and a wrong size moves its end. So the position in the handshake decides, and only valid
frames advance it.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import NamedTuple

HANDSHAKE = frozenset(("PeerProperties", "SaslHandshake", "SaslAuthenticate", "Tune", "Open", "Close", "Heartbeat"))
"""Messages sent before a connection is open."""

_ALWAYS = frozenset(("PeerProperties", "Heartbeat"))
_LAST = frozenset(("Tune", "Open"))

MAX_WAIT_FRAMES = 64
"""The number of server frames to wait for a login that was accepted before it was captured."""

LOGIN_INSIDE = rb".{4}\x00[\x01-\x14][A-Z0-9_-]"
"""What follows key and version of SaslAuthenticate, wherever it lies: a frame whose size is wrong may hold it."""

_MECHANISM = re.compile(r"[A-Z0-9_-]{1,20}")
_LOGIN = re.compile(
    rb"\x00[\x03-\x14](?:(?:AMQ)?PLAIN|EXTERNAL|ANONYMOUS|LOGIN|RABBIT-CR-DEMO|X?OAUTH|SCRAM-|CRAM-|DIGEST-|GS2-|GSSAPI|KERBEROS|NTLM)"
)

_PLAIN_DATA = re.compile(rb"\x00([^\x00]+)\x00[^\x00]+|\x00([^\x00 @]+)\x00|[!-?A-~][^\x00]*\x00([^\x00]+)\x00[^\x00]+")
"""The data of PLAIN, authzid NUL user NUL password (RFC 4616): as clients send it, without a password, with an authzid.

A NUL of which one bit is flipped reads as blank or @ where it reads as text: none of these may make a password the name.
"""

MECHANISM_AT = 12
"""Where the name of the mechanism stands in SaslAuthenticate."""


def is_mechanism(name: object) -> bool:
    """Whether this is the name of a SASL mechanism (RFC 4422)."""
    return type(name) is str and _MECHANISM.fullmatch(name) is not None


def mechanism_size(data: bytes, start: int, end: int) -> int:
    """Return the size in bytes of the mechanism name, length included, at its offset in SaslAuthenticate; 0 if there is none."""
    at = start + MECHANISM_AT
    if end < at + 2 or data[at] or not 0 < data[at + 1] <= 20:
        return 0
    size = 2 + data[at + 1]
    return size if end >= at + size and is_mechanism(data[at + 2 : at + size].decode("latin-1")) else 0


def may_be_login(data: bytes, start: int, end: int) -> bool:
    """Whether a mechanism, or as much of one as there are bytes, stands where SaslAuthenticate has it."""
    at = start + MECHANISM_AT
    if end < at + 3 or data[at] or not 0 < data[at + 1] <= 20:
        return False
    return is_mechanism(data[at + 2 : min(at + 2 + data[at + 1], end)].decode("latin-1"))


def is_login(data: bytes, start: int, end: int) -> bool:
    """Whether a mechanism that is in use stands where SaslAuthenticate has it, and data behind it; or any, whose data fills the frame."""
    if end > start + MECHANISM_AT + 6 and _LOGIN.match(data, start + MECHANISM_AT, end) is not None:
        return True
    at = start + MECHANISM_AT + mechanism_size(data, start, end)
    return start + MECHANISM_AT < at < end - 4 and int.from_bytes(data[at : at + 4], "big") == end - at - 4


def is_challenge(data: bytes, start: int, end: int, code: int) -> bool:
    """Whether the code of a challenge stands where SaslAuthenticate has it, and data behind it that fill the frame."""
    at = start + MECHANISM_AT
    if data[at : at + 2] != code.to_bytes(2, "big"):
        return False
    begin = at + 2
    return any(end > begin + size and int.from_bytes(data[begin : begin + size], "big") == end - begin - size for size in (2, 4))


class HandshakePlace(Enum):
    """Where the client is."""

    BEFORE = "before its SaslHandshake"
    INSIDE = "where passwords are sent"
    LEAVING = "accepted, but what began before that may still come"
    OUTSIDE = "where no password is expected"


class SeenFrame(NamedTuple):
    """A frame as the login tracking sees it."""

    name: str
    """Empty where key and version are not known, or only the other side sends it."""
    sound: bool
    """It matches its layout."""
    trusted: bool
    """It begins where a valid frame ends."""
    login: bool
    """The name of a mechanism that is in use stands where SaslAuthenticate has it, or SaslAuthenticate lies within."""
    began: int
    """The first packet that brought bytes of it."""
    spread: bool
    """Other packets brought bytes of it too."""
    current: int
    """The packet that completed it."""


class SaslRedaction:
    """Follows one connection's handshake; `place` is where the client's next frame stands."""

    __slots__ = ("ahead", "answers", "flawed", "least", "logins", "loose", "place", "renewal", "server_frames", "trusted", "until")

    def __init__(self, from_start: bool, ahead: int, show_secrets: bool) -> None:
        """`ahead`: the number of frames the client sends before SaslAuthenticate."""
        self.place = HandshakePlace.OUTSIDE if show_secrets else HandshakePlace.BEFORE if from_start else HandshakePlace.INSIDE
        self.loose = not from_start
        """Whether frames may have been missed: then a frame that only an open connection sends shows that it is open."""
        self.renewal = False
        """Whether this handshake renews the credentials of a connection that goes on meanwhile."""
        self.ahead = ahead if from_start else 0
        self.least = ahead + 1
        """The number of frames a server sends before Tune: one for each of these, and the response to SaslAuthenticate."""
        self.server_frames = 0
        """Frames of the server, but for heartbeats, as long as a password may come."""
        self.logins = self.answers = 0
        """Numbers of frames that may have been SaslAuthenticate, and of responses to them."""
        self.until = 0
        """The packet that showed that the client was accepted."""
        self.flawed = -1
        """The packet with which the client's last frame that has a flaw was certain, on an open connection: in it, or one before it, bytes
        begin that are not a frame, in which a renewed credential may lie."""
        self.trusted = [True, True]
        """By side, whether the next frame begins where the one before it, read without a flaw, ends."""

    def begin(self) -> None:
        """The client sends SaslHandshake: where it stands is certain from here on, until frames may be missed again."""
        self.count_early_frame()
        self.enter()
        self.loose = False

    def enter(self) -> None:
        """The client sends SaslHandshake, or what follows it."""
        if self.place is HandshakePlace.BEFORE:
            self.place = HandshakePlace.INSIDE
        elif self.place is HandshakePlace.OUTSIDE:
            self.place, self.renewal = HandshakePlace.INSIDE, True
            self.logins = self.answers = self.server_frames = 0

    def count_early_frame(self) -> None:
        """The client sends one of the frames before SaslAuthenticate."""
        self.ahead = max(self.ahead - 1, 0)

    def on_login(self, sound: bool) -> None:
        """The client sends SaslAuthenticate, or what may have been one."""
        if self.place is not HandshakePlace.OUTSIDE or not sound:
            self.enter()
            if sound or not self.ahead:
                self.logins += 1
            self.count_early_frame()

    def lose(self) -> None:
        """Frames of either side may have been missed."""
        if self.place is not HandshakePlace.OUTSIDE:
            self.loose = True
            self.enter()

    def on_server_frame(self, seen: SeenFrame, accepts: bool) -> bool:
        """Advance with a server frame and return whether it is shown under its name; `accepts`: it accepts the client."""
        if self.place is not HandshakePlace.OUTSIDE and seen.name != "Heartbeat":
            self.server_frames += 1
        if not seen.sound:
            self.answers += self.place is HandshakePlace.INSIDE and self.server_frames >= self.least
            inside = self.place in (HandshakePlace.BEFORE, HandshakePlace.INSIDE) or seen.began < self.until
            shown = seen.name in HANDSHAKE or not inside
            if seen.spread and (self.place is HandshakePlace.INSIDE or seen.began < self.until):
                # One that includes what follows it, in other packets, may hold what the server sends back to a login
                shown = seen.name == "SaslAuthenticate"
            return not seen.login and shown
        if self.place is not HandshakePlace.OUTSIDE:
            self.answers += seen.name == "SaslAuthenticate"
            if accepts and (seen.name == "SaslAuthenticate" or self._may_open()):
                self._leave(HandshakePlace.LEAVING, seen.current)
            elif seen.name not in HANDSHAKE and self._is_open():
                self._leave(HandshakePlace.OUTSIDE, seen.current)
        elif seen.name == "SaslHandshake":
            self.enter()
        return True

    def _may_open(self) -> bool:
        """Return whether the server may send Tune or Open now: damage turns other frames into either."""
        return not self.renewal and (self.loose or self.server_frames > self.least)

    def _is_open(self) -> bool:
        """Whether what only an open connection sends shows that this one is: where its beginning may have been missed, and where the
        login that was accepted is captured late, or never."""
        return (
            self.server_frames > self.least + MAX_WAIT_FRAMES if self.place is HandshakePlace.LEAVING else self.loose and not self.renewal
        )

    def shows(self, seen: SeenFrame, first: bool, doubtful: bool) -> bool:
        """Advance with a client frame and return whether it is shown under its name (of SaslAuthenticate, only the data is redacted).

        `first`: it is the first of the connection. `doubtful`: a mechanism name may be where SaslAuthenticate has one.
        """
        name, sound = seen.name, seen.sound
        # Tune comes there; any other that has a flaw and includes other packets is perhaps where no frame begins
        begins = sound or (seen.trusted and (name in _LAST or not seen.spread))
        if self.place is HandshakePlace.LEAVING and seen.began >= self.until and self.logins >= max(self.answers, 1) and begins:
            self.place = HandshakePlace.OUTSIDE
        place = self.place
        if sound and name in _ALWAYS and not seen.login:
            if name == "PeerProperties":
                self.count_early_frame()
            return True
        if name == "SaslHandshake" and sound:
            self.begin()
            return True
        if name == "SaslAuthenticate":
            self.on_login(sound)
            return True
        if place is HandshakePlace.OUTSIDE:
            astray = not name and seen.began <= self.flawed
            if not sound:
                self.flawed = seen.current
            if sound or not (astray or seen.login or name == "SaslHandshake" or seen.began < self.until):
                return True
            if seen.login or name == "SaslHandshake":
                self.on_login(False)
            return False
        if place is HandshakePlace.BEFORE and (sound or (first and name == "PeerProperties")) and not seen.login:
            self.count_early_frame()
            return True
        if sound and name in _LAST and not doubtful:
            # Not where the server has but challenged the client so far; all may be certain at once, when keys come late
            if self.loose or self.logins > self.answers or (place is HandshakePlace.LEAVING and seen.current == self.until):
                self._leave(HandshakePlace.OUTSIDE, seen.current)
            return True
        if sound and (self.loose or self.renewal):
            if not (doubtful or self.renewal or name in HANDSHAKE):
                self._leave(HandshakePlace.OUTSIDE, seen.current)
            return True
        self.on_login(sound)
        return False

    def _leave(self, place: HandshakePlace, current: int) -> None:
        """No password is expected in what begins from this packet on, or from the one that let a client in whose login was seen, if it is
        known where that ends."""
        if self.place is not HandshakePlace.LEAVING or self.logins < self.answers or not all(self.trusted):
            self.until = current
        self.place = place


def username(mechanism: object, data: bytes) -> str | None:
    """Return the user name in the data of PLAIN or AMQPLAIN; None if it does not parse."""
    name: bytes | None = None
    if mechanism == "PLAIN":
        found = _PLAIN_DATA.fullmatch(data)
        name = None if found is None else found[found.lastindex or 0]
    elif mechanism == "AMQPLAIN":
        name = _login(data)
    try:
        text = (name or b"").decode()
    except UnicodeDecodeError:
        return None
    return text if text.isprintable() and text else None


def _login(data: bytes) -> bytes | None:
    """LOGIN in a table of AMQP 0-9-1 that holds it and PASSWORD, both long strings, once each."""
    strings = long_strings(data) or []
    found = {name: data[begin:end] for name, begin, end in strings}
    return found[b"LOGIN"] if len(found) == len(strings) and found.keys() >= {b"LOGIN", b"PASSWORD"} else None


def long_strings(data: bytes) -> list[tuple[bytes, int, int]] | None:
    """Return name, start and end of each value in an AMQP 0-9-1 table of long strings; None if it is not one."""
    found: list[tuple[bytes, int, int]] = []
    at = 0
    while at < len(data):
        name = data[at + 1 : at + 1 + data[at]]
        begin = at + 1 + data[at] + 5
        at = begin + int.from_bytes(data[begin - 4 : begin], "big")
        if data[begin - 5 : begin - 4] != b"S" or at > len(data):
            return None
        found.append((name, begin, at))
    return found
