"""streamdump and tshark's `scylla` dissector on the Seastar RPC captures: what each shows right, as a table.

    python tests/bench/compare_scylla.py [CAPTURE...]

Without arguments all recorded captures of `captures/golden/seastar-rpc` in which nothing is missing. What is right is told by a plain
reader in this file that shares no code with the dissector: a frame is right if direction, kind, id, length and, for requests, verb and
timeout are; a pair if a response names its request; an exception ("failed") if its type and its text or verb are shown. "invented" are
frames shown that do not exist. Without tshark only streamdump's half is printed.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from struct import Struct
from typing import Any, NamedTuple
from unittest.mock import patch
from xml.etree import ElementTree

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from streamdump.capture.files import open_capture  # noqa: E402
from streamdump.inspector import Inspector  # noqa: E402
from streamdump.model import Message, Options, SideData, StreamGap  # noqa: E402
from streamdump.protocols.parser import Parser  # noqa: E402
from streamdump.protocols.records import Event  # noqa: E402

FOLDER = ROOT / "captures" / "golden" / "seastar-rpc"
MAGIC = b"SSTARRPC"
KINDS = ("asked", "answers", "pairs", "failed")

u32, u64, i64 = (Struct(one).unpack_from for one in ("<I", "<Q", "<q"))


class Frame(NamedTuple):
    """A request (verb is set) or a response, sent by `src`; what identifies it in any tool's output."""

    src: str
    ident: int
    length: int
    verb: int | None = None
    timeout: int | None = None


class Shown(NamedTuple):
    """What there is in a capture, or what a tool shows of it. Pairs are (response, packet that completed its request)."""

    requests: Counter[Frame]
    responses: Counter[Frame]
    pairs: Counter[tuple[Frame, int]]
    exceptions: Counter[tuple[Frame, Any]]

    @classmethod
    def nothing(cls) -> Shown:
        return cls(Counter(), Counter(), Counter(), Counter())


# The plain reader


def unlz4(block: bytes, out: bytearray) -> None:
    """Appends what a raw LZ4 block unpacks to; matches may reach into what `out` holds already."""
    at = 0
    while at < len(block):
        token = block[at]
        at += 1
        count = token >> 4
        if count == 15:
            while True:
                at += 1
                count += block[at - 1]
                if block[at - 1] != 255:
                    break
        out += block[at : at + count]
        at += count
        if at >= len(block):
            return
        back = block[at] | block[at + 1] << 8
        at += 2
        count = (token & 15) + 4
        if token & 15 == 15:
            while True:
                at += 1
                count += block[at - 1]
                if block[at - 1] != 255:
                    break
        for _ in range(count):
            out.append(out[-back])


def unpacked(algorithm: str, frame: bytes) -> bytes:
    out = bytearray()
    if algorithm == "LZ4":
        if len(frame) >= 4:
            unlz4(frame[4:], out)
        return bytes(out)
    at = 0
    while at + 4 <= len(frame):
        head = u32(frame, at)[0]
        end = len(frame) if head >> 31 else at + 4 + head
        unlz4(frame[at + 4 : end], out)
        at = end
    return bytes(out)


def features(data: bytes) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    at, end = 12, 12 + u32(data, 8)[0]
    while at + 8 <= end:
        number, size = u32(data, at)[0], u32(data, at + 4)[0]
        found.setdefault(number, data[at + 8 : at + 8 + size])
        at += 8 + size
    return found


def frames(data: bytes, header: int, size_at: int, codec: str | None) -> Iterator[tuple[bytes, int]]:
    """The frames behind a negotiation, unpacked, and where each ends in the byte stream."""
    at = 12 + u32(data, 8)[0]
    while at + (4 if codec else header) <= len(data):
        end = at + 4 + u32(data, at)[0] if codec else at + header + u32(data, at + size_at)[0]
        if end > len(data):
            return
        frame = unpacked(codec, data[at + 4 : end]) if codec else data[at:end]
        if frame:
            yield frame, end
        at = end


class Side:
    """The bytes that one side sent, and which packet brought them."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.ends: list[tuple[int, int]] = []

    def add(self, item: SideData) -> None:
        self.ends.append((item.position + len(item.data), item.mark[1]))
        self.data += item.data

    def packet(self, end: int) -> int:
        """The packet that completed the bytes before `end`."""
        return max(number for start, (stop, number) in zip([0, *(one for one, _ in self.ends)], self.ends, strict=False) if start < end)


def truth(path: Path) -> Shown:
    sides: dict[int, tuple[tuple[str, str], tuple[Side, Side]]] = {}
    take = Parser.process

    def noted(self: Parser, items: list[SideData | StreamGap], now: int = 0) -> list[Event]:
        _, both = sides.setdefault(self.context.conversation, (self.context.endpoints, (Side(), Side())))
        for item in items:
            if not isinstance(item, SideData):
                raise SystemExit(f"{path}: bytes are missing, so nothing tells what is right")
            both[item.side].add(item)
        return take(self, items, now)

    with patch.object(Parser, "process", noted):
        list(Inspector([open_capture(str(path))]).records())
    found = Shown.nothing()
    for endpoints, both in sides.values():
        data = [bytes(side.data) for side in both]
        if all(one.startswith(MAGIC) and len(one) >= 12 for one in data):
            read(found, endpoints, both, data)
    return found


def read(found: Shown, endpoints: tuple[str, str], both: tuple[Side, Side], data: list[bytes]) -> None:
    """Adds what a conversation holds; the client is side 0."""
    asked, granted = features(data[0]), features(data[1])
    if 3 in asked:
        return
    codec = None
    if 0 in granted:
        codec = next(one for one in asked[0].decode().split(",") if one in granted[0].decode().split(","))
    skip = 8 if 1 in granted else 0
    opened: dict[int, int] = {}
    negative: set[int] = set()
    for frame, end in frames(data[0], 20 + skip, 16 + skip, codec):
        ident = i64(frame, 8 + skip)[0]
        one = Frame(endpoints[0], ident, u32(frame, 16 + skip)[0], u64(frame, skip)[0], u64(frame)[0] if skip else None)
        found.requests[one] += 1
        opened[abs(ident)] = both[0].packet(end)
        if ident < 0:
            negative.add(-ident)
    header = 16 if 5 in granted else 12
    for frame, _ in frames(data[1], header, 8, codec):
        ident = i64(frame)[0]
        one = Frame(endpoints[1], ident, u32(frame, 8)[0])
        found.responses[one] += 1
        if abs(ident) in opened:
            found.pairs[one, opened[abs(ident)]] += 1
        if (ident < 0) != (abs(ident) in negative):
            kind, rest = u32(frame, header)[0], frame[header + 8 :]
            found.exceptions[one, (kind, u64(rest)[0] if kind == 1 else rest)] += 1


# The tools


def ours(path: Path) -> Shown:
    found = Shown.nothing()
    inspector = Inspector([open_capture(str(path))], Options(bytes_as="hex"))
    asked: dict[int, int] = {}
    for record in inspector.records():
        if not isinstance(record, Message) or record.name not in ("Request", "Response", "Exception"):
            continue
        if record.fault is not None:
            continue
        fields = record.fields
        if record.name == "Request":
            found.requests[Frame(record.src, fields["msg_id"], fields["len"], fields["verb"], fields.get("timeout"))] += 1
            asked[record.number] = record.packets[1]
            continue
        one = Frame(record.src, fields["msg_id"], fields["len"])
        found.responses[one] += 1
        if record.request is not None:
            found.pairs[one, asked[record.request]] += 1
        if record.name == "Exception":
            what = fields.get("verb", fields.get("text"))
            found.exceptions[one, (fields["exception_type"], escaped(what) if isinstance(what, str) else what)] += 1
    return found


def escaped(text: str) -> bytes:
    """The bytes of a text as streamdump prints it."""
    if "\\" not in text:
        return text.encode()
    parts = re.split(r"\\(x[0-9a-f]{2}|\\)", text)
    return b"".join(one.encode() if index % 2 == 0 else b"\\" if one == "\\" else bytes.fromhex(one[1:]) for index, one in enumerate(parts))


def theirs(path: Path) -> Shown:
    ports = {endpoint.rpartition(":")[2] for endpoint in servers(path)}
    command = ["tshark", "-r", str(path), "-T", "pdml", "-J", "frame ip ipv6 tcp scylla"]
    for port in ports:
        command += ["-d", f"tcp.port=={port},scylla"]
    tree = ElementTree.fromstring(subprocess.run(command, capture_output=True, check=True).stdout)
    found = Shown.nothing()
    for packet in tree.iter("packet"):
        values = {field.get("name"): field.get("show", "") for field in packet.iter("field")}
        host = values.get("ip.src") or values.get("ipv6.src") or ""
        src = f"[{host}]:{values.get('tcp.srcport')}" if ":" in host else f"{host}:{values.get('tcp.srcport')}"
        for proto in packet.iter("proto"):
            if proto.get("name") == "scylla":
                shown = {field.get("name"): field.get("show", "") for field in proto.iter("field")}
                take(found, src, shown)
    return found


def servers(path: Path) -> Iterable[str]:
    inspector = Inspector([open_capture(str(path))])
    for _ in inspector.batches():
        pass
    return {row.server for row in inspector.rows() if row.server is not None} or {row.endpoints[1] for row in inspector.rows()}


def take(found: Shown, src: str, shown: dict[str | None, str]) -> None:
    """Adds a frame that tshark shows. It has no words for exceptions, so their types and texts are never shown."""
    if "scylla.msg_id" not in shown:
        return
    ident = int(shown["scylla.msg_id"])
    ident -= (ident >> 63) << 64
    if "scylla.request" in shown:
        one = Frame(src, ident, int(shown["scylla.len"]), int(shown["scylla.verb"]), int(shown["scylla.timeout"]))
        found.requests[one] += 1
        return
    one = Frame(src, ident, int(shown["scylla.response.size"]))
    found.responses[one] += 1
    if "scylla.response.request" in shown:
        found.pairs[one, int(shown["scylla.response.request"])] += 1


# The table


def right(there: Shown, shown: Shown) -> list[int]:
    both: list[tuple[Counter[Any], Counter[Any]]] = list(zip(there, shown, strict=True))
    return [(one & other).total() for one, other in both]


def invented(there: Shown, shown: Shown) -> int:
    return (shown.requests - there.requests).total() + (shown.responses - there.responses).total()


def undamaged() -> list[Path]:
    """The captures that the README lists as recorded, none of whose bytes are missing, but those in ScyllaDB's compression, which the
    plain reader does not unpack."""
    recorded = (FOLDER / "README.md").read_text().partition("## Derived")[0]
    return sorted(FOLDER / name for name in re.findall(r"^\| (\S+\.pcap\w*) \|", recorded, re.M) if not name.startswith("scylla_v3"))


def numbers(cells: list[int]) -> str:
    return "".join(f"{one:8}" for one in cells[:4]) + "".join(f"{one:10}" for one in cells[4:])


def main(paths: list[Path]) -> int:
    tools = [("streamdump", ours)] + ([("tshark", theirs)] if shutil.which("tshark") else [])
    totals = {name: [0] * 5 for name, _ in tools}
    there_total = [0] * 4
    width = max(len(path.stem) for path in paths)
    print(f"{'':{width}}  {'there are':<32}" + "".join(f"  | {name} right" + " " * (38 - len(name)) for name, _ in tools).rstrip())
    names = "".join(f"{kind:>8}" for kind in KINDS)
    print(f"{'capture':{width}}  {names}" + "".join(f"  |{names}{'invented':>10}" for _ in tools))
    for path in paths:
        there = truth(path)
        counts = [one.total() for one in there]
        there_total = [one + other for one, other in zip(there_total, counts, strict=True)]
        line = f"{path.stem:{width}}  {numbers(counts)}"
        for name, tool in tools:
            shown = tool(path)
            cells = [*right(there, shown), invented(there, shown)]
            totals[name] = [one + other for one, other in zip(totals[name], cells, strict=True)]
            line += f"  |{numbers(cells)}"
        print(line, flush=True)
    print(f"{'all':{width}}  {numbers(there_total)}" + "".join(f"  |{numbers(totals[name])}" for name, _ in tools))
    if len(tools) == 1:
        print("tshark is not installed: skipped")
    return int(totals["streamdump"] != [*there_total, 0])


if __name__ == "__main__":
    sys.exit(main([Path(one) for one in sys.argv[1:]] or undamaged()))
