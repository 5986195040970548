"""Fuzzes a target with atheris, guided by the code that its bytes reach.

    pip install -e '.[test,fuzz]'
    python -m tests.fuzz iggy --minutes 5          # what fails is written to the current folder
    python -m tests.fuzz iggy crash-...            # such a file again

The corpus is kept in a folder of the system's temporary one, so that the next run begins where this one ended.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from hashlib import sha1
from pathlib import Path

import atheris

from streamdump.errors import BARRIER

SECONDS, MEGABYTES = 20, 2048
"""What the bytes of one case, 64 KiB at most, may take before they count as a failure."""


def main() -> None:
    os.environ[BARRIER] = "off"
    with atheris.instrument_imports(include=["streamdump"]):
        from tests.fuzz.seeds import seeds
        from tests.fuzz.targets import TARGETS

    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Fuzz a target with atheris.")
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("cases", nargs="*", help="cases to run again, and nothing else")
    parser.add_argument("--minutes", type=float, default=5.0)
    chosen = parser.parse_args()
    target = TARGETS[chosen.target]
    if chosen.cases:
        for case in chosen.cases:
            target(Path(case).read_bytes())
            print(f"{case}: nothing wrong")
        return
    corpus = Path(tempfile.gettempdir()) / f"streamdump-fuzz-{os.getuid()}" / chosen.target
    corpus.mkdir(parents=True, exist_ok=True)
    for seed in seeds(chosen.target):
        (corpus / sha1(seed, usedforsecurity=False).hexdigest()).write_bytes(seed)
    limits = [f"-max_total_time={int(chosen.minutes * 60)}", "-max_len=65536", f"-timeout={SECONDS}", f"-rss_limit_mb={MEGABYTES}"]
    # Counting calls and checking against a schema would take most of the time, and the time is limited here
    atheris.Setup([sys.argv[0], str(corpus), *limits, "-print_final_stats=1"], lambda data: target(data, False))
    atheris.Fuzz()


main()
