"""Compares the CPU time of two checkouts of streamdump, stage by stage and view by view.

python -m tests.bench.compare OLD NEW [CAPTURE...] [--rounds 30] [--packets 6000] [--only all,text,...]

Two worker processes, one a checkout, run the same work in turn, in an order that changes with each round. Of each piece of work the
minimum and the lower quartile are printed, for both in milliseconds of CPU, and old divided by new. The output of both must be equal,
byte for byte. Without captures it writes those of `generate.py` (small messages) and `mix.py` (each protocol's real captures, and all).

The stages are cumulative: `read` reads the file, `link` parses the headers, `tcp` reassembles, `parse` detects protocols and makes
records, `pair` pairs them, and `all` numbers them and hands them out. The other rows are complete views in the worker, with warm caches;
`command` is a new process that prints the capture as text.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

FAMILIES = ("rabbitmq-stream", "iggy", "seastar-rpc", "mewbase")

VIEWS: dict[str, list[str]] = {
    "-q": ["-q"],
    "text": [],
    "json": ["--json"],
    "-V": ["-V"],
    "diagnose": ["diagnose"],
    "latency": ["latency"],
}


# The worker: imports streamdump from the checkout that PYTHONPATH names


def read(path: str) -> int:
    from streamdump.capture.files import open_capture

    return sum(len(batch) for batch in open_capture(path).batches())


def segments(path: str) -> Iterator[Any]:
    from streamdump.capture.files import open_capture
    from streamdump.capture.link import LinkParser

    parse, order = LinkParser().segment, 0
    for batch in open_capture(path).batches():
        for packet in batch:
            segment = parse(packet, order)
            order += 1
            if segment is not None:
                yield segment


def link(path: str) -> int:
    return sum(1 for _ in segments(path))


def tcp(path: str) -> int:
    from streamdump.capture.ends import back, endpoints
    from streamdump.options import Options
    from streamdump.tcp.assembler import Pool, TcpStream

    pool, known, count = Pool(Options()), {}, 0
    for segment in segments(path):
        ends = segment.ends
        while True:
            found = known.get(ends)
            if found is None:
                side = int(segment.flags & 18 == 18)
                one, two = endpoints(back(ends) if side else ends)
                first = (segment.order, segment.number, segment.file, segment.time_ns)
                stream = TcpStream((one[0], two[0]), (one[1], two[1]), first, 0, pool)
                known[back(ends)] = stream, 1 - side
                found = known[ends] = stream, side
            items = found[0].feed(segment, found[1])
            if items is not None:
                break
            del known[ends]
        count += len(items)
    return count


def parse(path: str) -> int:
    """The engine up to pairing, which is switched off."""
    # The module that has it in every checkout, and the names that its method had
    from streamdump.conversation.conversation import Pairer

    name = "process" if hasattr(Pairer, "process") else "run"
    process = getattr(Pairer, name)
    setattr(Pairer, name, lambda self, emitted: emitted)
    try:
        return pair(path)
    finally:
        setattr(Pairer, name, process)


def pair(path: str) -> int:
    from streamdump.options import Options
    from streamdump.session import Session
    from streamdump.tls.keys import KeyLog

    session = Session(Options(), KeyLog(()), True, False)
    count = 0
    for segment in segments(path):
        count += len(session.feed(segment))
        session.run.links.clear()
        session.run.compact()
    return count + len(session.table.finish())


def everything(path: str) -> int:
    from streamdump.capture.files import open_capture
    from streamdump.inspector import Inspector

    return sum(len(batch) for batch in Inspector([open_capture(path)], finite=True, keeps_rows=False).batches())


STAGES: dict[str, Callable[[str], int]] = {"read": read, "link": link, "tcp": tcp, "parse": parse, "pair": pair, "all": everything}


def view(arguments: list[str], path: str, out: BinaryIO) -> float:
    """CPU seconds of a view whose standard output goes to `out`."""
    from streamdump.cli.app import main

    os.dup2(out.fileno(), 1)
    begin = time.process_time()
    main([*arguments, path])
    sys.stdout.flush()
    return time.process_time() - begin


def command(path: str, out: BinaryIO) -> float:
    """User and system seconds of a process of its own."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    process = subprocess.Popen([sys.executable, "-P", "-m", "streamdump", path], stdout=out, stderr=subprocess.DEVNULL, env=environment)
    used = os.wait4(process.pid, 0)[2]
    return used.ru_utime + used.ru_stime


def timed(work: str, path: str, out: BinaryIO) -> tuple[float, int]:
    """CPU seconds, and what a stage counts."""
    gc.collect()
    if work in STAGES:
        begin = time.process_time()
        count = STAGES[work](path)
        return time.process_time() - begin, count
    return (command(path, out) if work == "command" else view(VIEWS[work], path, out)), 0


def worker() -> None:
    """Answer each line of standard input, (work, capture, whether to return a hash of the output), with one of [CPU seconds, result]."""
    answers = os.fdopen(os.dup(1), "w")
    gc.set_threshold(200_000, 50, 50)
    for line in sys.stdin:
        work, path, checks = json.loads(line)
        with tempfile.TemporaryFile() if checks else Path(os.devnull).open("wb") as out:
            seconds, count = timed(work, path, out)
            if checks and work not in STAGES:
                out.seek(0)
                count = hashlib.file_digest(out, "sha256").hexdigest()  # type: ignore[assignment]
        print(json.dumps((seconds, count)), file=answers, flush=True)


# The bench


class Worker:
    """A process that works with one checkout."""

    def __init__(self, checkout: Path) -> None:
        environment = {**os.environ, "PYTHONPATH": str(checkout / ".src"), "PYTHONHASHSEED": "0"}
        self.process = subprocess.Popen(
            [sys.executable, "-P", __file__, "--worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        )

    def run(self, work: str, path: Path, checks: bool) -> tuple[float, Any]:
        assert self.process.stdin is not None and self.process.stdout is not None
        print(json.dumps((work, str(path), checks)), file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline()
        if not answer:
            raise SystemExit(f"the worker failed at {work} of {path}")
        seconds, result = json.loads(answer)
        return seconds, result


def lower_quartile(values: list[float]) -> float:
    return sorted(values)[len(values) // 4]


def compare(old: Worker, new: Worker, path: Path, work: str, rounds: int) -> str:
    """A row of the table."""
    before, after = old.run(work, path, True)[1], new.run(work, path, True)[1]
    times: tuple[list[float], list[float]] = [], []
    for number in range(rounds):
        for index in (0, 1) if number % 2 else (1, 0):
            times[index].append((old, new)[index].run(work, path, False)[0] * 1e3)
    ours = [f"{measure(one):9.1f}" for measure in (min, lower_quartile) for one in times]
    ratios = [f"{measure(times[0]) / measure(times[1]):6.2f}" for measure in (min, lower_quartile)]
    return f"{work:9} {ours[0]} {ours[1]} {ratios[0]}   {ours[2]} {ours[3]} {ratios[1]}{'' if before == after else '   OUTPUT DIFFERS'}"


def write_captures(folder: Path, packets: int) -> list[Path]:
    """The captures of `generate.py` and `mix.py`."""
    sys.path.insert(0, str(Path(__file__).parent))
    import generate
    import mix

    small = folder / "small.pcap"
    generate.write(small, packets, 40, 2, amqp=False)
    found = [small]
    for name in (*FAMILIES, "*"):
        found.append(folder / f"{'mix' if name == '*' else name}.pcap")
        mix.write(found[-1], 0, packets, (name,))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("captures", nargs="*", type=Path)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--packets", type=int, default=6_000, help="of each capture that is written")
    parser.add_argument("--only", default=",".join((*STAGES, *VIEWS, "command")), help="some of the rows")
    options = parser.parse_args()
    old, new = Worker(options.old.resolve()), Worker(options.new.resolve())
    with tempfile.TemporaryDirectory() as name:
        for path in [one.resolve() for one in options.captures] or write_captures(Path(name), options.packets):
            print(f"{path.name}: ms of CPU, {options.rounds} rounds, load {os.getloadavg()[0]:.1f}")
            print(f"{'':9} {'min old':>9} {'new':>9} {'ratio':>6}   {'quart old':>9} {'new':>9} {'ratio':>6}", flush=True)
            for work in options.only.split(","):
                print(compare(old, new, path, work, options.rounds), flush=True)


if __name__ == "__main__":
    worker() if sys.argv[1:] == ["--worker"] else main()
