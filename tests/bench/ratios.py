"""The budgets, as ratios of CPU time against tshark from one alternating run.

python tests/bench/ratios.py [--rounds 3] [--only mix,bson,...]

Needs tshark on the PATH. Builds its captures on the spot, runs both tools in turn, and prints the median ratio of user plus
system CPU seconds for each option, megabytes of packets a CPU second, the CPU seconds to the first line, what 8 times the packets and
short conversations cost, and the start-up costs.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parent))
import mix
import twins
from generate import write, write_short

from streamdump.wireshark import plugin

STREAMDUMP = [sys.executable, "-m", "streamdump"]
GOLDEN = Path(__file__).parents[2] / "captures" / "golden"
SMALL = {
    "rabbitmq-stream": "handshake_close_405.pcap",
    "iggy": "py080-basic.pcap",
    "seastar-rpc": "basic.pcap",
    "mewbase": "java-admin.pcap",
}

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


CELLS = (("--json", ["--json"], ["-T", "json"]), ("text", [], []), ("-V", ["-V"], ["-V"]), ("-q", ["-q"], []), ("latency", ["latency"], []))
"""Options of ours and of tshark for the columns of the table."""

PLUGIN = ("rabbitmq-stream", "iggy")
"""What tshark reads too, with what `streamdump wireshark` prints."""

MONGO = ["-d", "tcp.port==27017,mongo"]


def first_line(path: Path) -> float:
    """CPU seconds to the first line of text, as a pipe gets it."""
    with subprocess.Popen([*STREAMDUMP, str(path)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=ENVIRONMENT) as process:
        assert process.stdout is not None
        process.stdout.readline()
        fields = Path(f"/proc/{process.pid}/stat").read_bytes().rpartition(b") ")[2].split()
        process.kill()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def compare(what: str, ours: Path, theirs: Path, targets: Sequence[float | None], rounds: int, more: Sequence[str] = ()) -> None:
    """A line of the table: CPU of tshark divided by ours, alternating."""
    size = ours.stat().st_size / 1e6
    print(f"{what:30} {size:.1f} MB, first line after {median([first_line(ours) for _ in range(3)]):.2f} s", flush=True)
    for (name, own, their), target in zip(CELLS, targets, strict=False):
        if target == 0:
            continue
        mine, other, ratios = [], [], []
        for _ in range(rounds):
            mine.append(run([*STREAMDUMP, *own, str(ours)])[0])
            other.append(run(["tshark", "-r", str(theirs), *their, *more])[0])
            ratios.append(other[-1] / mine[-1])
        wanted = "" if target is None else f"  (target {target:g})"
        print(
            f"{what:30} {name:7} streamdump {median(mine):6.2f} s   tshark {median(other):6.2f} s   ratio {median(ratios):5.2f}"
            f"   {size / median(mine):5.1f} MB a CPU s{wanted}",
            flush=True,
        )


def growth(folder: Path) -> None:
    """What more packets and shorter conversations cost."""
    one, eight = folder / "one.pcap", folder / "eight.pcap"
    mix.write(one, 0, 30_000)
    mix.write(eight, 0, 240_000)
    more = (240_000 - 30_000) / sum(map(len, mix.sources())) * len(mix.sources())
    for own in (["--json"], []):
        (cpu, memory), (cpu_8, memory_8) = (run([*STREAMDUMP, *own, str(path)]) for path in (one, eight))
        print(
            f"8 times the real mix, {' '.join(own) or 'text'}: {cpu_8 / cpu:.1f} times the CPU, memory {memory / 1024:.0f} and "
            f"{memory_8 / 1024:.0f} MiB: {(memory_8 - memory) / more:.1f} KiB a capture more  (target 8; 1 a conversation)",
            flush=True,
        )
    write(one, 75_000, 40, 2, amqp=False)
    write(eight, 600_000, 40, 2, amqp=False)
    (cpu, memory), (cpu_8, memory_8) = (run([*STREAMDUMP, "--json", str(path)]) for path in (one, eight))
    print(
        f"8 times the small messages, --json: {cpu_8 / cpu:.1f} times the CPU, memory {memory / 1024:.0f} and "
        f"{memory_8 / 1024:.0f} MiB: {memory_8 / memory - 1:+.1%}  (target 8, +10 %)",
        flush=True,
    )
    long, short = folder / "long.pcap", folder / "short.pcap"
    write(long, 60_000, 40, 2, amqp=False)
    write_short(short, 10_000)
    for own in (["--json"], []):
        (cpu, _), (cpu_short, _) = (run([*STREAMDUMP, *own, str(path)]) for path in (long, short))
        print(
            f"10,000 conversations of 6 packets, {' '.join(own) or 'text'}: {cpu_short / cpu:.1f} times 40 long ones  (target 2)",
            flush=True,
        )


def start() -> None:
    small = {name: GOLDEN / name / file for name, file in SMALL.items()}
    for name, path in small.items():
        mine = median([run([*STREAMDUMP, str(path)])[0] for _ in range(5)])
        their = median([run(["tshark", "-r", str(path)])[0] for _ in range(5)])
        print(f"a small capture, {name}: {mine:.2f} s CPU, tshark {their:.2f}", flush=True)
    print(f"--help: {median([run([*STREAMDUMP, '--help'])[0] for _ in range(5)]):.2f} s CPU (target half of tshark's)")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--packets", type=int, default=300_000, help="of the small messages")
    parser.add_argument("--bytes", type=int, default=100, help="of a family alone and of other protocols, in millions")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="mix,families,foreign,plugin,bson,amqp,small,dense,growth,start", help="some of the lines")
    options = parser.parse_args()
    if shutil.which("tshark") is None:
        raise SystemExit("tshark is not installed: there is nothing to compare with")
    wanted, rounds = options.only.split(","), options.rounds
    print(f"load {os.getloadavg()[0]:.1f}, {os.cpu_count()} processors, Python {sys.version.split()[0]}", flush=True)
    run([*STREAMDUMP, "-q", str(next(GOLDEN.glob("mewbase/java-admin.pcap")))])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ours, theirs = folder / "ours.pcap", folder / "theirs.pcap"
        if "mix" in wanted:
            mix.write(ours, 0, 60_000)
            compare("real mix", ours, ours, (6, 0.9, 0.9, 1.5, 1.3), rounds)
        if "families" in wanted:
            for name in SMALL:
                mix.write(ours, options.bytes * 1_000_000, protocols=(name,))
                compare(f"{name} alone", ours, ours, (None,) * 5, rounds)
        if "foreign" in wanted:
            mix.write(ours, options.bytes * 1_000_000, captures=mix.mostly_foreign())
            compare("95 % of other protocols", ours, ours, (None,) * 5, rounds)
        if "plugin" in wanted:
            script = folder / "streamdump.lua"
            script.write_text(plugin("0"), encoding="utf-8")
            mix.write(ours, 0, 20_000, PLUGIN)
            compare("the same work, with our plugin", ours, ours, (None, None, None), rounds, ["-X", f"lua_script:{script}"])
        if "bson" in wanted:
            twins.write("bson", ours, theirs, 60_000)
            compare("BSON, mewbase and MongoDB", ours, theirs, (10, 0.8, 0.9), rounds, MONGO)
        if "amqp" in wanted:
            twins.write("amqp", ours, theirs, 15_000)
            compare("AMQP 1.0, RabbitMQ and its own", ours, theirs, (None, None, None), rounds)
        if "small" in wanted:
            write(ours, options.packets, 40, 2, amqp=False)
            compare("small messages", ours, ours, (17, 1.2, 0, 3, 2.5), rounds)
        if "dense" in wanted:
            write(ours, options.packets // 10, 40, 100, amqp=True)
            compare("100 AMQP entries a frame", ours, ours, (None, None), rounds)
        if "growth" in wanted:
            growth(folder)
    if "start" in wanted:
        start()


if __name__ == "__main__":
    main()
