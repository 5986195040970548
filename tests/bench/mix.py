"""Writes a capture of real traffic: copies of golden captures without fault, gap or note, interleaved, each under addresses of its own.

python tests/bench/mix.py OUT.pcap [--bytes 60 | --packets 60000]
"""

from __future__ import annotations

import argparse
import heapq
import struct
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import count
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import streamdump
from streamdump.capture.files import open_capture
from streamdump.errors import CaptureError
from streamdump.model import Gap, Message

GOLDEN = Path(__file__).parents[2] / "captures" / "golden"
FOREIGN = GOLDEN.parent / "samples" / "others"
START_NS = 1_760_000_000_000_000_000
IP_AT = {0: 4, 1: 14, 101: 0, 113: 16, 276: 20}
"""Where the IP packet begins, by link type."""
TOGETHER = 40
"""Copies that go on at the same time."""


@cache
def sources(protocol: str = "*") -> list[list[tuple[int, bytes]]]:
    """The IPv4 packets of each capture that is not TLS, with nanoseconds since its first one."""
    found = []
    for path in sorted(GOLDEN.glob(f"{protocol}/*.pcap*")):
        if "tls" in path.name:
            continue
        try:
            records = list(streamdump.read(path))
        except CaptureError:
            continue
        if not records or any(isinstance(one, Gap) or (isinstance(one, Message) and (one.fault or one.notes)) for one in records):
            continue
        packets = _ip(path)
        if packets:
            found.append(packets)
    return found


def _ip(path: Path) -> list[tuple[int, bytes]]:
    """The IPv4 packets with TCP, with nanoseconds since the first one."""
    packets = []
    for some in open_capture(path):
        for packet in some:
            ip = packet.buffer[packet.offset + IP_AT.get(packet.link, 0) : packet.offset + packet.captured]
            if packet.link in IP_AT and ip[:1] and ip[0] >> 4 == 4 and ip[9] == 6:
                packets.append((packet.time_ns, ip))
    packets.sort(key=lambda one: one[0])
    return [(time_ns - packets[0][0], ip) for time_ns, ip in packets]


def mostly_foreign(share: int = 20) -> list[list[tuple[int, bytes]]]:
    """Captures of other protocols; of each `share` packets one is in a capture of ours."""
    foreign = [_ip(path) for path in sorted(FOREIGN.glob("*.pcap"))]
    found, ours, packets = [], 0, 0
    for one in sources():
        found.append(one)
        ours += len(one)
        while packets < ours * (share - 1):
            found.append(foreign[len(found) % len(foreign)])
            packets += len(found[-1])
    return found


def copy_of(packets: list[tuple[int, bytes]], number: int, begin: int) -> Iterator[tuple[int, int, bytes]]:
    """A capture's packets from a time on, with its addresses in a network of its own."""
    network = bytes((10 + (number >> 16 & 63), number >> 8 & 255, number & 255))
    for time_ns, ip in packets:
        # The last byte tells the hosts of one capture apart.
        yield begin + time_ns, number, ip[:12] + network + ip[15:16] + network + ip[19:20] + ip[20:]


def write(
    path: Path,
    size: int,
    packets: int = 0,
    protocols: Sequence[str] = ("*",),
    captures: list[list[tuple[int, bytes]]] | None = None,
) -> None:
    """A capture of about `packets` packets, or else of about `size` bytes, of these `captures` or of all of these protocols: no copy is
    cut."""
    captures = captures or [capture for protocol in protocols for capture in sources(protocol)]
    numbers = count()
    begun = 0
    waiting: list[tuple[int, int, bytes, Iterator[tuple[int, int, bytes]]]] = []

    def begin(time_ns: int) -> None:
        nonlocal begun
        number = next(numbers)
        begun += len(captures[number % len(captures)])
        one = copy_of(captures[number % len(captures)], number, time_ns)
        heapq.heappush(waiting, (*next(one), one))

    with path.open("wb") as out:
        out.write(struct.pack("<IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, 262_144, 1))
        for one in range(TOGETHER):
            begin(START_NS + one * 1_000_000)
        written = 24
        while waiting:
            time_ns, _, ip, rest = heapq.heappop(waiting)
            raw = b"\x02\0\0\0\0\1\x02\0\0\0\0\2\x08\0" + ip
            out.write(struct.pack("<IIII", *divmod(time_ns, 1_000_000_000), len(raw), len(raw)) + raw)
            written += 16 + len(raw)
            following = next(rest, None)
            if following is not None:
                heapq.heappush(waiting, (*following, rest))
            elif begun < packets if packets else written < size:
                begin(time_ns + 1_000_000)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("out", type=Path)
    parser.add_argument("--bytes", type=int, default=60, help="in millions")
    parser.add_argument("--packets", type=int, default=0)
    options = parser.parse_args()
    write(options.out, options.bytes * 1_000_000, options.packets)


if __name__ == "__main__":
    main()
