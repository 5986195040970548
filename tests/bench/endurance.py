"""Reads for long: tests/bench/endurance.py [file] [live] [metrics] [--gigabytes 10] [--connections 1000000] [--open 100000] [--rate 12000]

file     copies of real traffic (`mix`) through several views: CPU a GB in each half of the file, and resident memory at the end of each
live     connections through one run, `--open` of them at once, on a pair of virtual interfaces, while a ring of files and a key log
         rotate: resident memory as time goes on, and what was dropped. Needs root and `ip` (iproute2)
metrics  the same connections through `metrics` with all labels, scraped every 30 seconds: also CPU a million packets. What is sent waits
         for what was read, so that nothing is dropped, however busy the machine is
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.bench import mix
from tests.bench.live import conversation
from tests.support.metrics import endpoint_of
from tests.support.peers import capturing

VIEWS = ([], ["--json"], ["latency"], ["diagnose"], ["conversations"], ["-w"])
NEAR, FAR = "streamdump0", "streamdump1"

AHEAD = 100_000
"""Packets that are sent before a reader that reports its progress has read them: fewer than its buffer holds."""


def resident(process: int) -> int:
    """Resident memory in KiB."""
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{process}/status").read_text())
    return int(found[1]) if found else 0


def spent(process: int) -> float:
    """CPU seconds so far."""
    fields = Path(f"/proc/{process}/stat").read_bytes().rpartition(b") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def read_file(gigabytes: float) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path, copy = Path(folder) / "mix.pcap", Path(folder) / "copy.pcapng"
        mix.write(path, int(gigabytes * 1e9))
        size = path.stat().st_size
        print(f"{size / 1e9:.1f} GB of the mix; CPU seconds a GB and resident MB, at half of the file and at its end", flush=True)
        for view in VIEWS:
            more = ["-w", str(copy)] if view == ["-w"] else view
            # A pipe shows how far it has read.
            command = [sys.executable, "-m", "streamdump", *more, "-"]
            with (
                path.open("rb") as source,
                subprocess.Popen(command, stdin=source, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as one,
            ):
                half = None
                last = (0.0, 0)
                while one.poll() is None:
                    with contextlib.suppress(OSError, IndexError, ValueError):
                        at = (spent(one.pid), resident(one.pid))
                        last = at if at[1] else last
                        if half is None and os.lseek(source.fileno(), 0, os.SEEK_CUR) >= size // 2:
                            half = last
                    time.sleep(0.05)
            half = half or last
            parts = [half[0], last[0] - half[0]]
            rates = ", ".join(f"{part / (size / 2e9):.1f}" for part in parts)
            print(f"{' '.join(view) or 'text':14} {rates} s/GB; {half[1] >> 10}, {last[1] >> 10} MB; exit {one.returncode}", flush=True)


@contextlib.contextmanager
def interfaces() -> Iterator[None]:
    def ip(*arguments: str) -> None:
        subprocess.run(["ip", "link", *arguments], check=True)

    ip("add", NEAR, "type", "veth", "peer", "name", FAR)
    try:
        ip("set", NEAR, "up")
        ip("set", FAR, "up")
        yield
    finally:
        ip("del", NEAR)


def send(
    process: int, connections: int, held: int, rate: int, status: Callable[[], str], packets_read: Callable[[], int] | None = None
) -> None:
    """Send these connections, no faster than they are read if that is known; every 30 seconds print the memory and CPU of the process that
    reads them, and `status`."""
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as out:
        out.bind((FAR, 0))
        start = time.monotonic()
        sent, printed, cpu = 0, start, spent(process)
        read, quarters = 0, [(resident(process), cpu)]
        since, size = 0, connections * len(conversation(0, 1))
        for number in range(connections + held):
            # Three packets open one; its messages and its end come when `held` more are open.
            frames = conversation(number, 1)[:3] if number < connections else []
            frames += conversation(number - held, 1)[3:] if number >= held else []
            for one in frames:
                out.send(one)
            sent += len(frames)
            while packets_read is not None and sent - read > AHEAD:
                time.sleep(0.5)
                read = packets_read()
            if sent >= size * len(quarters) / 4:
                quarters.append((resident(process), spent(process)))
            wait = start + sent / rate - time.monotonic()
            if wait > 0:
                time.sleep(wait)
            if time.monotonic() - printed > 30:
                printed = time.monotonic()
                before, cpu = cpu, spent(process)
                a_million = (cpu - before) / (sent - since) * 1e6
                since = sent
                now = f"{printed - start:6.0f} s, {sent / size:5.1%}, {resident(process) >> 10} MB, {a_million:.0f} s CPU a million packets"
                print(f"{now}, {status()}", flush=True)
        while packets_read is not None and packets_read() < sent:
            time.sleep(0.5)
        time.sleep(2)
        quarters[-1] = resident(process), spent(process)
        print(f"all sent: {resident(process) >> 10} MB; CPU {spent(process):.0f} s")
        memory = ", ".join([str(kib >> 10) for kib, _ in quarters[1:]])
        costs = ", ".join([f"{(after - before) / connections * 4e3:.2f}" for (_, before), (_, after) in pairwise(quarters)])
        print(f"at each quarter: {memory} MB; in each, CPU {costs} ms a connection")


def listen(connections: int, held: int, rate: int) -> None:
    with tempfile.TemporaryDirectory() as folder, interfaces():
        keys, ring = Path(folder) / "keys.log", Path(folder) / "ring.pcapng"
        keys.touch()
        # No connection that is open is forgotten, of those that ended as many are remembered as fit
        more = ["--tracked-limit", str(held + held // 5)]
        more += ["-b", "filesize:20000", "-b", "files:3", "--keylog", str(keys), "-T", "fields", "-e", "number", "-Y", "number == 1"]

        def status() -> str:
            # The key log is replaced, as one that rotates.
            fresh = keys.with_suffix(".new")
            fresh.write_text(f"CLIENT_RANDOM {os.urandom(32).hex()} {os.urandom(48).hex()}\n")
            fresh.replace(keys)
            return f"{len(list(Path(folder).glob('ring*')))} files"

        null = open(os.devnull, "wb")  # noqa: PTH123, SIM115
        with capturing("-i", NEAR, "-w", str(ring), *more, stdout=null) as capture:
            send(capture.process.pid, connections, held, rate, status)
            code, _, err = capture.finish(signal.SIGINT)
            print(f"exit {code}", *err.splitlines()[-2:], sep="\n")


def serve(connections: int, held: int, rate: int) -> None:
    # A busy machine may stop the reader for seconds; a ring hands over a block at least every 20 ms
    more = ["--tracked-limit", str(held + held // 5), "-B", "128M", "--label", "client,server,stream", "--listen", "127.0.0.1:0"]
    with interfaces(), capturing("metrics", "-i", NEAR, *more) as capture:
        address = endpoint_of(capture)
        missed = 0

        def scrape() -> bytes:
            nonlocal missed
            while True:
                with contextlib.suppress(OSError), urllib.request.urlopen(address) as response:
                    text: bytes = response.read()
                    return text
                # The endpoint gives up after 10 seconds, which a busy machine may take
                missed += 1

        def status() -> str:
            begin = time.monotonic()
            text = scrape()
            took = time.monotonic() - begin
            return f"scraped {len(text):,} bytes, {text.count(b'{')} series in {took:.2f} s; {missed} scrapes without a response"

        def packets_read() -> int:
            found = re.search(rb"^streamdump_packets_total (\S+)", scrape(), re.M)
            return int(float(found[1])) if found else 0

        send(capture.process.pid, connections, held, rate, status, packets_read)
        print(status())
        code, _, err = capture.finish(signal.SIGINT)
        print(f"exit {code}", *err.splitlines()[-3:], sep="\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=["file", "live", "metrics"])
    parser.add_argument("--gigabytes", type=float, default=10)
    parser.add_argument("--connections", type=int, default=1_000_000)
    parser.add_argument("--open", type=int, default=100_000)
    parser.add_argument("--rate", type=int, default=12_000, help="packets a second")
    options = parser.parse_args()
    if "file" in options.parts:
        read_file(options.gigabytes)
    if "live" in options.parts:
        listen(options.connections, options.open, options.rate)
    if "metrics" in options.parts:
        serve(options.connections, options.open, options.rate)


if __name__ == "__main__":
    main()
