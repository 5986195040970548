"""Frames between replicas of Apache Iggy, byte by byte from the facts: nothing of the decoder is used."""

from __future__ import annotations

from struct import pack
from typing import Any

from xxhash import xxh3_64_intdigest

CLUSTER = 0x5EED_0001_5EED_0002_5EED_0003_5EED_0004
METADATA = 1 << 63
MICROSECONDS = 1_764_000_000_000_000

COMMANDS: dict[str, tuple[int, dict[str, tuple[int, int]]]] = {
    "Request": (
        5,
        {
            "client": (128, 16),
            "request_checksum": (144, 16),
            "request": (168, 8),
            "operation": (176, 1),
            "session": (184, 8),
            "user": (192, 4),
            "code": (196, 4),
            "group": (248, 8),
        },
    ),
    "Prepare": (
        6,
        {
            "client": (128, 16),
            "parent": (144, 16),
            "request_checksum": (160, 16),
            "op": (176, 8),
            "commit": (184, 8),
            "timestamp": (192, 8),
            "request": (200, 8),
            "operation": (208, 1),
            "group": (216, 8),
            "user": (224, 4),
        },
    ),
    "PrepareOk": (
        7,
        {
            "parent": (128, 16),
            "prepare_checksum": (144, 16),
            "op": (160, 8),
            "commit": (168, 8),
            "timestamp": (176, 8),
            "request": (184, 8),
            "operation": (192, 1),
            "group": (200, 8),
        },
    ),
    "Commit": (9, {"monotonic": (144, 8), "commit": (152, 8), "group": (168, 8)}),
    "StartViewChange": (10, {"group": (128, 8)}),
    "DoViewChange": (
        11,
        {"op": (128, 8), "commit": (136, 8), "group": (144, 8), "log_view": (152, 4), "nack": (224, 16), "present": (240, 16)},
    ),
    "StartView": (12, {"op": (128, 8), "commit": (136, 8), "group": (144, 8), "incarnation": (240, 16)}),
    "ReplicaHello": (14, {"nonce": (128, 32)}),
    "ReplicaChallenge": (15, {"nonce": (128, 32), "mac": (160, 32), "status": (192, 1)}),
    "ReplicaFinish": (16, {"mac": (160, 32)}),
    "RequestStartView": (17, {"group": (128, 8), "incarnation": (240, 16)}),
    "RequestPrepares": (18, {"nonce": (128, 16), "from_op": (144, 8), "to_op": (152, 8), "group": (160, 8)}),
    "RepairDone": (20, {"nonce": (128, 16), "op": (144, 8), "group": (152, 8)}),
    "RangeEvicted": (21, {"nonce": (128, 16), "op": (144, 8), "group": (152, 8)}),
    "RequestStateTransfer": (22, {"nonce": (128, 16), "group": (144, 8)}),
    "StateTransferTarget": (
        23,
        {
            "nonce": (128, 16),
            "commit_op": (144, 8),
            "group": (152, 8),
            "available": (160, 1),
            "transient": (161, 1),
            "commit_max": (168, 8),
        },
    ),
    "RequestStateChunk": (24, {"nonce": (128, 16), "offset": (144, 8), "group": (152, 8), "length": (160, 4), "artifact": (164, 4)}),
    "StateChunk": (25, {"nonce": (128, 16), "offset": (144, 8), "group": (152, 8), "artifact": (160, 4)}),
    "ForwardRegister": (26, {"client": (128, 16), "nonce": (144, 16), "user": (160, 4)}),
    "ForwardRegisterResult": (
        27,
        {"nonce": (128, 16), "client": (144, 16), "epoch": (160, 8), "watermark": (168, 8), "outcome": (255, 1)},
    ),
    "ForwardLogout": (28, {"client": (128, 16), "nonce": (144, 16), "session": (160, 8), "request": (168, 8)}),
    "ForwardLogoutResult": (29, {"nonce": (128, 16), "client": (144, 16), "commit": (160, 8), "outcome": (255, 1)}),
}
COMMANDS["RepairPrepare"] = (19, COMMANDS["Prepare"][1])

SEALED = {7, 9, 10, 11, 12, 17, 18, *range(20, 30)}


def frame(
    name: str, body: bytes = b"", *, view: int = 0, replica: int = 0, cluster: int = CLUSTER, sealed: bool = True, **values: Any
) -> bytes:
    """One frame; values are integers, or bytes of the width of their field."""
    command, places = COMMANDS[name]
    head = bytearray(256)
    head[32:48] = cluster.to_bytes(16, "little")
    head[48:52] = pack("<I", 256 + len(body))
    head[52:56] = pack("<I", view)
    head[60], head[61] = command, replica
    for key, value in values.items():
        at, width = places[key]
        head[at : at + width] = value if isinstance(value, bytes) else value.to_bytes(width, "little")
    if command in (6, 19):
        if body and values.get("group", METADATA) == METADATA:
            head[16:24] = pack("<Q", xxh3_64_intdigest(body))
    elif command in (11, 12) and body:
        head[16:24] = pack("<Q", xxh3_64_intdigest(body))
    if sealed and command in SEALED:
        head[:8] = pack("<Q", xxh3_64_intdigest(bytes(head[16:])))
    elif sealed and command in (6, 19):
        head[:8] = pack("<Q", xxh3_64_intdigest(bytes(16) + bytes(head[16:52]) + bytes(4) + bytes(head[56:])))
    return bytes(head) + body


def checksum(sent: bytes) -> int:
    return int.from_bytes(sent[:16], "little")


def prepare(op: int, operation: int, body: bytes = b"", *, group: int = METADATA, commit: int | None = None, **more: Any) -> bytes:
    """A Prepare of a client's request."""
    values = {
        "client": 0xC1,
        "commit": op - 1 if commit is None else commit,
        "timestamp": MICROSECONDS + op,
        "request": op,
        "user": 1,
    } | more
    return frame("Prepare", body, op=op, operation=operation, group=group, **values)


def ok(sent: bytes, replica: int, **more: Any) -> bytes:
    """The PrepareOk of a replica for a Prepare."""
    values = {"parent": sent[144:160], "prepare_checksum": sent[:16], "op": sent[176:184], "commit": sent[184:192]}
    values |= {"timestamp": sent[192:200], "request": sent[200:208], "operation": sent[208:209], "group": sent[216:224]}
    return frame("PrepareOk", replica=replica, **({"view": int.from_bytes(sent[52:56], "little")} | values | more))


def commit(number: int, *, group: int = METADATA, replica: int = 0, view: int = 0, at: int = 0) -> bytes:
    return frame("Commit", replica=replica, view=view, commit=number, monotonic=at or 500_000 * number, group=group)


# Bodies


def s8(text: str) -> bytes:
    raw = text.encode()
    return bytes([len(raw)]) + raw


def ident(value: int | str) -> bytes:
    return b"\x01\x04" + pack("<I", value) if isinstance(value, int) else b"\x02" + s8(value)


def group_of(stream: int, topic: int, partition: int) -> int:
    return stream << 32 | topic << 20 | partition


def batch(partition: int, base: int, payloads: list[bytes]) -> bytes:
    """The batch that a Prepare of send_messages carries."""
    frames = []
    for index, payload in enumerate(payloads):
        rest = pack("<QQIIIIQ", 0xABCD00 + base + index, 0, index, index * 10, 0, len(payload), 0) + payload
        frames.append(pack("<Q", xxh3_64_intdigest(rest)) + rest)
    head = pack("<QQQQQ", partition, base, MICROSECONDS, MICROSECONDS - 5, 256 + sum(map(len, frames)))
    count = pack("<I", len(frames))
    total = xxh3_64_intdigest(head + count + b"".join(one[:8] for one in frames))
    return head + pack("<Q", total) + count + bytes(204) + b"".join(frames)


def create_topic_resolved(stream: int, name: str, partitions: int, topic: int) -> bytes:
    request = ident(stream) + pack("<I", partitions) + s8(name)
    assigned = b"".join(pack("<IQ", one, group_of(stream, topic, one)) for one in range(partitions))
    return pack("<I", len(request)) + request + pack("<I", 0) + pack("<I", partitions) + assigned


def create_user(name: str, secret: str) -> bytes:
    return s8(name) + s8(secret) + b"\x01" + b"\x00"


def change_password(user: int, old: str, new: str) -> bytes:
    return ident(user) + s8(old) + s8(new)


def offset(stream: int, topic: int, partition: int, value: int) -> bytes:
    """store_consumer_offset of consumer 1."""
    return b"\x01" + ident(1) + ident(stream) + ident(topic) + b"\x01" + pack("<I", partition) + pack("<Q", value) + b"\x01"


def manifest(*artifacts: tuple[int, int, bytes]) -> bytes:
    """Kind, frontier and bytes of each."""
    entries = b"".join(pack("<BQQQ", kind, frontier, len(data), xxh3_64_intdigest(data)) for kind, frontier, data in artifacts)
    head = b"ISM1" + pack("<IB", len(artifacts), 25) + entries
    return head + pack("<Q", xxh3_64_intdigest(head))
