"""Conversations that begin with a login, in every family that has one, with a secret planted where one belongs; and ways to damage them."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import bson as pymongo

from tests.support.frames import START_NS, A, Packet, pcap
from tests.support.secrets import CLIENT, SERVER, Lost, Sent, conversation

SECRET = b"Zq7#kV9!xW2$mP4&"
"""No six bytes of it occur in anything else here, in either direction."""

USER = b"alice"


class Login(NamedTuple):
    """A conversation with a secret in it."""

    name: str
    protocol: str
    layout: str | None
    port: int
    sent: tuple[Sent, ...]

    def forced(self) -> tuple[tuple[int, str, str | None], ...]:
        return ((self.port, self.protocol, self.layout),)


# RabbitMQ Streams

MECHANISMS: dict[str, tuple[bytes, ...]] = {
    "PLAIN": (b"\0" + USER + b"\0" + SECRET,),
    "AMQPLAIN": (b"\5LOGINS" + struct.pack(">I", len(USER)) + USER + b"\x08PASSWORDS" + struct.pack(">I", len(SECRET)) + SECRET,),
    "EXTERNAL": (SECRET,),
    "SCRAM-SHA-256": (b"n,,n=" + USER + b",r=" + SECRET, b"c=biws,r=" + SECRET + b",p=" + SECRET),
    "X-HOUSE_9": (SECRET + SECRET,),
}
"""What the client sends, round by round."""

KEYS = {"PeerProperties": 0x11, "SaslHandshake": 0x12, "SaslAuthenticate": 0x13, "Tune": 0x14, "Open": 0x15, "Create": 0x0D}
DRAFT_KEYS = {"SaslHandshake": 9, "SaslAuthenticate": 10, "Tune": 11, "Open": 12, "Create": 998}


def text(value: str | bytes) -> bytes:
    raw = value if isinstance(value, bytes) else value.encode()
    return struct.pack(">h", len(raw)) + raw


def _properties(*pairs: str) -> bytes:
    return struct.pack(">i", len(pairs) // 2) + b"".join(map(text, pairs))


def stream_frame(name: str, *parts: bytes, draft: bool = False, answers: bool = False) -> bytes:
    body = b"".join(parts)
    key = DRAFT_KEYS[name] if draft else KEYS[name] | (0x8000 if answers else 0)
    return struct.pack(">IHH", 4 + len(body), key, 0 if draft else 1) + body


def rabbitmq(mechanism: str, draft: bool = False) -> Login:
    """A handshake with this mechanism, and a request behind it."""

    def ask(name: str, ident: int | None, *parts: bytes) -> Sent:
        head = b"" if ident is None else struct.pack(">I", ident)
        return CLIENT, stream_frame(name, head, *parts, draft=draft)

    def answer(name: str, ident: int | None, *parts: bytes, code: int | None = None) -> Sent:
        head = b"" if ident is None else struct.pack(">IH", ident, (0 if draft else 1) if code is None else code)
        return SERVER, stream_frame(name, head, *parts, draft=draft, answers=ident is not None)

    rounds = MECHANISMS[mechanism]
    sent: list[Sent] = []
    if not draft:
        sent += [ask("PeerProperties", 1, _properties("product", "x"))]
        sent += [answer("PeerProperties", 1, _properties("product", "RabbitMQ", "version", "4"))]
    sent += [ask("SaslHandshake", 2), answer("SaslHandshake", 2, struct.pack(">i", 2), text("PLAIN"), text(mechanism))]
    for number, data in enumerate(rounds, 3):
        sent.append(ask("SaslAuthenticate", number, text(mechanism), struct.pack(">i", len(data)), data))
        if data is not rounds[-1]:
            size = struct.pack(">i" if draft else ">H", len(SECRET))
            sent.append(answer("SaslAuthenticate", number, size, SECRET, code=9 if draft else 10))
    sent.append(answer("SaslAuthenticate", 2 + len(rounds)))
    sent += [(side, stream_frame("Tune", struct.pack(">II", 1 << 20, 60), draft=draft)) for side in (SERVER, CLIENT)]
    sent += [ask("Open", 7, text("/")), answer("Open", 7, b"" if draft else _properties("advertised_host", "h"))]
    sent += [ask("Create", 8, text("orders"), _properties()), answer("Create", 8)]
    protocol = "rabbitmq-stream-draft" if draft else "rabbitmq-stream"
    return Login(f"{mechanism}{' draft' if draft else ''}", protocol, None, 5552, tuple(sent))


RABBITMQ = tuple(rabbitmq(mechanism, draft) for mechanism in MECHANISMS for draft in (False, True))


# Apache Iggy

ONE = bytes.fromhex("01 04 01000000")


def _s8(value: bytes) -> bytes:
    return bytes([len(value)]) + value


def _s32(value: bytes) -> bytes:
    return struct.pack("<I", len(value)) + value


def request(code: int, payload: bytes = b"") -> bytes:
    return struct.pack("<II", 4 + len(payload), code) + payload


def response(payload: bytes = b"", status: int = 0) -> bytes:
    return struct.pack("<II", status, len(payload)) + payload


def long_request(operation: int, code: int = 0, body: bytes = b"") -> bytes:
    head = bytearray(256)
    struct.pack_into("<I", head, 48, 256 + len(body))
    head[60] = 5
    head[128:144] = b"c" * 16
    head[168], head[176] = 1, operation
    struct.pack_into("<I", head, 196, code)
    return bytes(head) + body


def long_reply(operation: int, body: bytes = b"") -> bytes:
    head = bytearray(256)
    struct.pack_into("<I", head, 48, 256 + len(body))
    head[60] = 8
    head[160:176] = b"c" * 16
    head[200], head[208] = 1, operation
    return bytes(head) + body


_BACKWARDS = SECRET[::-1]
_USER = struct.pack("<IQB", 2, 1_700_000_000_000_000, 1) + _s8(b"bobby") + bytes(4)
_VERSION = _s8(b"rust") + _s8(b"0.9.0")
_REGISTERED = bytes(4) + struct.pack("<IQI", 1, 1, 0x2C00) + _s8(b"0.9.0")


def _classic(layout: str, what: str, asked: bytes, answered: bytes) -> Login:
    pings: list[Sent] = [(CLIENT, request(1)), (SERVER, response())]
    rest: list[Sent] = [(CLIENT, request(203, ONE)), (SERVER, response())]
    return Login(f"{what} {layout}", "iggy", layout, 8090, (*pings, (CLIENT, asked), (SERVER, answered), *pings, *rest))


def _long(layout: str, what: str, asked: bytes, answered: bytes) -> Login:
    pings: list[Sent] = [(CLIENT, long_request(2, 1)), (SERVER, long_reply(2))]
    return Login(f"{what} {layout}", "iggy", layout, 8090, (*pings, (CLIENT, asked), (SERVER, answered), *pings))


def iggy() -> list[Login]:
    """Every command that carries a password or a token, in layouts of both framings."""
    logins: list[Login] = []
    for layout in ("L0", "L5", "L9"):
        late = layout == "L9"
        login = _s8(USER) + _s8(SECRET) + (_s32(b"0.9.0") + _s32(b"rust") if late else b"")
        logins += [
            _classic(layout, "login_user", request(38, login), response(struct.pack("<I", 1))),
            _classic(layout, "create_user", request(33, _s8(b"bobby") + _s8(SECRET) + b"\1\0"), response(_USER if late else b"")),
            _classic(layout, "change_password", request(37, ONE + _s8(SECRET) + _s8(_BACKWARDS)), response()),
        ]
        if layout != "L0":
            token = _s8(b"mytoken") + bytes(8 if late else 4)
            logins += [
                _classic(layout, "create_personal_access_token", request(42, token), response(_s8(SECRET))),
                _classic(layout, "login_with_personal_access_token", request(44, _s8(SECRET)), response(struct.pack("<I", 1))),
            ]
        else:
            logins.append(_classic(layout, "login_user of 0.0.4", request(32, login), response()))
    register = struct.pack("<I", 0x2C00) + _VERSION
    for layout, options in (("V2", b""), ("V4", bytes(4))):
        logins += [
            _long(layout, "login_register", long_request(1, 0, register + _s8(USER) + _s8(SECRET) + _s32(b"")), long_reply(1, _REGISTERED)),
            _long(
                layout,
                "login_register with a bind secret",
                long_request(1, 0, register + SECRET + _BACKWARDS + _s8(USER) + _s8(SECRET) + _s32(b"")),
                long_reply(1, _REGISTERED),
            ),
            _long(layout, "login_register_with_pat", long_request(1, 0, register + _s8(SECRET) + _s32(b"")), long_reply(1, _REGISTERED)),
            _long(
                layout,
                "create_user",
                long_request(141, 0, _s8(b"bobby") + _s8(SECRET) + b"\1\0"),
                long_reply(141, bytes(4) + _USER + options),
            ),
            _long(layout, "change_password", long_request(144, 0, ONE + _s8(SECRET) + _s8(_BACKWARDS)), long_reply(144, bytes(4))),
            _long(
                layout,
                "create_personal_access_token",
                long_request(146, 0, _s8(b"mytoken") + bytes(8)),
                long_reply(146, bytes(4) + _s8(SECRET)),
            ),
            _long(layout, "login_with_personal_access_token", long_request(2, 44, _s8(SECRET)), long_reply(2, struct.pack("<I", 1))),
        ]
    register = struct.pack("<I", 0x3000) + _VERSION
    bound = register + b"c" * 16 + struct.pack("<QQ", 7, 1) + SECRET + _BACKWARDS
    entered = register + SECRET + _BACKWARDS
    key = b"\2" + _s32(b"encryption_key") + b"\1" + _s32(SECRET + _BACKWARDS)
    stream = struct.pack("<IQIQQ", 1, 1_700_000_000_000_000, 0, 0, 0) + _s8(b"orders") + bytes(8)
    logins += [
        _long("V5", "session.bind", long_request(2, 15, bound), long_reply(2)),
        _long("V5", "login_register", long_request(1, 0, entered + _s8(USER) + _s8(SECRET) + _s32(b"")), long_reply(1, _REGISTERED)),
        _long("V5", "login_register_with_pat", long_request(1, 0, entered + _s8(SECRET) + _s32(b"")), long_reply(1, _REGISTERED)),
        _long("V5", "create_stream with a key", long_request(128, 0, _s8(b"orders") + key), long_reply(128, bytes(4) + stream)),
    ]
    return logins


IGGY = tuple(iggy())


# mewbase

_NAME, _WORD = USER.decode(), SECRET.decode()

CONNECTS: dict[str, dict[str, Any]] = {
    "username and password": {"version": "0.1", "authInfo": {"username": _NAME, "password": _WORD}},
    "password and user": {"version": "0.1", "authInfo": {"password": _WORD, "user": _NAME}},
    "token": {"version": "0.1", "authInfo": {"token": _WORD}},
    "nested": {"version": "0.1", "authInfo": {"cred": {"kind": 1, "data": [_WORD, SECRET]}}},
    "binary": {"authInfo": {"username": _NAME, "key": SECRET}, "version": "0.1"},
    "without authInfo": {"version": "1.0", "username": _NAME, "password": _WORD},
}


def _mewbase(name: str, rest_only: bool) -> Login:
    def frame(kind: str, **fields: Any) -> bytes:
        data: bytes = pymongo.encode({"type": kind, "frame": fields})
        # as the protocol's document has it
        return struct.pack("<i", len(data) - 4) + data[4:] if rest_only else data

    sent: tuple[Sent, ...] = (
        (CLIENT, frame("CONNECT", **CONNECTS[name])),
        (SERVER, frame("RESPONSE", ok=True)),
        (CLIENT, frame("PUB", channel="orders", sessID=0, event={"a": 1}, rID=0)),
        (SERVER, frame("RESPONSE", ok=True, rID=0)),
        (CLIENT, frame("LISTBINDERS", rID=1)),
        (SERVER, frame("RESPONSE", ok=True, binders=["b1"], rID=1)),
    )
    return Login(f"{name}{', lengths of the rest' if rest_only else ''}", "mewbase", None, 7451, sent)


MEWBASE = tuple(_mewbase(name, rest_only) for name in CONNECTS for rest_only in (False, True))


# Damage


def flipped(login: Login, index: int, bit: int) -> list[Sent]:
    """The segments of a login with one bit of one of them flipped."""
    sent = list(login.sent)
    side, data = sent[index]
    raw = bytearray(data)
    raw[bit // 8] ^= 1 << bit % 8
    sent[index] = side, bytes(raw)
    return sent


Change = Callable[[Random, bytearray], None]


def _bit(random: Random, data: bytearray) -> None:
    at = random.randrange(len(data) * 8)
    data[at // 8] ^= 1 << at % 8


def _byte(random: Random, data: bytearray) -> None:
    data[random.randrange(len(data))] = random.choice((0, random.randrange(256)))


def _insert(random: Random, data: bytearray) -> None:
    at = random.randrange(len(data))
    data[at:at] = random.randbytes(random.randrange(1, 9))


def _delete(random: Random, data: bytearray) -> None:
    at = random.randrange(len(data))
    del data[at : at + random.randrange(1, 9)]


def _truncate(random: Random, data: bytearray) -> None:
    del data[random.randrange(1, len(data) + 1) :]


def _size(random: Random, data: bytearray, order: str, at: int) -> None:
    near = len(data) + random.randrange(-40, 60)
    size = random.choice((near, random.randrange(4, 80), len(data) + random.randrange(300), random.randrange(1 << 20)))
    if len(data) >= at + 4:
        struct.pack_into(f"{order}I", data, at, max(0, size))


def _stream_key(random: Random, data: bytearray) -> None:
    if len(data) >= 6:
        key = random.choice((random.randrange(32), random.randrange(32) | 0x8000, random.randrange(1 << 16), 998, 999))
        struct.pack_into(">H", data, 4, key)


def changes(login: Login) -> list[Change]:
    """What can happen to a frame of this protocol."""
    found: list[Change] = [_bit, _bit, _bit, _byte, _insert, _delete, _truncate]
    if login.protocol.startswith("rabbitmq"):
        found += [lambda random, data: _size(random, data, ">", 0), _stream_key]
    elif login.protocol == "mewbase":
        found += [lambda random, data: _size(random, data, "<", 0)]
    else:
        at = 48 if login.layout is not None and login.layout.startswith("V") else 0
        found += [lambda random, data: _size(random, data, "<", at)]
    return found


def damaged(random: Random, login: Login, times: int) -> list[Packet]:
    """A capture of a login of which up to so many frames are damaged, cut into other segments, captured in part or in another order."""
    sent: list[Sent | Lost] = list(login.sent)
    secret = [index for index, (_, data) in enumerate(login.sent) if SECRET in data]
    every = changes(login)
    for _ in range(random.randint(1, times)):
        index = random.choice(secret) if random.random() < 0.5 else random.randrange(len(sent))
        side, data = login.sent[index] if isinstance(sent[index], Lost) else sent[index]
        assert isinstance(data, bytes)
        raw = bytearray(data)
        if raw:
            random.choice(every)(random, raw)
        sent[index] = side, bytes(raw)
    if random.random() < 0.25:
        index = random.randrange(len(sent))
        side, data = sent[index]
        sent[index] = Lost(side, len(data)) if isinstance(data, bytes) else sent[index]
    if random.random() < 0.15:
        index = random.randrange(len(sent) - 1)
        sent[index : index + 2] = sent[index + 1], sent[index]
    if random.random() < 0.3:
        size = random.choice((1, 3, 7, 20, 60))
        sent = [piece for one in sent for piece in _pieces(one, size)]
    syn = random.random() < 0.7
    if not syn and random.random() < 0.8:
        sent = sent[random.randrange(len(sent)) :]
    packets = conversation(sent, random.choice((login.port, 9999)), syn=syn)
    if random.random() < 0.15 and packets:
        index = random.randrange(len(packets))
        moved = packets.pop(index)
        packets.insert(max(0, index + random.choice((-3, -2, -1, 1, 2, 3))), moved)
        packets = [packet._replace(time_ns=START_NS + number * 1_000_000) for number, packet in enumerate(packets)]
    if random.random() < 0.1:
        client = random.random() < 0.5
        packets = [packet for packet in packets if (packet.data[26:30] == A) == client]
    if random.random() < 0.15:
        snap = random.randrange(60, 200)
        packets = [packet._replace(data=packet.data[:snap], wire=len(packet.data)) for packet in packets]
    return packets


def _pieces(one: Sent | Lost, size: int) -> Sequence[Sent | Lost]:
    side, data = one
    return [(side, data[at : at + size]) for at in range(0, len(data), size)] if isinstance(data, bytes) else [one]


def login_captures(folder: Path) -> list[Path]:
    """Write a capture of each login, and one of it damaged."""
    for at, login in enumerate((*RABBITMQ, *IGGY, *MEWBASE)):
        (folder / f"{at:02}.pcap").write_bytes(pcap(conversation(login.sent, login.port)))
        (folder / f"{at:02}-0.pcap").write_bytes(pcap(damaged(Random(f"file {login.name} 0"), login, 2)))
    return sorted(folder.glob("*.pcap"))
