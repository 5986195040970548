"""Prints how far the layouts of the Apache Iggy captures are told, beside what `captures/golden/iggy/README.md` says they are.

    python tests/bench/iggy_layouts.py [FOLDER]

"settled": the conversation tells one layout; "candidates": a few, the right one among them; "wrong": anything else.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path

from streamdump.capture.files import open_capture
from streamdump.inspector import Inspector

FOLDER = Path(__file__).parents[2] / "captures" / "golden" / "iggy"
ROW = re.compile(r"\| `(\S+)` \| ([LV]\d) \|")


def judge(path: Path, layout: str) -> tuple[str, Counter[str]]:
    """The verdict on a capture, and its conversations by what they tell."""
    inspector = Inspector([open_capture(path)])
    for _ in inspector.records():
        pass
    told: Counter[str] = Counter()
    good: set[str] = set()
    for row in inspector.rows():
        if not any(row.bytes):
            continue
        if row.protocol is None:
            told[f"nothing ({row.name or 'unknown'})"] += 1
            good.add("nothing")
            continue
        found = (row.layout,) if row.layout is not None else row.candidates
        told["/".join(map(str, found)) + (" mismatch" if "mismatch" in row.facts else "")] += 1
        good.add("wrong" if layout not in found else "settled" if row.layout is not None else "candidates")
    for verdict in ("wrong", "settled", "candidates", "nothing"):
        if verdict in good:
            return verdict, told
    return "nothing", told


def main(folder: Path) -> int:
    rows = ROW.findall((folder / "README.md").read_text())
    totals: Counter[str] = Counter()
    width = max(len(file) for file, _ in rows)
    for file, layout in rows:
        verdict, told = judge(folder / file, layout)
        totals[verdict] += 1
        print(f"{file:<{width}}  {layout}  {verdict:<10}  {', '.join(f'{count} x {found}' for found, count in told.most_common())}")
    print(", ".join(f"{verdict} {count}" for verdict, count in sorted(totals.items())))
    return int(totals["wrong"] > 0)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER))
