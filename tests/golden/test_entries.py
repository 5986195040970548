"""The entries of golden captures, byte for byte; and that damage neither invents nor changes any."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import streamdump
from streamdump.capture.files import open_capture
from streamdump.entries import Entries
from streamdump.inspector import Inspector
from streamdump.model import Entry, Options
from streamdump.render.jsonl import encode, encode_value
from tests.bench.sweep import KINDS, variants
from tests.golden.test_captures import differences
from tests.support.captures import ACCEPT, GOLDEN, capture_name, every_family
from tests.support.rewrite import capture, packets

CASES = {
    "rabbitmq-stream": (
        "consumer_update_sac_436",
        "deliver_v2_405",
        "draft_exchange",
        "js_subentries_436",
        "publish_amqp_sections_436",
        "publish_error_310",
        "publishers_310",
    ),
    "iggy": ("polls-repeat", "py027-errors", "py080-group", "py090-admin", "seed-headers", "seed-ids", "v025-cli"),
    "mewbase": ("cut-overlap", "java-filter", "java-sub", "java-twosubs", "java-types", "old-document", "old-oct2016"),
}
PATHS = [GOLDEN / family / f"{case}.pcap" for family, cases in CASES.items() for case in cases]


@every_family(PATHS)
def test_golden(paths: list[Path], subtests: pytest.Subtests, request: pytest.FixtureRequest) -> None:
    for path in paths:
        with subtests.test(capture_name(path)):
            said = encode([*streamdump.read(path, entries=True)])
            golden = path.with_suffix(".entries.jsonl")
            if request.config.getoption("--update-golden"):
                golden.write_bytes(said)
            found = differences(golden.read_text().splitlines(), said.decode().splitlines())
            if found:
                pytest.fail("\n".join([f"{capture_name(path)} differs from {golden.name}:", *found, ACCEPT]), pytrace=False)


def _of(entry: Entry) -> tuple[Any, ...]:
    """What of an entry does not depend on the rest of the capture."""
    body = encode_value(entry.body)
    ident = encode_value(entry.id)
    return entry.src, entry.dst, entry.name, entry.offset, entry.publishing_id, ident, entry.size, entry.body_type, body


def _damaged(paths: list[Path], subtests: pytest.Subtests, kinds: tuple[str, ...]) -> None:
    for path in paths:
        found = packets(path)
        complete = Counter(map(_of, streamdump.read(capture(found), entries=True)))
        # A response may name the offset of what was published, and may be missing
        complete |= Counter((*one[:3], None, *one[4:]) for one in complete.elements() if one[2] == "send_messages")
        for variant in variants(found, random.Random(path.name)):
            if variant.kind in kinds:
                with subtests.test(f"{capture_name(path)} {variant.kind} {variant.what}"):
                    there = Counter(map(_of, streamdump.read(capture(variant.packets), entries=True)))
                    assert not there - complete


@every_family([path for path in PATHS if path.stem in ("js_subentries_436", "deliver_v2_405", "seed-headers", "java-types")])
def test_what_the_snap_length_cuts_off_is_not_made_up(paths: list[Path], subtests: pytest.Subtests) -> None:
    _damaged(paths, subtests, ("cut",))


@pytest.mark.sweep
@every_family(PATHS)
def test_beside_damage_no_entry_is_made_up(paths: list[Path], subtests: pytest.Subtests) -> None:
    _damaged(paths, subtests, KINDS)


@every_family(PATHS)
def test_batches_never_show(paths: list[Path], subtests: pytest.Subtests) -> None:
    """Responses may come in the batch of their request, or long after it."""
    for path in paths:
        with subtests.test(capture_name(path)):
            complete = [*streamdump.read(path, entries=True, bytes_as="raw")]
            for rows in (1, 5):
                inspector = Inspector([open_capture(path)], Options(entries=True, bytes_as="raw"), rows, finite=True)
                found = Entries(inspector.run.answers)
                assert [one for batch in inspector.batches() for one in found.add(batch)] + [*found.finish()] == complete
                assert not found._open and not found._queue and not found._held
