"""What decrypting costs: CPU time for captures of the same frames, plain and in TLS.

python tests/bench/tls.py [--packets 60000] [--rounds 5]

Alternating rounds; prints the median of user plus system CPU seconds, and the ratio to the plain capture (at most 2).
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[2]))
from generate import Peer, Wire
from ratios import STREAMDUMP, run

from tests.tls.peers import Talk, contexts

KINDS = (
    ("1.3 AES-256-GCM", "1.3", ""),
    ("1.2 AES-128-GCM", "1.2", "ECDHE-RSA-AES128-GCM-SHA256"),
    ("1.2 ChaCha20-Poly1305", "1.2", "ECDHE-RSA-CHACHA20-POLY1305"),
    ("1.2 AES-128-CBC, SHA-256", "1.2", "ECDHE-RSA-AES128-SHA256"),
)


def write(path: Path, packets: int, version: str | None = None, ciphers: str = "", entries: int = 2, conversations: int = 40) -> bytes:
    """A capture of about so many packets, in TLS of this version, and its secrets."""
    seed = 1
    with path.open("wb") as out:
        wire = Wire(out, seed)
        wire.header()
        peers = [Peer(seed * 1000 + one, entries, False).traffic() for one in range(conversations)]
        talks: list[Talk] = []
        for one in range(conversations):
            wire.packet(one, 0, 0x02)
            wire.packet(one, 1, 0x12)
            wire.packet(one, 0, 0x10)
            if version is not None:
                talks.append(Talk(*contexts(version, ciphers)).begin())
                for side, data in talks[one].sent:
                    wire.data(one, side, data)
                talks[one].sent.clear()
        order = random.Random(seed + 7)
        begun = wire.packets
        while wire.packets < packets + begun - 3 * conversations:
            one = order.randrange(conversations)
            side, payload = next(peers[one])
            if version is None:
                wire.data(one, side, payload)
                continue
            talks[one].say(side, payload)
            for side, data in talks[one].sent:
                wire.data(one, side, data)
            talks[one].sent.clear()
    return b"".join(talk.keys for talk in talks)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--packets", type=int, default=60_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for entries, what in ((2, "small frames"), (100, "frames of 100 entries")):
            plain = Path(folder, f"plain-{entries}.pcap")
            write(plain, options.packets // (1 if entries == 2 else 10), None, "", entries)
            files = []
            for name, version, ciphers in KINDS:
                path, log = Path(folder, f"{entries}-{len(files)}.pcap"), Path(folder, f"{entries}-{len(files)}.keys")
                log.write_bytes(write(path, options.packets // (1 if entries == 2 else 10), version, ciphers, entries))
                files.append((name, path, log))
            for form in ((), ("--json",), ("-q",)):
                times: dict[str, list[float]] = {}
                for _ in range(options.rounds):
                    times.setdefault("plain", []).append(run([*STREAMDUMP, *form, str(plain)])[0])
                    for name, path, log in files:
                        times.setdefault(name, []).append(run([*STREAMDUMP, *form, "--keylog", str(log), str(path)])[0])
                base = statistics.median(times["plain"])
                for name, seconds in times.items():
                    mine = statistics.median(seconds)
                    print(f"{what:22} {' '.join(form) or 'text':7} {name:26} {mine:6.2f} s   {mine / base:4.2f} times plain", flush=True)


if __name__ == "__main__":
    main()
