"""Captures whose pcapng blocks say which processes packets belong to, and what addresses are called.

The packets are those of recorded captures; what the programs named here would have added is written by the encoder below, after what their
sources write. `python -m tests.capture.process_stories` writes the captures.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from tests.support import rewrite
from tests.support.captures import GOLDEN
from tests.support.frames import block, section

Option = tuple[int, bytes]
Options = Callable[[int, bool], Sequence[Option]]
"""The options of a packet, by its index and whether the client sent it."""

COMMENT, FLAGS, PROCESS_THREAD, DARWIN_PROCESS = 1, 2, 8, 32769
INBOUND, OUTBOUND = 1, 2
WIRESHARK = 32622
NAME, PATH, COMMAND_LINE, PARENT, USER_ID, START = 2, 3, 4, 5, 6, 9


def encoded(options: Iterable[Option], order: str = "<") -> bytes:
    """Options with their end; nothing if there are none."""
    body = b"".join([struct.pack(order + "HH", code, len(value)) + value + bytes(-len(value) & 3) for code, value in options])
    return body + bytes(4) if body else b""


def packet_block(packet: rewrite.Packet, options: Iterable[Option], order: str = "<") -> bytes:
    """An enhanced packet block of interface 0."""
    head = struct.pack(order + "5I", 0, packet.time_ns >> 32, packet.time_ns & 0xFFFFFFFF, len(packet.raw), packet.wire)
    return block(6, head + packet.raw + bytes(-len(packet.raw) & 3) + encoded(options, order), order)


def interface(link: int, order: str = "<") -> bytes:
    """An interface whose times count nanoseconds."""
    return block(1, struct.pack(order + "HHI", link, 0, 0) + encoded([(9, b"\x09")], order), order)


def annotated(path: Path, options: Options, blocks: Sequence[bytes] = (), order: str = "<") -> bytes:
    """The packets of a capture with these options, after these blocks."""
    found = rewrite.packets(path)
    port = rewrite.server_port(found)
    body = [section(order), interface(found[0].link, order), *blocks]
    for index, packet in enumerate(found):
        at = rewrite.tcp_offset(packet)
        to_server = at is not None and struct.unpack_from(">H", packet.raw, at + 2)[0] == port
        body.append(packet_block(packet, options(index, to_server), order))
    return b"".join(body)


def comment(*lines: str) -> Option:
    return COMMENT, "\n".join(lines).encode()


def flags(direction: int, order: str = "<") -> Option:
    return FLAGS, struct.pack(order + "I", direction)


def thread(pid: int, order: str = "<") -> Option:
    return PROCESS_THREAD, struct.pack(order + "II", pid, 0)


def process_block(pid: int, *options: Option, order: str = "<") -> bytes:
    """Process information as Wireshark writes it: the entry is little-endian in any section."""
    entry = struct.pack("<I", pid) + encoded(options)
    return block(0xBAD, struct.pack(order + "I", WIRESHARK) + struct.pack("<II", 3, len(entry)) + entry, order)


def darwin_block(pid: int, name: str) -> bytes:
    return block(0x80000001, struct.pack("<I", pid) + encoded([(NAME, name.encode())]))


def names_block(*names: tuple[bytes, str], order: str = "<") -> bytes:
    """A name resolution block: address and name."""
    records = b""
    for address, name in names:
        value = address + name.encode() + b"\0"
        records += struct.pack(order + "HH", {4: 1, 6: 3}.get(len(address), 2), len(value)) + value + bytes(-len(value) & 3)
    return block(4, records + bytes(4), order)


PRODUCER = comment("PID: 41207", "Cmd: /usr/bin/python3.11", "Args: python3 producer.py --stream orders\nPodName: from-an-argument")
PRODUCER_CONTAINER = comment(
    "ContainerName: producer",
    "ContainerId: 9f2c1b7e4d5a",
    "ContainerImage: registry.example/producer:1.4",
    'ContainerLabels: {"io.kubernetes.container.name":"producer"}',
)
PRODUCER_POD = comment(
    "PodName: orders-7c9f6d-x2x4q",
    "PodNamespace: shop",
    "PodUID: 0c6c7c7e-9f5b-4a51-8f5e-6f3c3a0c2a11",
    'PodLabels: {"app":"orders"}',
    "PodAnnotations: {}",
)
THREAD, PARENT_PROCESS = (
    comment("ThreadId: 41210", "ThreadName: worker"),
    comment("ParentPID: 41100", "ParentCmd: /bin/sh", "ParentArgs: sh"),
)


def ptcpdump() -> bytes:
    """On the host of the client, in a pod: the comment of a packet is about the host's socket, whichever way the packet goes. The container
    is known from the third packet on."""

    def options(index: int, to_server: bool) -> list[Option]:
        comments = [PRODUCER, THREAD, PARENT_PROCESS]
        if index >= 2:
            comments += [PRODUCER_CONTAINER, PRODUCER_POD]
        return [*comments, flags(OUTBOUND if to_server else INBOUND)]

    return annotated(GOLDEN / "rabbitmq-stream" / "publish_error_310.pcap", options)


def both_ends() -> bytes:
    """Through loopback: packets that a process sends are of the client or the server, and a process that accepts has another one's PID at
    first. The second connection has no comments."""
    found = rewrite.packets(GOLDEN / "rabbitmq-stream" / "two_connections_310.pcap")
    first = struct.unpack_from(">H", found[0].raw, rewrite.tcp_offset(found[0]) or 0)[0]

    def options(index: int, to_server: bool) -> list[Option]:
        at = rewrite.tcp_offset(found[index]) or 0
        if first not in struct.unpack_from(">HH", found[index].raw, at):
            return []
        if to_server:
            return [comment("PID: 700", "Cmd: /opt/app/bin/orders", "Args: orders"), flags(OUTBOUND)]
        pid = "611" if index < 8 else "612"
        return [comment(f"PID: {pid}", "Cmd: /usr/lib/erlang/erts-13.2/bin/beam.smp", "Args: beam.smp -W w"), flags(OUTBOUND)]

    return annotated(GOLDEN / "rabbitmq-stream" / "two_connections_310.pcap", options)


def wireshark(order: str = "<") -> bytes:
    """Process information of Wireshark: the process that sent a packet, by its PID; one PID is of two processes, one after the other."""
    path = GOLDEN / "iggy" / "stale-client.pcap"
    start = rewrite.packets(path)[0].time_ns
    blocks = [
        process_block(500, (NAME, b"before"), (START, struct.pack("<Q", start - 3_600_000_000_000)), order=order),
        process_block(500, (PATH, b"/usr/bin/consumer"), (START, struct.pack("<Q", start - 1_000)), order=order),
        process_block(500, (NAME, b"after"), (START, struct.pack("<Q", start + 3_600_000_000_000)), order=order),
        process_block(77, (NAME, b"iggy-server"), (COMMAND_LINE, b"iggy-server\0--fresh"), (USER_ID, bytes(4)), order=order),
        block(0xBAD, struct.pack(order + "I", WIRESHARK) + struct.pack("<II", 99, 5) + b"hello\0\0\0", order),
    ]
    return annotated(path, lambda _, to_server: [thread(500 if to_server else 77, order)], blocks, order)


def macos() -> bytes:
    """tcpdump of macOS with pktap: an index of process blocks."""
    blocks = [darwin_block(501, "mDNSResponder"), darwin_block(7201, "java")]
    index = DARWIN_PROCESS, struct.pack("<I", 1)
    return annotated(
        GOLDEN / "mewbase" / "java-publish.pcap",
        lambda _, to_server: [flags(OUTBOUND if to_server else INBOUND), index],
        blocks,
    )


def no_direction() -> bytes:
    """Comments without a direction, as of ptcpdump before it wrote one: which side it is does not show."""
    said = comment("PID: 41207", "Command: /usr/bin/python3.11")
    return annotated(GOLDEN / "rabbitmq-stream" / "missing_stream_405.pcap", lambda *_: [said])


HOSTILE = (
    comment("PID: 99999999999999999999", "Cmd: /bin/no"),
    comment("PID: 7", "Cmd: \x1b]0;owned\x07\x1b[2Jrm\u202egnp.exe", "ContainerName: \x1b[31mred"),
    comment("PID: 7", "Cmd: " + "A" * 1_000),
    comment("PodName: " + "p" * 300, "PodNamespace: " + "n" * 300),
    (COMMENT, b"PID: 7\nCmd: \xff\xfe\x00\x01"),
    comment("PID: -1", "Cmd: minus"),
    comment("PID: ", "Cmd: "),
    comment(*["x: y"] * 100),
    (COMMENT, b""),
    (FLAGS, b"\x02"),
    (PROCESS_THREAD, b"\xff" * 3),
    (DARWIN_PROCESS, b"\xff" * 4),
    (60_000, b"unknown"),
)


def hostile() -> bytes:
    """What nobody writes: numbers out of range, control characters, long texts, options of other sizes; each packet says something else."""

    def options(index: int, to_server: bool) -> list[Option]:
        return [HOSTILE[index % len(HOSTILE)], flags(OUTBOUND), comment(f"PID: {index + 1}", f"Cmd: other-{index}")]

    blocks = [
        process_block(0xFFFFFFFF, (NAME, b"\x1b[31m" + b"n" * 2_000)),
        block(0xBAD, struct.pack("<IIII", WIRESHARK, 3, 0xFFFFFFFF, 5)),
        block(0xBAD, struct.pack("<II", WIRESHARK, 3)),
        block(0x80000001, b""),
        names_block((b"\x7f\0\0\1", "\x1b]0;owned\x07" + "h" * 400), (b"", ""), (bytes(16), "")),
        block(4, struct.pack("<HH", 1, 60_000) + b"cut"),
    ]
    return annotated(GOLDEN / "rabbitmq-stream" / "missing_stream_405.pcap", options, blocks)


def names() -> bytes:
    """Names of addresses before the packets, and after them, as programs that resolve names at the end write them."""
    before = names_block((bytes((127, 0, 0, 2)), "broker-1.example"), (bytes((127, 0, 0, 2)), "not-the-first.example"), (bytes(6), "mac"))
    after = names_block((bytes((127, 0, 0, 1)), "orders.example"), (bytes((127, 0, 0, 2)), "later.example"))
    return annotated(GOLDEN / "rabbitmq-stream" / "missing_stream_405.pcap", lambda *_: [], [before]) + after


STORIES: dict[str, Callable[[], bytes]] = {
    "rabbitmq-stream/processes_ptcpdump_made.pcapng": ptcpdump,
    "rabbitmq-stream/processes_both_ends_made.pcapng": both_ends,
    "rabbitmq-stream/processes_no_direction_made.pcapng": no_direction,
    "rabbitmq-stream/processes_hostile_made.pcapng": hostile,
    "rabbitmq-stream/names_made.pcapng": names,
    "iggy/processes_wireshark_made.pcapng": wireshark,
    "mewbase/processes_macos_made.pcapng": macos,
}

if __name__ == "__main__":
    for name, story in STORIES.items():
        (GOLDEN / name).write_bytes(story())
