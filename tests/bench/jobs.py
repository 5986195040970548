"""What `--jobs` brings: CPU seconds of each process, wall time, memory, and whether the output is the same.

python tests/bench/jobs.py CAPTURE [--jobs 2] [--views text,json,quiet,latency] [--rounds 1]

On a machine that does other things, look at `bound`, the CPU of the process that took most by that of `--jobs 1`: no run can be faster, and
one whose processes have a processor each is about as fast. `share`: what the merging process takes of all.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
VIEWS = {"text": [], "json": ["--json"], "quiet": ["-q"], "latency": ["latency"], "tree": ["-V"], "conversations": ["conversations"]}
TICK = os.sysconf("SC_CLK_TCK")


class Run(NamedTuple):
    """Of one run: seconds, CPU seconds of the process and of each worker, the most MB of each, and what it wrote."""

    wall: float
    cpu: list[float]
    memory: list[int]
    output: str


def state(process: int) -> tuple[int, float, int]:
    """Parent, CPU seconds, and the most MB of a process."""
    fields = Path(f"/proc/{process}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    status = Path(f"/proc/{process}/status").read_text(encoding="ascii")
    peak = int(status.partition("VmHWM:")[2].split()[0]) // 1024 if "VmHWM:" in status else 0
    return int(fields[1]), (int(fields[11]) + int(fields[12])) / TICK, peak


def run(capture: str, view: str, jobs: int) -> Run:
    """One run, whose processes are looked at as it goes on."""
    with tempfile.TemporaryFile() as out:
        begin = time.monotonic()
        command = [sys.executable, "-m", "streamdump", *VIEWS[view], "--jobs", str(jobs), capture]
        main = subprocess.Popen(command, stdout=out, stderr=out, env={**os.environ, "PYTHONPATH": str(ROOT / ".src")})
        cpu: dict[int, float] = {}
        memory: dict[int, int] = {}
        while main.poll() is None:
            for path in Path("/proc").glob("[0-9]*"):
                with suppress(OSError, IndexError, ValueError):
                    parent, seconds, peak = state(int(path.name))
                    if main.pid in (int(path.name), parent):
                        cpu[int(path.name)], memory[int(path.name)] = seconds, max(peak, memory.get(int(path.name), 0))
            time.sleep(0.02)
        wall = time.monotonic() - begin
        out.seek(0)
        digest = hashlib.file_digest(out, "sha256").hexdigest()[:12]
    # multiprocessing's tracker does nothing
    busy = [one for one in sorted(cpu, key=lambda one: one != main.pid) if one == main.pid or cpu[one] >= 0.1]
    return Run(wall, [cpu[one] for one in busy], [memory[one] for one in busy], digest)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("capture")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--views", default="text,json,quiet,latency")
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    for view in options.views.split(","):
        for _ in range(options.rounds):
            alone, divided = run(options.capture, view, 1), run(options.capture, view, options.jobs)
            shares = ", ".join(f"{seconds:.2f}" for seconds in divided.cpu[1:])
            print(
                f"{view}: one {alone.cpu[0]:.2f} s; merging {divided.cpu[0]:.2f} s, workers {shares} s; "
                f"bound {max(divided.cpu) / alone.cpu[0]:.2f}, share {divided.cpu[0] / sum(divided.cpu):.2f}, "
                f"all {sum(divided.cpu) / alone.cpu[0]:.2f}; wall {alone.wall:.1f} and {divided.wall:.1f} s; "
                f"MB {alone.memory[0]} and {'+'.join(map(str, divided.memory))}; "
                f"output {'the same' if alone.output == divided.output else 'DIFFERS'}",
                flush=True,
            )


if __name__ == "__main__":
    main()
