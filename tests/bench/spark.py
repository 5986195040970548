"""What the pipeline costs beside the plain engine and tshark, on one generated capture.

python tests/bench/spark.py [--bytes 2000] [--growth 500,1000,4000] [--master local[2]] [--no-tshark]

The capture has 400 conversations of RabbitMQ Streams, one of them with a third of the bytes, and 0.2 % of the segments late or repeated.
Prints CPU and wall seconds, MB/s and messages/s per core (bytes and messages by CPU seconds), and the largest resident memory of the
driver, the JVM and a Python worker.
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
from pathlib import Path
from typing import Any, BinaryIO

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.bench.generate import Peer, Wire

CONVERSATIONS = 400
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


class Memory:
    """The largest resident memory of a process and its descendants, by what they are."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.most: dict[str, int] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def _watch(self) -> None:
        while not self._stop.wait(0.2):
            for pid in self._family(self.pid):
                try:
                    status = Path(f"/proc/{pid}/status").read_text()
                    name = Path(f"/proc/{pid}/comm").read_text().strip()
                except OSError:
                    continue
                found = [line for line in status.splitlines() if line.startswith("VmHWM")]
                if found:
                    what = "driver" if pid == self.pid else "JVM" if name == "java" else "worker"
                    self.most[what] = max(self.most.get(what, 0), int(found[0].split()[1]) // 1024)

    def _family(self, pid: int) -> list[int]:
        found, left = [], [pid]
        while left:
            one = left.pop()
            found.append(one)
            for children in Path(f"/proc/{one}/task").glob("*/children"):
                try:
                    left += [int(child) for child in children.read_text().split()]
                except OSError:
                    continue
        return found

    def stop(self) -> dict[str, int]:
        self._stop.set()
        self._thread.join()
        return self.most


def timed(command: list[str], **more: Any) -> tuple[float, float, dict[str, int]]:
    """Wall and CPU seconds of a command with all that it starts, and its memory."""
    before, start = os.times(), time.monotonic()
    process = subprocess.Popen(command, **more)
    memory = Memory(process.pid)
    code = process.wait()
    most = memory.stop()
    if code:
        raise SystemExit(f"{command[0]} ended with {code}")
    after = os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return time.monotonic() - start, cpu, most


def show(name: str, size: int, messages: int, found: tuple[float, float, dict[str, int]]) -> None:
    wall, cpu, most = found
    memory = ", ".join(f"{what} {value:,} MB" for what, value in sorted(most.items()))
    print(f"{name:<34}{wall:>8.1f}{cpu:>8.1f}{size / 1e6 / cpu:>9.1f}{messages / cpu:>12,.0f}   {memory}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--bytes", type=int, default=2000, help="of the capture, in millions")
    parser.add_argument("--growth", default="500,1000,4000", help="other sizes for the pipeline alone")
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--tshark", action=argparse.BooleanOptionalAction, default=True)
    options = parser.parse_args()
    own = [sys.executable, "-m", "cli"]
    print(f"{'':<34}{'wall s':>8}{'CPU s':>8}{'MB/CPUs':>9}{'msg/CPUs':>12}   resident at most")
    with tempfile.TemporaryDirectory(prefix="streamdump-bench-") as name:
        folder = Path(name)
        capture = folder / "capture.pcap"

        def pipeline(what: str, *more: str) -> None:
            out = folder / "out"
            call = [*own, "pipeline", str(capture), "--out", str(out), "--master", options.master, "-q", *more]
            found = timed(call)
            import pyarrow.parquet

            messages = sum(pyarrow.parquet.read_metadata(path).num_rows for path in (out / "messages").iterdir())
            show(what, capture.stat().st_size, messages, found)
            shutil.rmtree(out)

        generate(capture, options.bytes * 1_000_000)
        size = capture.stat().st_size
        lines = folder / "plain.json"
        with lines.open("wb") as out:
            found = timed([*own, "--json", "--exchanges", str(capture)], stdout=out, stderr=subprocess.DEVNULL)
        with lines.open("rb") as read:
            messages = sum(b'"record":"message"' in line[:40] for line in read)
        lines.unlink()
        show("plain engine, --json --exchanges", size, messages, found)
        pipeline("pipeline, shuffle")
        pipeline("pipeline, reread", "--payload", "reread")
        if options.tshark and shutil.which("tshark"):
            parse = f"{sys.executable} -c 'import sys, json\nfor line in sys.stdin:\n json.loads(line)'"
            call = f"tshark -n -r {capture} -T ek | {parse}"
            show("tshark -T ek | parse", size, 0, timed(["sh", "-c", call], stderr=subprocess.DEVNULL))
        for other in options.growth.split(","):
            if other:
                generate(capture, int(other) * 1_000_000)
                pipeline(f"pipeline, {other} MB")


if __name__ == "__main__":
    main()
