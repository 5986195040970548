"""Measures `streamdump browse`: the first screen, reading, what is remembered, filters, and messages that are read again.

python -m tests.bench.browse CAPTURE (python tests/bench/mix.py writes one)
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import random
import resource
import select
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

from streamdump.cli.indexed.reading import Reader, View
from streamdump.cli.run import FileRun
from streamdump.filter import compile_filter
from streamdump.model import Options
from streamdump.render.clock import Clock
from tests.support.waiting import cpu_s

FILTERS = ("outcome == refused", "latency > 20ms", "fields.stream == offs")
LOOKED_AT = 60


def first_screen(path: Path) -> float:
    """Seconds of CPU until a terminal has the first records."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    call = [sys.executable, "-m", "streamdump", "browse", str(path)]
    with subprocess.Popen(call, stdin=slave, stdout=slave, stderr=slave, env=os.environ | {"TERM": "xterm"}) as process:
        seen, taken = b"", 0.0
        while b"0.000000" not in seen:
            if select.select([master], [], [], 0.01)[0]:
                seen += os.read(master, 1 << 16)
            taken = cpu_s(process.pid)
        process.terminate()
        while process.poll() is None:
            if select.select([master], [], [], 0.01)[0]:
                os.read(master, 1 << 16)
    os.close(slave)
    os.close(master)
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("capture", type=Path)
    path = parser.parse_args().capture
    print(f"first screen: {min(first_screen(path) for _ in range(3)):.2f} s of CPU")
    begun = time.process_time()
    run = FileRun([str(path)], Options(findings=True))
    reader = Reader(run, run.inspector.options, Clock("r"))
    reader.shown.set()
    reader.start()
    reader.stop(wait_all=True)
    records = len(reader.records)
    print(f"read: {time.process_time() - begun:.1f} s of CPU, {records:,} records, {reader.records.size / records:.1f} bytes each")
    print(f"memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10:,} MB")
    for text in FILTERS:
        begun = time.process_time()
        view = View(reader, None, compile_filter(text, reader.options))
        while not view.done:
            time.sleep(0.01)
        print(f"{text}: {time.process_time() - begun:.1f} s of CPU, {len(view):,} records")
    chosen = random.Random(1)
    taken = []
    for at in (0, records - 1, *(chosen.randrange(records) for _ in range(LOOKED_AT))):
        begun = time.process_time()
        reader.full(at)
        taken.append(time.process_time() - begun)
    taken.sort()
    print(f"a message read again: {taken[len(taken) // 2] * 1e3:.1f} ms of CPU, {taken[-1] * 1e3:.0f} ms at most")
    reader.stop()


if __name__ == "__main__":
    main()
