"""Real clients of Apache Iggy (apache-iggy of PyPI) at a scripted server, and what the objects of the client show.

Run by the Python of an environment that has the client, on loopback only; the other arguments are a scenario and a port:

    CLIENT/bin/python tests/broker/iggy_scripted.py messages 8090

The server answers in the layout V5, written from what these clients accept. The values that the objects of the client show are printed as
JSON: `tests/protocols/test_iggy_clients.py` compares them with what is decoded.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from struct import pack, unpack_from
from typing import Any

CREATED = 1_795_700_000_000_000
CONTEXT = pack("<QQQ", 11, 4, 22)
"""Incarnation, generation of the owner, and operation of a partition."""


def s8(text: str) -> bytes:
    return bytes([len(text.encode())]) + text.encode()


def s32(text: str) -> bytes:
    return pack("<I", len(text.encode())) + text.encode()


def option(key: str, value: str) -> bytes:
    return b"\x02" + s32(key) + b"\x02" + s32(value)


def options(*pairs: tuple[str, str]) -> bytes:
    joined = b"".join(option(*pair) for pair in pairs)
    return pack("<I", len(joined)) + joined


DERIVED = options(("max_topic_size", "unlimited"), ("message_expiry", "never"))
TOPIC = pack("<IQIQQ", 3, CREATED + 2, 2, 8_192, 3) + s8("events") + options(("durability", "persisted")) + DERIVED
_STREAM = s8("orders") + options(("owner", "shop")) + options()
STREAM = pack("<IQIQQ", 7, CREATED + 1, 1, 8_192, 3) + _STREAM
EMPTY_STREAM = pack("<IQIQQ", 7, CREATED + 1, 0, 0, 0) + _STREAM
PARTITIONS = b"".join(pack("<IQIQQQ", number, CREATED + 3, 1, number + 8, 4_096, number + 1) + CONTEXT for number in range(2))
USER = pack("<IQB", 5, CREATED + 4, 1) + s8("bob") + options() + options()
PERMISSIONS = bytes([0, 1] * 5) + b"\x00"
GROUP = pack("<III", 9, 2, 2) + s8("workers")
MEMBERS = pack("<IIII", 21, 1, 1, 1)[:8] + pack("<I", 0) + pack("<III", 22, 1, 1)
STATS = (
    pack("<Iff", 4_711, 1.5, 2.25)
    + pack("<8Q", 101, 102, 103, 104_000_000, CREATED, 106, 107, 108)
    + pack("<4IQII", 1, 2, 3, 4, 500, 6, 7)
    + s32("node-1")
    + s32("Linux")
    + s32("12")
    + s32("6.1")
    + s32("0.9.1")
    + pack("<I", 9_001)
    + pack("<IIIIQQf", 1, 7, 3, 1, 40, 60, 0.5)
    + pack("<IQQQQ", 9, 1_000, 2_000, 33, 1_024)
)
OPTIONS = pack("<I", 2) + s8("durability") + b"\x02\x10" + s32("replicated") + s32("When a write counts.")
OPTIONS += s8("segment_size") + b"\x0c\x03" + pack("<I", 8) + pack("<Q", 1 << 30) + s32("Bytes of a segment.")
LISTED = pack("<I", 0)

MADE_OF_OPTIONS = ("compression_algorithm", "max_topic_size", "message_expiry", "encryption_key_source", "encryption_key_fingerprint")
MADE_OF_OPTIONS += ("encryption_kek_fingerprints",)
"""Attributes of the client that it makes of options, which are compared themselves."""


class Server:
    """Answers each request; messages that are sent are polled as they came."""

    def __init__(self, port: int, statuses: dict[int, int]) -> None:
        self.statuses = statuses
        self.batches: list[bytes] = []
        node = b"\x02" + s32("node-1") + s32("127.0.0.1") + pack("<HHHH", port, 8080, 3000, 8092) + b"\x00\x00"
        self.reads: dict[int, Callable[[], bytes]] = {
            10: lambda: STATS,
            12: lambda: s32("single-node") + pack("<I", 1) + node,
            13: lambda: OPTIONS,
            31: lambda: USER + b"\x01" + pack("<I", len(PERMISSIONS)) + PERMISSIONS,
            32: lambda: USER,
            100: self.polled,
            105: lambda: pack("<QQIIB", 11, 22, 0, 0, 2),
            200: lambda: STREAM + TOPIC,
            201: lambda: STREAM,
            300: lambda: TOPIC + PARTITIONS,
            301: lambda: pack("<I", 1) + TOPIC,
            600: lambda: GROUP + MEMBERS,
            601: lambda: GROUP,
        }
        self.writes = {128: EMPTY_STREAM, 132: TOPIC + PARTITIONS, 139: GROUP + MEMBERS, 141: USER + bytes(4)}

    def polled(self) -> bytes:
        count = sum(unpack_from("<I", batch, 48)[0] for batch in self.batches)
        return pack("<IQI", 1, max(0, count - 1), count) + CONTEXT + b"".join(self.batches)

    def answer(self, head: bytes, body: bytes) -> tuple[int, bytes]:
        operation, code = head[176], unpack_from("<I", head, 196)[0]
        status = self.statuses.get(code if operation == 2 else operation, 0)
        if status:
            return status, b""
        if operation == 1:
            return 0, LISTED + pack("<IQI", 0, 7, 12 << 10) + s8("0.9.1")
        if operation == 160:
            at = 4 + unpack_from("<I", body)[0]
            self.batches.append(body[at:])
            return 0, pack("<IIIIQ", 1, 7, 3, 1, len(self.batches) - 1)
        if operation == 2:
            return 0, self.reads.get(code, bytes)()
        return 0, (b"" if operation in (3, 138) else LISTED) + self.writes.get(operation, b"")

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readexactly(256)
                body = await reader.readexactly(unpack_from("<I", head, 48)[0] - 256)
                status, answer = self.answer(head, body)
                reply = bytearray(256)
                reply[48:52] = pack("<I", 256 + len(answer))
                reply[60] = 8
                reply[128:144], reply[160:176], reply[200:208] = head[144:160], head[128:144], head[168:176]
                reply[208], reply[216:220] = head[176], pack("<I", status)
                writer.write(bytes(reply) + answer)


def shown(value: Any, depth: int = 0) -> Any:
    """What an object of the client shows, by attribute."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, list | tuple):
        return [shown(one, depth + 1) for one in value]
    if isinstance(value, dict):
        return {str(getattr(key, "value", key)): shown(getattr(one, "value", one), depth + 1) for key, one in value.items()}
    if hasattr(value, "total_seconds"):
        return round(value.total_seconds() * 1_000_000)
    if depth > 4:
        return str(value)
    found: dict[str, Any] = {}
    for name in dir(value):
        if name[0] != "_" and name not in MADE_OF_OPTIONS and type(getattr(value, name)) is not type(value):
            one = getattr(value, name)
            with suppress(TypeError):
                found[name] = shown(one() if callable(one) else one, depth + 1)
    return found or str(value)


Call = tuple[str, tuple[Any, ...], dict[str, Any]]


def scenario(name: str) -> tuple[list[Call], dict[int, int]]:
    """The calls of a client, and the statuses of requests that are refused."""
    import apache_iggy as iggy  # type: ignore[import-not-found]

    place = "orders", "events"
    polled = {"consumer": iggy.Consumer.Single("c1"), "partition_id": 1, "count": 10, "auto_commit": False}
    strategies = iggy.PollingStrategy.First(), iggy.PollingStrategy.Offset(0)
    made: list[Call] = [("create_stream", ("orders",), {}), ("create_topic", place, {})]
    if name == "messages":
        texts = [iggy.SendMessage("hello"), iggy.SendMessage(b"\x00\x01raw"), iggy.SendMessage("x" * 300)]
        sent = ("send_messages", (*place, iggy.Partitioning.partition_id(1), texts), {})
        polls = [("poll_messages", place, polled | {"polling_strategy": one}) for one in strategies]
        return [("ping", (), {}), *made, sent, *polls, ("logout_user", (), {})], {}
    if name == "errors":
        refused = {10: 85, 200: 1009, 31: 4108, 128: 4106, 150: 4103, 300: 3014, 13: 4107}
        update = ("update_stream", ("orders",), {"name": "other"})
        reads = [("get_stats", (), {}), ("get_stream", ("orders",), {}), ("get_user", ("bob",), {}), ("get_topic", place, {})]
        return [*reads, made[0], update, ("describe_options", ("topic",), {})], refused
    key = bytes(range(0xA0, 0xC0))
    return [
        ("get_stats", (), {}),
        ("create_stream", ("orders",), {"options": iggy.StreamOptions(encryption_key=key)}),
        ("get_stream", ("orders",), {}),
        ("get_streams", (), {}),
        ("create_topic", place, {"options": iggy.TopicOptions(partitions_count=2, durability=iggy.Durability.PERSISTED)}),
        ("get_topic", place, {}),
        ("get_topics", ("orders",), {}),
        ("create_user", ("bob", "swordfish-77"), {}),
        ("get_user", ("bob",), {}),
        ("get_users", (), {}),
        ("create_consumer_group", (*place, "workers"), {}),
        ("get_consumer_group", (*place, "workers"), {}),
        ("get_consumer_groups", place, {}),
        ("join_consumer_group", (*place, "workers"), {}),
        ("leave_consumer_group", (*place, "workers"), {}),
        ("update_stream", ("orders",), {"name": "orders2"}),
        ("update_topic", place, {"name": "events2", "message_expiry": iggy.IggyExpiry.NeverExpire()}),
        ("update_user", ("bob",), {"username": "bobby", "status": iggy.UserStatus.Inactive}),
        ("change_password", ("bob", "swordfish-77", "swordfish-78"), {}),
        ("create_partitions", (*place, 2), {}),
        ("delete_partitions", (*place, 1), {}),
        ("describe_options", ("topic",), {}),
        ("delete_topic", place, {}),
        ("delete_stream", ("orders",), {}),
        ("logout_user", (), {}),
    ], {}


async def main(name: str, port: int) -> None:
    from apache_iggy import IggyClient

    calls, statuses = scenario(name)
    server = Server(port, statuses)
    await asyncio.start_server(server.talk, "127.0.0.1", port)
    client = IggyClient(f"127.0.0.1:{port}")
    await client.connect()
    await client.login_user("iggy", "iggy")
    values: list[dict[str, Any]] = []
    for call, arguments, more in calls:
        try:
            value = await asyncio.wait_for(getattr(client, call)(*arguments, **more), 10)
            values.append({"call": call, "value": shown(value)})
        except Exception as error:
            values.append({"call": call, "error": str(error), "code": getattr(error, "code", None)})
    print(json.dumps(values))
    sys.stdout.flush()
    # the client keeps threads that would go on
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
