"""The first cases of fuzzing: the captures, and the bytes that the two sides of their conversations send."""

from __future__ import annotations

import struct
from functools import cache
from pathlib import Path

from streamdump.capture.files import open_capture
from streamdump.inspector import Inspector
from streamdump.model import Gap, Message, Options
from streamdump.tls.keys import LABELS, logged
from tests.fuzz.targets import KEYS, LINKS, PORTS, program, segments
from tests.support.rewrite import packets, tcp_offset
from tests.support.websocket import upgraded

CAPTURES = Path(__file__).parents[2] / "captures"

LARGEST = 6_000
"""Bytes of the longest seed: longer ones are slow and reach the same code."""


SETTINGS = [
    b'[check]\nonly = "handshake"\nheartbeats = true\nignore = ["fields.chunk.timestamp", "size"]\nkeep = ["offset"]\n',
    b'[check.mask]\ntype = ["token"]\ntext = { uuid = "[0-9a-f]{8}-[0-9a-f-]{27}" }\n[check.max_latency]\nOpen = "50ms"\n',
    b'[check.mask.pattern]\nreference = "w-[0-9]+"\n[check.iggy]\nignore = ["checksum"]\n[check.iggy.poll_messages]\nkeep = ["count"]\n',
]


@cache
def talks() -> dict[str, list[bytes]]:
    """Return programs of the captured conversations of each protocol, cut at `LARGEST` bytes."""
    found: dict[str, list[bytes]] = {name: [] for name in PORTS}
    for path in sorted(CAPTURES.rglob("*.pcap*")):
        if path.suffix not in (".pcap", ".pcapng"):
            continue
        inspector = Inspector([open_capture(path)], Options(detail=True))
        sent: dict[int, list[tuple[int, bytes]]] = {}
        size: dict[int, int] = {}
        whole = set()
        ends: dict[int, str] = {}
        for record in inspector.records():
            which = record.conversation
            if isinstance(record, Gap):
                whole.add(which)
            elif isinstance(record, Message) and record.raw is not None and which not in whole:
                data = bytes(record.raw["frame"])
                size[which] = size.get(which, 0) + len(data)
                if size[which] > LARGEST:
                    whole.add(which)
                else:
                    side = 0 if record.src == ends.setdefault(which, record.src) else 1
                    sent.setdefault(which, []).append((side, data))
        for tracked in inspector.table.conversations:
            said = sent.get(tracked.tcp.index)
            if said and tracked.verdict is not None:
                found[tracked.verdict.protocol].append(program(said))
    return {name: list(dict.fromkeys(some)) for name, some in found.items()}


@cache
def seeds(target: str) -> list[bytes]:
    """Return the seeds of a target, at least one."""
    small = [path for path in sorted(CAPTURES.rglob("*.pcap*")) if path.stat().st_size <= LARGEST and path.suffix != ".golden"]
    if target in PORTS:
        found = talks()[target]
    elif target == "detect":
        found = [one for some in talks().values() for one in some[:20]]
    elif target == "files":
        found = [path.read_bytes() for path in small]
    elif target == "tls":
        found = _sealed()
    elif target == "websocket":
        sent = [[(one.side, one.data) for one in segments(some)[1]] for some in talks()["iggy"][:10]]
        wrapped = [upgraded(some[:20], piece)[2:] for piece in (0, 5) for some in sent]
        found = [program(some, syn) for syn in (True, False) for some in wrapped]
    elif target == "scylla":
        found = _scylla()
    elif target == "key-logs":
        found = [b"".join(logged(open_capture(KEYS))), b"# none\n", f"{LABELS[0]} {'0a' * 32} {'1b' * 48}\r\n".encode() * 2]
    elif target == "goldens":
        found = [path.read_bytes() for path in sorted(CAPTURES.rglob("*.golden")) if path.stat().st_size <= LARGEST]
    elif target == "settings":
        found = SETTINGS
    elif target == "links":
        found = [_links(path) for path in small]
    elif target == "tcp":
        found = [_tcp(path) for path in small]
    elif target == "entries":
        message = b"\0Sp\xc0\3\2AP\5\0Ss\xd0\0\0\0\x11\0\0\0\2R\1\xa1\4user\0St\xc1\7\2\xa1\1kU\3\0Su\xa0\5hello"
        found = [bytes([how]) + data for how in range(8) for data in (message, struct.pack(">I", len(message)) + message)]
        found.append(b"\0\x00\x53\x77\xd1\0\0\0\x10\0\0\0\4\xa1\1a\x54\1\xa1\1b\x45\xc1\3\2\x41\x42\xe0\4\2\x54\1\2")
    elif target == "logins":
        found = [
            bytes([number]) + bytes((frame, 0, place, 1 << place % 8)) * 2
            for number in range(256)
            for frame in (2, 4)
            for place in (3, 9, 30)
        ]
    else:
        found = [
            b"\x10a\0\1\0\0\0\x02s\0\x02\0\0\0x\0\x08b\0\1\x12l\0" + bytes(8) + b"\x09d\0" + bytes(8),
            b"\x03o\0\x0c\0\0\0\x10a\0\1\0\0\0\0\x04l\0\x0c\0\0\0\x100\0\1\0\0\0\0\x05y\0\2\0\0\0\0ab\x07i\0" + bytes(12),
            b"\x0br\0a\0i\0\x13m\0" + bytes(16) + b"\x0fc\0\x0f\0\0\0\2\0\0\0x\0\x05\0\0\0\0\x11t\0" + bytes(8) + b"\xffm\0\x7fn\0\x06u\0",
        ]
    return found or [b""]


def _links(path: Path) -> bytes:
    some = packets(path)[:30]
    kind = LINKS.index(some[0].link) if some and some[0].link in LINKS else 0
    return bytes([kind]) + b"".join(bytes([min(len(one.raw), 255)]) + one.raw[:255] for one in some)


def _tcp(path: Path) -> bytes:
    parts = []
    places = [1, 1]
    for one in packets(path)[:40]:
        data = one.raw[66:266]
        side = one.raw[-1:] < b"\x40"
        parts.append(struct.pack("<BBHHIBx", side, 16, places[side] & 0xFFFF, places[1 - side] & 0xFFFF, 1000, len(data)) + data)
        places[side] += len(data)
    return b"".join(parts)


def _scylla() -> list[bytes]:
    """The first frames of SCYLLA_V3 in each capture that has any, behind the negotiation and without it."""
    found = []
    for path in sorted((CAPTURES / "golden" / "seastar-rpc").glob("scylla_v3_*.pcap")):
        records = Inspector([open_capture(path)], Options(detail=True)).records()
        frames = [one for one in records if isinstance(one, Message) and one.raw is not None and one.name != "Negotiation"]
        said = [(int(one.sender == "server"), bytes(one.raw["frame"])) for one in frames if one.raw is not None]
        while sum(len(data) for _, data in said) > LARGEST:
            said.pop()
        found += [program(said), program(said, syn=False)] if said else []
    return found


def _sealed() -> list[bytes]:
    """Return programs of the TLS connections in `KEYS`."""
    sent: dict[frozenset[int], list[tuple[int, bytes]]] = {}
    for packet in packets(KEYS):
        at = tcp_offset(packet)
        if at is not None:
            ports = struct.unpack_from(">HH", packet.raw, at)
            data = packet.raw[at + (packet.raw[at + 12] >> 4) * 4 :]
            if data:
                sent.setdefault(frozenset(ports), []).append((int(ports[0] < ports[1]), data))
    return [program(one) for one in sent.values()]
