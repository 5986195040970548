"""What the pipeline costs beside the plain engine, on captures that are made on the spot.

python tests/bench/spark.py [--rows tiny,mix:60,small:60,...] [--master local[2]] [--more='--fields typed'] [--tshark]

| row | capture |
| --- | --- |
| tiny | one golden capture |
| mix:MB | copies of golden captures, interleaved (`mix.py`) |
| small:MB | 400 conversations of small messages, one of them with a third of the bytes, 0.2 % of the segments late or repeated |
| files:N | so many files with a conversation each |
| conversations:N | one file of so many conversations, all of them open at the same time |
| short:N | one file of so many conversations of six packets, 40 of them open at the same time |
| connection:MB | one connection |

Prints wall and CPU seconds, MB/s and messages/s per core (bytes and messages by CPU seconds), the CPU seconds and the largest resident
memory of the driver, the JVM and the Python workers (of one of them, and of all processes together at any one time), and for the pipeline
its CPU seconds beyond those of a trivial job, measured right before, as a multiple of the plain engine's. Ends with an error where the
tables differ from the plain engine: counts, bytes and latencies of each kind of record are compared.
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

from tests.bench import mix
from tests.bench.generate import Peer, Wire, write, write_short

SMALL = Path(__file__).parents[2] / "captures" / "golden" / "rabbitmq-stream" / "handshake_close_405.pcap"
ROWS = "tiny,mix:60,mix:250,mix:1000,small:60,small:250,small:1000,files:1000,conversations:30000,connection:500"
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


def generate(path: Path, size: int, conversations: int = CONVERSATIONS) -> None:
    """Writes a capture of about `size` bytes."""
    with path.open("wb") as file:
        wire = Wire(Spoiling(file), 1)  # type: ignore[arg-type]
        file.write(struct.pack("<IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, 65_535, 1))
        small = [Peer(one, 8, False).traffic() for one in range(conversations)]
        for one in range(conversations):
            for side, flags in ((0, 0x02), (1, 0x12), (0, 0x10)):
                wire.packet(one, side, flags)
        dice = random.Random(7)
        while True:
            for _ in range(2000):
                one = 0 if dice.random() < 1 / 3 else dice.randrange(conversations)
                side, payload = next(small[one])
                wire.data(one, side, payload)
            if file.tell() >= size:
                return


def make(row: str, folder: Path) -> list[Path]:
    """The captures of a row."""
    kind, _, number = row.partition(":")
    many = int(number or 0)
    path = folder / "capture.pcap"
    if kind == "tiny":
        shutil.copy(SMALL, path)
    elif kind == "mix":
        mix.write(path, many * 1_000_000)
    elif kind == "small":
        generate(path, many * 1_000_000)
    elif kind == "connection":
        generate(path, many * 1_000_000, 1)
    elif kind == "conversations":
        write(path, many * 12, many, 2, amqp=False)
    elif kind == "short":
        write_short(path, many)
    elif kind == "files":
        for at in range(many):
            write(folder / f"{at:05}.pcap", 150, 1, 2, amqp=False, seed=at, first=at)
        return sorted(folder.glob("0*.pcap"))
    else:
        raise SystemExit(f"{row}: there is no such row")
    return [path]


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
            try:
                for children in Path(f"/proc/{one}/task").glob("*/children"):
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
    how: str = ""


Totals = dict[tuple[str, str], tuple[int, int, int]]
"""Number, bytes and latencies of the records of each kind and name."""


def told(lines: BinaryIO) -> Totals:
    """Of the plain engine, without the endings of conversations that it forgot for newer ones, which a task never does."""
    decode = msgspec.json.Decoder(Line).decode
    found: Totals = {}
    for line in lines:
        one = decode(line)
        if one.how == "forgotten":
            continue
        count, size, latency = found.get((one.record, one.name), (0, 0, 0))
        found[one.record, one.name] = count + 1, size + one.size, latency + (one.latency_ns or 0)
    return found


def written(out: Path) -> Totals:
    """Of the tables."""
    import pyarrow.parquet

    found: Totals = {}
    for table, record in (("messages", "message"), ("exchanges", "exchange"), ("gaps", "gap"), ("endings", "ending")):
        for path in (out / table).iterdir():
            file = pyarrow.parquet.ParquetFile(path)
            columns = [name for name in ("time_ns", "name", "size", "latency_ns") if name in file.schema_arrow.names]
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", default=ROWS)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--more", default="", help="more options of the pipeline")
    parser.add_argument("--tshark", action="store_true", help="also tshark -T json, parsed packet by packet")
    options = parser.parse_args()
    own = [sys.executable, "-m", "streamdump"]
    print(f"{'':<38}{'wall s':>8}{'CPU s':>8}{'MB/CPUs':>9}{'msg/CPUs':>12}   CPU and largest resident memory of")
    for row in options.rows.split(","):
        with tempfile.TemporaryDirectory(prefix="streamdump-bench-") as name:
            folder = Path(name)
            captures = make(row, folder)
            size = sum(path.stat().st_size for path in captures)
            lines = folder / "plain.json"
            with lines.open("wb") as out:
                call = [*own, "--json", "--exchanges", *map(str, captures)]
                plain = timed("process", call, stdout=out, stderr=subprocess.DEVNULL)
            with lines.open("rb") as read:
                totals = told(read)
            lines.unlink()
            show(f"{row}, plain engine", size, number(totals), plain)
            tables, trivial = folder / "tables", folder / "trivial"
            more = ["--master", options.master, *options.more.split()]
            start = timed("driver", [*own, "pipeline", str(SMALL), "--out", str(trivial), *more], stderr=subprocess.DEVNULL)
            show("trivial job, pipeline", SMALL.stat().st_size, 0, start)
            call = [*own, "pipeline", *map(str, captures), "--out", str(tables), *more]
            cost = timed("driver", call, stderr=subprocess.DEVNULL)
            found = written(tables)
            if found != totals:
                wrong = {one: pair for one in found.keys() | totals.keys() if len(set(pair := (found.get(one), totals.get(one)))) > 1}
                raise SystemExit(f"{row}: tables and plain engine differ in {wrong}")
            show(f"{row}, pipeline", size, number(totals), cost)
            beyond = sum(cost.cpu.values()) - sum(start.cpu.values())
            print(f"{'':<38}{beyond / sum(plain.cpu.values()):>16.2f} times the plain engine, beyond the trivial job")
            if options.tshark and shutil.which("tshark") and len(captures) == 1:
                call = ["tshark", "-n", "-r", str(captures[0]), "-T", "json"]
                parse = [sys.executable, str(Path(__file__).with_name("parse.py"))]
                show(f"{row}, tshark -T json | parse", size, 0, timed("tshark", call, parse, stderr=subprocess.DEVNULL))


if __name__ == "__main__":
    main()
