"""What is read beside damage: golden captures cut, begun late, with packets lost and swapped, each held against the whole one.

python -m tests.bench.sweep [NAME...] [--seed 1] [--kinds cut,late,lost,swapped] [--each]

A message is matched by the packet of its first byte. `invented` has no message there with the same name and id (of a damaged one either
may be missing), and nothing damaged or odd, which other damage may turn into something else; `wrong` is a response paired with another
request than in the whole capture, without a note; `read` the share of the messages of the whole capture that are there; `equal` the share
of these whose fields are the same, as far as there are any.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[2]))

from streamdump.capture.files import open_capture
from streamdump.inspector import Inspector
from streamdump.model import Exchange, Message, Options
from streamdump.protocols.seastar.dictionaries import load_dictionaries
from tests.support.rewrite import Packet, capture, packets

GOLDEN = Path(__file__).parents[2] / "captures" / "golden"

KNOWN = load_dictionaries(str(path) for path in sorted(GOLDEN.rglob("*.dict")))

CUTS = (96, 128, 160, 200, 320)
KINDS = ("cut", "late", "lost", "swapped")
LATE, LOST, DROPPED = 4, 3, 3

UNNAMED = ("unknown", "Compressed")
"""The names of messages of which nobody knows what they are: the answer to a request that was not captured, or a damaged one."""


class Variant(NamedTuple):
    """A damaged capture: what was done, its packets, and the number that each has in the whole one."""

    kind: str
    what: str
    packets: list[Packet]
    numbers: list[int]


class Score(NamedTuple):
    """What was read of one variant."""

    messages: int
    read: int
    invented: list[str]
    wrong: list[str]
    equal: int


def variants(found: list[Packet], chance: random.Random) -> Iterator[Variant]:
    """All damage that is done to a capture."""
    every = list(range(1, len(found) + 1))
    for size in CUTS:
        yield Variant("cut", str(size), [packet._replace(raw=packet.raw[:size]) for packet in found], every)
    for _ in range(LATE):
        begin = chance.randrange(1, max(2, len(found)))
        yield Variant("late", str(begin), found[begin:], every[begin:])
    for _ in range(LOST):
        gone = set(chance.sample(range(len(found)), min(DROPPED, len(found))))
        left = [index for index in range(len(found)) if index not in gone]
        what = ",".join(str(index + 1) for index in sorted(gone))
        yield Variant("lost", what, [found[index] for index in left], [index + 1 for index in left])
    order = list(range(len(found)))
    for index in range(0, len(order) - 1, 2):
        if chance.random() < 0.5:
            order[index], order[index + 1] = order[index + 1], order[index]
    # The time of a packet stays in its place: it was captured later, not before
    swapped = [found[index]._replace(time_ns=found[place].time_ns) for place, index in enumerate(order)]
    yield Variant("swapped", "neighbours", swapped, [index + 1 for index in order])


class Whole(NamedTuple):
    """What is read of a capture: its messages, and by number every request with each of its responses."""

    messages: list[Message]
    pairs: set[tuple[int | None, int | None]]


def read(found: list[Packet]) -> Whole:
    inspector = Inspector([open_capture(capture(found))], Options(exchanges=True, dictionaries=KNOWN))
    records = [record for batch in inspector.batches() for record in batch]
    messages = [record for record in records if isinstance(record, Message)]
    # Of a request with several responses the exchange names one; of a response to several requests the message does
    pairs = {(record.request, record.response) for record in records if isinstance(record, Exchange)}
    return Whole(messages, pairs | {(message.request, message.number) for message in messages if message.request is not None})


def may_lack(message: Message) -> bool:
    """Whether the id of a message may not be known."""
    return message.fault is not None or message.name in UNNAMED


def score(whole: Whole, variant: Variant) -> Score:
    """Hold what is read of a variant against the whole capture."""
    starts: dict[tuple[str, str], list[Message]] = defaultdict(list)
    odd = {message.number for message in whole.messages if message.fault is not None or message.notes}
    for message in whole.messages:
        starts[message.src, message.dst].append(message)
    taken: set[int] = set()
    matched: dict[int, Message] = {}
    invented = []
    equal = 0
    some = read(variant.packets).messages
    for message in some:
        first = variant.numbers[(message.packets[0] or 1) - 1]
        candidates = [
            one
            for one in starts[message.src, message.dst]
            if message.name in (one.name, *UNNAMED) and (message.id == one.id or (message.id is None and may_lack(message)))
        ]
        candidates = [one for one in candidates if one.number not in taken]
        here = (one for one in candidates if (one.packets[0] or 1) <= first <= one.packets[1])
        # What was sent or captured twice may have been read where it came again
        again = (one for one in candidates if message.fault is None and message.fields == one.fields and message.size == one.size)
        # and what is named after the request it may answer says so in a note
        unsure = (
            one
            for one in starts[message.src, message.dst]
            if message.notes and one.number not in taken and one.size == message.size and (one.packets[0] or 1) <= first <= one.packets[1]
        )
        one = next(here, None) or next(again, None) or next(unsure, None)
        if one is None:
            if not any(
                (one.number in odd or one.request in odd) and (one.packets[0] or 1) <= first <= one.packets[1]
                for one in starts[message.src, message.dst]
            ):
                invented.append(f"{message.name} {message.id} of {message.src} in packet {first}")
            continue
        taken.add(one.number)
        matched[message.number] = one
        equal += message.fault is not None or message.fields == one.fields
    wrong = []
    for message in some:
        if message.request is None or message.notes or message.number not in matched:
            continue
        one, asked = matched[message.number], matched.get(message.request)
        if asked is not None and one.request is not None and (asked.number, one.number) not in whole.pairs:
            wrong.append(f"{message.name} {message.id} of {message.src} in packet {variant.numbers[message.packets[1] - 1]}")
    return Score(len(whole.messages), len(matched), invented, wrong, equal)


def sweep(paths: Iterable[Path], seed: int, kinds: Iterable[str] = KINDS) -> Iterator[tuple[Path, Variant, Score]]:
    for path in paths:
        found = packets(path)
        whole = read(found)
        if whole.messages:
            for variant in variants(found, random.Random(f"{seed} {path.name}")):
                if variant.kind in kinds:
                    yield path, variant, score(whole, variant)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", help="parts of the captures' names")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--each", action="store_true", help="print every variant")
    options = parser.parse_args()
    paths = [path for path in sorted(GOLDEN.rglob("*.pcap*")) if path.suffix in (".pcap", ".pcapng")]
    paths = [path for path in paths if not options.names or any(name in f"{path.parent.name}/{path.name}" for name in options.names)]
    sums: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for path, variant, one in sweep(paths, options.seed, options.kinds.split(",")):
        if options.each or one.invented or one.wrong:
            print(f"{path.parent.name}/{path.name} {variant.kind} {variant.what}: {one.read} of {one.messages}", flush=True)
            for what, found in (("invented", one.invented), ("wrong", one.wrong)):
                for text in found[:4]:
                    print(f"    {what}: {text}")
        for kind in (variant.kind, "all"):
            counts = (1, one.messages, one.read, len(one.invented), len(one.wrong), one.equal)
            sums[path.parent.name, kind].update(dict(zip(("runs", "messages", "read", "invented", "wrong", "equal"), counts, strict=True)))
    print(f"{'family':24} {'damage':8} {'runs':>6} {'messages':>9} {'read':>7} {'invented':>9} {'wrong':>6} {'equal':>7}")
    for (family, kind), count in sorted(sums.items()):
        read, equal = 100 * count["read"] / max(1, count["messages"]), 100 * count["equal"] / max(1, count["read"])
        shares = f"{read:6.1f}% {count['invented']:9} {count['wrong']:6} {equal:6.1f}%"
        print(f"{family:24} {kind:8} {count['runs']:6} {count['messages']:9} {shares}")
    return int(any(count["invented"] or count["wrong"] for count in sums.values()))


if __name__ == "__main__":
    sys.exit(main())
