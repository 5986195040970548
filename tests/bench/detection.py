"""How often detection is right, unsure or wrong: every capture on random ports, whole and from random packets on; then what is claimed of
conversations of other protocols, made up, of which parts are missing.

python tests/bench/detection.py [FOLDER with a folder of captures for each protocol] [--starts 5] [--neighbours 200] [--seed 1]
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from streamdump.capture.files import open_capture  # noqa: E402
from streamdump.inspector import Inspector  # noqa: E402
from tests.support.neighbours import NEIGHBOURS, conversations, verdict  # noqa: E402
from tests.support.rewrite import capture, packets, random_ports, with_ports  # noqa: E402

FAMILIES = {"rabbitmq-stream": ("rabbitmq-stream", "rabbitmq-stream-draft")}


def judge(source: object, family: str) -> Counter[str]:
    inspector = Inspector([open_capture(source)])  # type: ignore[arg-type]
    for _ in inspector.batches():
        pass
    said: Counter[str] = Counter()
    for row in inspector.rows():
        if not sum(row.bytes):
            continue
        right = FAMILIES.get(family, (family,))
        said["right" if row.protocol in right else "unknown" if row.protocol is None else f"wrong: {row.protocol}"] += 1
    return said


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path, nargs="?", default=ROOT / "captures" / "golden")
    parser.add_argument("--starts", type=int, default=5)
    parser.add_argument("--neighbours", type=int, default=200, help="conversations of each other protocol")
    parser.add_argument("--seed", type=int, default=1, help="of these")
    options = parser.parse_args()
    for folder in sorted(path for path in options.folder.iterdir() if path.is_dir()):
        whole: Counter[str] = Counter()
        later: Counter[str] = Counter()
        for number, path in enumerate(sorted(folder.glob("*.pcap*"))):
            found = with_ports(packets(path), random_ports(number))
            whole += judge(capture(found), folder.name)
            chance = random.Random(number)
            for _ in range(options.starts):
                later += judge(capture(found[chance.randrange(1, max(2, len(found))) :]), folder.name)
        print(f"{folder.name:18} from the start: {dict(whole)}   from a random packet on: {dict(later)}", flush=True)
    claimed = 0
    for maker in NEIGHBOURS:
        for name, found, port in conversations(maker, options.neighbours, options.seed):
            told = verdict(found, port)
            if told.protocol is not None:
                claimed += 1
                print(
                    f"wrong: {told.protocol} {told.confidence:.2f} of {name} on port {port} ({found.how}): {'; '.join(told.evidence)}",
                    flush=True,
                )
    print(f"other protocols: {claimed} of {len(NEIGHBOURS) * options.neighbours} conversations are claimed")


if __name__ == "__main__":
    main()
