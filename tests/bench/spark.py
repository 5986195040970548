"""What the pipeline costs beside the plain engine and tshark, on one generated capture.

python tests/bench/spark.py [--bytes 2000] [--growth 500,1000,4000] [--master local[2]] [--tshark-bytes 200] [--no-tshark]

The capture has 400 conversations of RabbitMQ Streams, one of them with a third of the bytes, and 0.2 % of the segments late or repeated.
Prints wall and CPU seconds, MB/s and messages/s per core (bytes and messages by CPU seconds), the CPU seconds and the largest resident
memory of the driver, the JVM and the Python workers (of one of them, and of all processes together at any one time). Ends with an error
where the tables say anything else than the plain engine: counts, bytes and latencies of each kind of record are compared.
`tshark -T json`, whose output is parsed packet by packet, takes the first `--tshark-bytes` of the same file, 0 for all of it.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.bench.generate import Peer, Wire

CONVERSATIONS = 400
TICKS = os.sysconf("SC_CLK_TCK")
SPOILT = 0.001
"""Of the segments so many are late, and as many come twice."""


class Spoiling:
    """A file that writes a few packets late or twice."""

    def __init__(self, out: BinaryIO) -> None:
        self.out = out
        self.random = random.Random(11)
        self.late: list[bytes] = []

    def write(self, record: bytes) -> None:
        what = self.random.random()
        if what < SPOILT and len(record) > 200:
            self.late.append(record)
            return
        self.out.write(record)
        if what > 1 - SPOILT:
            self.out.write(record)
        if self.late and what < 0.3:
            late = self.late.pop()
            self.out.write(record[:8] + late[8:])


def generate(path: Path, size: int) -> None:
    """Writes a capture of about `size` bytes."""
    with path.open("wb") as file:
        wire = Wire(Spoiling(file), 1)  # type: ignore[arg-type]
        file.write(struct.pack("<IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, 65_535, 1))
        small = [Peer(one, 8, False).traffic() for one in range(CONVERSATIONS)]
        for one in range(CONVERSATIONS):
            for side, flags in ((0, 0x02), (1, 0x12), (0, 0x10)):
                wire.packet(one, side, flags)
        dice = random.Random(7)
        while True:
            for _ in range(2000):
                one = 0 if dice.random() < 1 / 3 else dice.randrange(CONVERSATIONS)
                side, payload = next(small[one])
                wire.data(one, side, payload)
            if file.tell() >= size:
                return


class Watch:
    """CPU seconds and the largest resident memory of processes and their descendants, by what they are."""

    def __init__(self, roots: dict[int, str]) -> None:
        self.roots = roots
        self.cpu: dict[int, tuple[str, float]] = {}
        self.most: dict[str, int] = {}
        self.together = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def _watch(self) -> None:
        while not self._stop.wait(0.05):
            resident = 0
            for pid in self._family():
                try:
                    status = Path(f"/proc/{pid}/status").read_text()
                    stat = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
                    name = Path(f"/proc/{pid}/comm").read_text().strip()
                except OSError:
                    continue
                found = {line.partition(":")[0]: line.split()[1] for line in status.splitlines() if line.startswith(("VmHWM", "VmRSS"))}
                what = self.roots.get(pid) or ("JVM" if name == "java" else "worker")
                # Those that start workers wait for none of them: nobody else has their times when they are gone.
                self.cpu[pid] = what, (int(stat[11]) + int(stat[12])) / TICKS
                if found:
                    self.most[what] = max(self.most.get(what, 0), int(found["VmHWM"]) // 1024)
                    resident += int(found["VmRSS"]) // 1024
            self.together = max(self.together, resident)

    def _family(self) -> list[int]:
        found, left = [], [*self.roots]
        while left:
            one = left.pop(0)
            found.append(one)
            for children in Path(f"/proc/{one}/task").glob("*/children"):
                try:
                    left += [int(child) for child in children.read_text().split()]
                except OSError:
                    continue
        return found

    def stop(self) -> Cost:
        self._stop.set()
        self._thread.join()
        cpu: dict[str, float] = {}
        for what, seconds in self.cpu.values():
            cpu[what] = cpu.get(what, 0) + seconds
        return Cost(0, cpu, self.most, self.together)


@dataclass
class Cost:
    """Of what ran."""

    wall: float
    cpu: dict[str, float]
    """CPU seconds by what the processes are."""
    most: dict[str, int]
    """MB of the largest one."""
    together: int


def timed(name: str, command: list[str], into: list[str] | None = None, **more: Any) -> Cost:
    """What a command costs with all that it starts, and the one that its output goes into."""
    start = time.monotonic()
    if into is not None:
        more["stdout"] = subprocess.PIPE
    processes = [subprocess.Popen(command, **more)]
    roots = {processes[0].pid: name}
    if into is not None:
        processes.append(subprocess.Popen(into, stdin=processes[0].stdout, stdout=subprocess.DEVNULL))
        roots[processes[1].pid] = Path(into[-1]).name
        assert processes[0].stdout is not None
        processes[0].stdout.close()
    watch = Watch(roots)
    codes = [process.wait() for process in processes]
    wall = time.monotonic() - start
    cost = watch.stop()
    if any(codes):
        raise SystemExit(f"{command[0]} ended with {codes}")
    cost.wall = wall
    return cost


def show(name: str, size: int, messages: int, cost: Cost) -> None:
    cpu = sum(cost.cpu.values())
    parts = [f"{what} {cost.cpu[what]:,.1f} s {cost.most.get(what, 0):,} MB" for what in cost.cpu]
    if len(parts) > 1:
        parts.append(f"together {cost.together:,} MB")
    each = f"{messages / cpu:,.0f}" if messages else ""
    print(f"{name:<38}{cost.wall:>8.1f}{cpu:>8.1f}{size / 1e6 / cpu:>9.2f}{each:>12}   {', '.join(parts)}", flush=True)


class Line(msgspec.Struct):
    """What is compared of a record."""

    record: str
    name: str = ""
    size: int = 0
    latency_ns: int | None = None


Totals = dict[tuple[str, str], tuple[int, int, int]]
"""Number, bytes and latencies of the records of each kind and name."""


def told(lines: BinaryIO) -> Totals:
    """Of the plain engine."""
    decode = msgspec.json.Decoder(Line).decode
    found: Totals = {}
    for line in lines:
        one = decode(line)
        count, size, latency = found.get((one.record, one.name), (0, 0, 0))
        found[one.record, one.name] = count + 1, size + one.size, latency + (one.latency_ns or 0)
    return found


def written(out: Path) -> Totals:
    """Of the tables."""
    import pyarrow.parquet

    found: Totals = {}
    for table, record in (("messages", "message"), ("exchanges", "exchange"), ("gaps", "gap")):
        for path in (out / table).iterdir():
            file = pyarrow.parquet.ParquetFile(path)
            columns = [name for name in ("name", "size", "latency_ns") if name in file.schema_arrow.names]
            for batch in file.iter_batches(columns=columns):
                values = {name: batch.column(name).to_pylist() for name in columns}
                nothing = [None] * batch.num_rows
                for name, size, latency in zip(*(values.get(one, nothing) for one in ("name", "size", "latency_ns")), strict=True):
                    key = record, name or ""
                    before = found.get(key, (0, 0, 0))
                    found[key] = before[0] + 1, before[1] + (size or 0), before[2] + (latency or 0)
    return found


def number(totals: Totals) -> int:
    """Of messages."""
    return sum(count for (record, _), (count, _, _) in totals.items() if record == "message")


def beginning(capture: Path, size: int, out: Path) -> Path:
    """The whole packets in the first bytes of a capture; 0: the capture."""
    if not 0 < size < capture.stat().st_size:
        return capture
    with capture.open("rb") as read, out.open("wb") as write:
        write.write(read.read(24))
        while write.tell() < size:
            head = read.read(16)
            write.write(head + read.read(int.from_bytes(head[8:12], "little")))
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--bytes", type=int, default=2000, help="of the capture, in millions")
    parser.add_argument("--growth", default="500,1000,4000", help="other sizes for the pipeline alone")
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--tshark-bytes", type=int, default=200, help="of the capture that tshark reads, in millions; 0: all")
    parser.add_argument("--tshark", action=argparse.BooleanOptionalAction, default=True)
    options = parser.parse_args()
    own = [sys.executable, "-m", "cli"]
    print(f"{'':<38}{'wall s':>8}{'CPU s':>8}{'MB/CPUs':>9}{'msg/CPUs':>12}   CPU and largest resident memory of")
    with tempfile.TemporaryDirectory(prefix="streamdump-bench-") as name:
        folder = Path(name)
        capture = folder / "capture.pcap"

        def pipeline(what: str, expected: Totals | None, *more: str) -> None:
            out = folder / "out"
            call = [*own, "pipeline", str(capture), "--out", str(out), "--master", options.master, "-q", *more]
            cost = timed("driver", call)
            totals = written(out)
            if expected is not None and totals != expected:
                raise SystemExit(f"{what}: {totals} instead of {expected}")
            show(what, capture.stat().st_size, number(totals), cost)
            shutil.rmtree(out)

        generate(capture, options.bytes * 1_000_000)
        size = capture.stat().st_size
        lines = folder / "plain.json"
        with lines.open("wb") as out:
            cost = timed("process", [*own, "--json", "--exchanges", str(capture)], stdout=out, stderr=subprocess.DEVNULL)
        with lines.open("rb") as read:
            totals = told(read)
        lines.unlink()
        show("plain engine, --json --exchanges", size, number(totals), cost)
        pipeline("pipeline, shuffle", totals)
        pipeline("pipeline, reread", totals, "--payload", "reread")
        if options.tshark and shutil.which("tshark"):
            part = beginning(capture, options.tshark_bytes * 1_000_000, folder / "part.pcap")
            call = ["tshark", "-n", "-r", str(part), "-T", "json"]
            parse = [sys.executable, str(Path(__file__).with_name("parse.py"))]
            of = "all" if part == capture else f"the first {part.stat().st_size / 1e6:,.0f} MB"
            show(f"tshark -T json | parse, {of}", part.stat().st_size, 0, timed("tshark", call, parse, stderr=subprocess.DEVNULL))
        for other in options.growth.split(","):
            if other:
                generate(capture, int(other) * 1_000_000)
                pipeline(f"pipeline, {other} MB", None)


if __name__ == "__main__":
    main()
