"""The budgets, as ratios of CPU time against tshark from one alternating run.

python tests/bench/ratios.py [--packets 300000] [--rounds 3]

Needs tshark on the PATH. Builds its captures on the spot, runs both tools in turn, and prints the median ratio of user plus
system CPU seconds, messages a second, resident memory for 1 and 8 times the packets, and the start-up costs.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from generate import write

STREAMDUMP = [sys.executable, "-m", "cli"]
SMALL = Path(__file__).parents[2] / "captures" / "golden" / "rabbitmq-stream" / "handshake_close_405.pcap"

ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
"""Whoever installs a program has its modules compiled once, not in each run."""


def usage(command: list[str], most: int | None = None) -> tuple[float, int, int]:
    """CPU seconds, peak resident KiB and exit code of one run, its output thrown away; it is ended after `most` seconds of CPU."""
    limits = None if most is None else lambda: resource.setrlimit(resource.RLIMIT_CPU, (most, most))
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=ENVIRONMENT, preexec_fn=limits)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return used.ru_utime + used.ru_stime, used.ru_maxrss, process.returncode


def run(command: list[str]) -> tuple[float, int]:
    """CPU seconds and peak resident KiB of one run that has to succeed."""
    cpu, memory, status = usage(command)
    if status:
        raise SystemExit(f"{' '.join(command)} ended with {status}")
    return cpu, memory


def median_of(rounds: list[tuple[float, int]]) -> float:
    return statistics.median(cpu for cpu, _ in rounds)


def compare(capture: Path, ours: list[str], theirs: list[str], rounds: int, target: float | None, what: str) -> None:
    pairs = [(run([*STREAMDUMP, *ours, str(capture)]), run(["tshark", "-r", str(capture), *theirs])) for _ in range(rounds)]
    mine, their = median_of([one for one, _ in pairs]), median_of([one for _, one in pairs])
    ratio = statistics.median(their[0] / mine[0] for mine, their in pairs)
    wanted = "" if target is None else f"  (target {target:g})"
    print(f"{what:34} streamdump {mine:6.2f} s   tshark {their:6.2f} s   ratio {ratio:5.1f}{wanted}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--packets", type=int, default=300_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if shutil.which("tshark") is None:
        raise SystemExit("tshark is not installed: there is nothing to compare with")
    run([*STREAMDUMP, str(SMALL)])
    with tempfile.TemporaryDirectory() as folder:
        mixed, dense = Path(folder, "mixed.pcap"), Path(folder, "dense.pcap")
        write(mixed, options.packets, 40, 2, amqp=False)
        write(dense, options.packets // 10, 40, 100, amqp=True)
        compare(mixed, ["--json"], ["-T", "json"], options.rounds, 20, "--json against tshark -T json")
        compare(mixed, [], [], options.rounds, 2, "text against plain tshark")
        compare(dense, ["--json"], ["-T", "json"], options.rounds, None, "100 AMQP entries a frame, --json")
        compare(dense, [], [], options.rounds, None, "100 AMQP entries a frame, text")
        # Read piece by piece: a child's peak memory counts from that of the process it was forked from.
        with subprocess.Popen([*STREAMDUMP, "--json", str(mixed)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
            assert process.stdout is not None
            messages = sum(piece.count(b"\n") for piece in iter(lambda: process.stdout.read(1 << 16), b""))  # type: ignore[union-attr]
        cpu, one = run([*STREAMDUMP, "--json", str(mixed)])
        print(f"{messages:,} messages of {options.packets:,} packets: {messages / cpu:,.0f} messages a CPU second")
        large = Path(folder, "large.pcap")
        write(large, options.packets * 8, 40, 2, amqp=False)
        _, eight = run([*STREAMDUMP, "--json", str(large)])
        print(
            f"resident memory: {one / 1024:.0f} MiB, for 8 times the packets {eight / 1024:.0f} MiB: {eight / one - 1:+.1%}  (target +10 %)"
        )
    small = statistics.median(run([*STREAMDUMP, str(SMALL)])[0] for _ in range(5))
    help_ = statistics.median(run([*STREAMDUMP, "--help"])[0] for _ in range(5))
    print(f"a small capture: {small:.2f} s CPU (target 0.5), --help: {help_:.2f} s CPU (target 0.3)")
    print(f"page size {resource.getpagesize()}, {os.cpu_count()} processors, Python {sys.version.split()[0]}")


if __name__ == "__main__":
    main()
