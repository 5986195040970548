"""Measures live capture: python tests/bench/live.py [delay] [rate] [memory]

delay   from the last byte of a message until its line can be read, at 20 messages a second
rate    messages a second up to which nothing is lost: ten to a segment, peers on the same processors
memory  resident memory after 200,000 and after 2,000,000 packets of 5,000 and 50,000 short conversations, without sockets

delay and rate need CAP_NET_RAW and use the loopback interface only.
"""

from __future__ import annotations

import argparse
import re
import resource
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from streamdump.inspector import Inspector
from streamdump.model import Options, Packet
from streamdump.render.jsonl import encode
from tests.support.peers import Pair, capturing, free_port

PING, PONG = bytes.fromhex("04000000 01000000"), bytes.fromhex("00000000 00000000")
FIN, SYN, PSH, ACK = 1, 2, 8, 16
TARGET_DELAY, TARGET_RATE, TARGET_GROWTH = 0.2, 20_000, 1.2
RATES = (5_000, 10_000, 20_000, 40_000, 80_000, 160_000)
SECONDS = 3.0


def conversation(number: int, exchanges: int) -> list[bytes]:
    """The Ethernet frames of a short Iggy conversation: handshake, pings with their answers, and the end."""
    client = struct.pack(">BBHH", 10, number >> 16 & 255, number & 0xFFFF, 1024 + number % 60_000)
    address, port = client[:4], int.from_bytes(client[4:], "big")
    server = bytes((10, 255, 0, 1))
    seq = [1000, 5000]
    frames = []

    def add(side: int, flags: int, payload: bytes = b"") -> None:
        ends = (address, server) if side == 0 else (server, address)
        ports = (port, 8090) if side == 0 else (8090, port)
        ack = seq[1 - side] if flags & ACK else 0
        header = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 40 + len(payload), 0, 0, 64, 6, 0, *ends)
        segment = struct.pack(">HHIIBBHHH", *ports, seq[side], ack, 0x50, flags, 1000, 0, 0)
        frames.append(bytes(12) + b"\x08\x00" + header + segment + payload)
        seq[side] += len(payload) + (1 if flags & (SYN | FIN) else 0)

    add(0, SYN)
    add(1, SYN | ACK)
    add(0, ACK)
    for _ in range(exchanges):
        add(0, PSH | ACK, PING)
        add(1, PSH | ACK, PONG)
    add(0, FIN | ACK)
    add(1, FIN | ACK)
    add(0, ACK)
    return frames


def batch_of(frames: Sequence[bytes], before: int, start_ns: int, step_ns: int) -> list[Packet]:
    """Packets, of which `before` came earlier, at equal intervals."""
    return [Packet(frame, start_ns + step_ns * at, before + at + 1, 0, 0, len(frame), len(frame), 1) for at, frame in enumerate(frames)]


def delay(count: int = 100) -> bool:
    port = free_port()
    delays = []
    with capturing("-i", "lo", "-d", f"tcp.port=={port},iggy", "--json") as capture, Pair(port) as pair:
        for _ in range(count):
            for side, data in ((0, PING), (1, PONG)):
                pair.say(side, data)
                sent = time.monotonic()
                capture.line()
                delays.append(time.monotonic() - sent)
                time.sleep(0.05)
    delays.sort()
    print(
        f"delay of {len(delays)} messages: median {statistics.median(delays) * 1e3:.1f} ms, "
        f"99 % within {delays[len(delays) * 99 // 100] * 1e3:.1f} ms, longest {delays[-1] * 1e3:.1f} ms; target {TARGET_DELAY * 1e3:.0f} ms"
    )
    return delays[-1] <= TARGET_DELAY


def frame(key: int, correlation: int, body: bytes) -> bytes:
    """A RabbitMQ Streams frame of version 1."""
    return struct.pack(">IHHI", 8 + len(body), key, 1, correlation) + body


def rate() -> bool:
    """Ten requests for a publisher's sequence in a segment, then their ten responses in one."""
    names = b"".join(struct.pack(">H", len(name)) + name for name in (b"orders-writer-1", b"orders"))
    kept = 0
    for wanted in RATES:
        port = free_port()
        argv = ("-i", "lo", "-d", f"tcp.port=={port},rabbitmq-stream", "--json")
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        with capturing(*argv, stdout=subprocess.DEVNULL) as capture:
            sent, begin = 0, time.monotonic()
            with Pair(port) as pair:
                while (now := time.monotonic()) < begin + SECONDS:
                    if sent > (now - begin) * wanted:
                        time.sleep(0.0005)
                        continue
                    pair.say(0, b"".join(frame(0x0005, sent + at, names) for at in range(10)))
                    pair.say(1, b"".join(frame(0x8005, sent + at, struct.pack(">HQ", 1, sent)) for at in range(10)))
                    sent += 20
            took = time.monotonic() - begin
            _, _, err = capture.finish()
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        got = int(re.search(r"([\d,]+) messages?", err)[1].replace(",", ""))  # type: ignore[index]
        dropped = re.search(r"([\d,]+) dropped", err)[1]  # type: ignore[index]
        print(f"{sent / took:>9,.0f} messages/s: {sent:,} sent, {got:,} read, {dropped} packets dropped, {cpu:.2f} s CPU with the start")
        if got != sent or sent / took < wanted * 0.9:
            break
        kept = wanted
    print(f"nothing lost up to {kept:,} messages/s; target {TARGET_RATE:,}")
    return kept >= TARGET_RATE


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def memory(packets: int = 2_000_000, a_second: int = 2000) -> bool:
    """40 packets a conversation, 25 conversations side by side, half a second of capture time a batch."""
    inspector = Inspector([], Options())
    now_ns, step_ns = 1_760_000_000_000_000_000, 1_000_000_000 // a_second
    conversations = done = 0
    early = late = 0
    started = time.process_time()
    while done < packets:
        side_by_side = [conversation(conversations + index, 17) for index in range(25)]
        conversations += len(side_by_side)
        frames = [frame for same in zip(*side_by_side, strict=True) for frame in same]
        encode(inspector.process(batch_of(frames, done, now_ns, step_ns)))
        now_ns += step_ns * len(frames)
        encode(inspector.age(now_ns))
        done += len(frames)
        if done == packets // 10:
            early = resident()
        late = resident()
    print(
        f"memory: {early / 2**20:.1f} MiB after {packets // 10:,} packets, {late / 2**20:.1f} MiB after {done:,} of "
        f"{conversations:,} conversations ({inspector.counters.messages:,} messages, {time.process_time() - started:.0f} s CPU), "
        f"{late / early - 1:+.1%}; target within {TARGET_GROWTH - 1:.0%}"
    )
    return late <= early * TARGET_GROWTH


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", choices=["delay", "rate", "memory"], help="all of them without one")
    chosen = parser.parse_args().what or ["delay", "rate", "memory"]
    measures = {"delay": delay, "rate": rate, "memory": memory}
    reached = [measures[one]() for one in chosen]
    return 0 if all(reached) else 1


if __name__ == "__main__":
    sys.exit(main())
