"""Every capture of the repository: what it says, that no byte is lost, and that batches never show."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import msgspec
import pytest

from streamdump.capture.files import open_capture
from streamdump.inspector import Inspector
from streamdump.model import Exchange, Gap, Message, Options, Record
from tests.support.captures import ACCEPT, CAPTURES, GOLDEN, capture_name, every_family, plain_bytes

MISSING = object()


def jsonl(path: Path) -> Path:
    return path.with_name(path.name.split(".")[0] + ".jsonl")


def records(path: Path, rows: int | None = None, **options: object) -> tuple[list[Record], Inspector]:
    inspector = Inspector([open_capture(path)], Options(**options), rows)  # type: ignore[arg-type]
    return list(inspector.records()), inspector


def rows_of(path: Path, rows: int | None = None, finite: bool = False) -> list[bytes]:
    inspector = Inspector([open_capture(path)], Options(), rows, finite=finite)
    for _ in inspector.records():
        pass
    assert len(inspector.table) == len(inspector.rows())
    return [msgspec.json.encode(row) for row in inspector.rows()]


def lines(path: Path, rows: int | None = None) -> bytes:
    return msgspec.json.Encoder().encode_lines(records(path, rows, exchanges=True)[0])


SHOWN, LONGEST = 5, 120
"""So many records that differ are shown, with values up to this length."""


def differences(old: list[str], new: list[str]) -> list[str]:
    """Return what differs between the records of two runs, as lines: each record, and its keys with the old and the new value."""
    if old == new:
        return []
    before, after = [json.loads(line) for line in old], [json.loads(line) for line in new]
    found: list[list[str]] = []
    same = SequenceMatcher(None, [*map(_identity, before)], [*map(_identity, after)], autojunk=False)
    for what, start, end, first, last in same.get_opcodes():
        if what == "equal":
            for index, place in zip(range(start, end), range(first, last), strict=True):
                if old[index] != new[place]:
                    keys = list(_keys("", before[index], after[place]))
                    found.append([f"  {_title(before[index])}", *(keys or ["    the order of keys, or how values are written"])])
        else:
            found += [[f"  - {_title(one)}"] for one in before[start:end]]
            found += [[f"  + {_title(one)}"] for one in after[first:last]]
    shown = [line for lines in found[:SHOWN] for line in lines]
    return shown if len(found) <= SHOWN else [*shown, f"  and {len(found) - SHOWN} more record{'' if len(found) == SHOWN + 1 else 's'}"]


def _identity(record: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(record.get(key) for key in ("record", "src", "position", "name", "id"))


def _title(record: dict[str, Any]) -> str:
    return f"record {record['number']} ({' '.join(filter(None, (record['record'], record.get('name'))))})"


def _keys(path: str, old: Any, new: Any) -> Iterator[str]:
    """Yield the keys below `path` whose values differ, with these."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in dict.fromkeys((*old, *new)):
            yield from _keys(f"{path}.{key}" if path else key, old.get(key, MISSING), new.get(key, MISSING))
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, (one, two) in enumerate(zip(old, new, strict=True)):
            yield from _keys(f"{path}[{index}]", one, two)
    elif old != new:
        yield f"    {path}: {_text(old)} -> {_text(new)}"


def _text(value: Any) -> str:
    text = "(absent)" if value is MISSING else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


@every_family(CAPTURES)
def test_messages_and_gaps_are_the_byte_stream(paths: list[Path], subtests: pytest.Subtests) -> None:
    for path in paths:
        with subtests.test(capture_name(path)):
            said, inspector = records(path)
            sizes: dict[tuple[int, str], int] = defaultdict(int)
            reach: dict[tuple[int, str], int] = defaultdict(int)
            for record in sorted(
                (one for one in said if isinstance(one, Message | Gap)), key=lambda one: (one.conversation, one.src, one.position)
            ):
                side = (record.conversation, record.src)
                if isinstance(record, Gap) and record.in_frame:
                    continue
                assert record.position == reach[side], f"gap or overlap before {record.position} of {side}"
                sizes[side] += record.size or 0
                reach[side] += record.size or 0
            for row in inspector.rows():
                if row.protocol is None:
                    continue
                said_in_all = plain_bytes(row)
                for side in (0, 1):
                    assert sizes[row.conversation, row.endpoints[side]] == said_in_all[side]


@every_family(CAPTURES)
def test_batches_never_show(paths: list[Path], subtests: pytest.Subtests) -> None:
    for path in paths:
        with subtests.test(capture_name(path)):
            whole = lines(path)
            for rows in (1, 7):
                assert lines(path, rows) == whole


@every_family(CAPTURES)
def test_rows_are_the_same_however_conversations_are_kept_that_carry_nothing(paths: list[Path], subtests: pytest.Subtests) -> None:
    for path in paths:
        with subtests.test(capture_name(path)):
            whole = rows_of(path)
            for rows in (7, None):
                assert rows_of(path, rows, finite=True) == whole


@every_family([path for path in CAPTURES if jsonl(path).exists()])
def test_golden(paths: list[Path], subtests: pytest.Subtests, request: pytest.FixtureRequest) -> None:
    for path in paths:
        with subtests.test(capture_name(path)):
            said = lines(path)
            golden = jsonl(path)
            if request.config.getoption("--update-golden"):
                golden.write_bytes(said)
            found = differences(golden.read_text().splitlines(), said.decode().splitlines())
            if found:
                pytest.fail("\n".join([f"{capture_name(path)} differs from {golden.name}:", *found, ACCEPT]), pytrace=False)


def test_a_golden_test_that_fails_names_the_keys_that_differ() -> None:
    old = [
        '{"record":"message","number":1,"name":"Open","position":0,"latency_ns":5,"fields":{"a":[1,{"b":2}]}}',
        '{"record":"message","number":2,"name":"Tune","position":9,"notes":[]}',
        '{"record":"exchange","number":3,"request":1,"response":2,"position":9}',
    ]
    new = [
        '{"record":"message","number":1,"name":"Open","position":0,"latency_ns":null,"fields":{"a":[1,{"b":3}]}}',
        '{"record":"exchange","number":2,"request":1,"response":2,"position":9}',
        '{"record":"ending","number":3,"position":0,"how":"FIN"}',
    ]
    assert differences(old, old) == []
    assert differences(old, new) == [
        "  record 1 (message Open)",
        "    latency_ns: 5 -> null",
        "    fields.a[1].b: 2 -> 3",
        "  - record 2 (message Tune)",
        "  record 3 (exchange)",
        "    number: 3 -> 2",
        "  + record 3 (ending)",
    ]
    many = [line.replace("5", str(number)) for number in range(9) for line in old[:1]]
    assert differences(old[:1] * 9, many)[-1] == "  and 3 more records"
    reordered = old[0].replace('"number":1,"name":"Open"', '"name":"Open","number":1')
    assert differences(old[:1], [reordered]) == ["  record 1 (message Open)", "    the order of keys, or how values are written"]


def test_there_are_captures() -> None:
    assert len(CAPTURES) > 60
    assert sum(jsonl(path).exists() for path in CAPTURES) > 20


@pytest.mark.parametrize("limit", [10, 65_536])
@pytest.mark.parametrize("case", ["pipelined_requests_405", "lost_segments_405", "versions_unsupported_310"])
def test_every_unanswered_request_is_counted(case: str, limit: int) -> None:
    said, inspector = records(GOLDEN / "rabbitmq-stream" / f"{case}.pcap", open_limit=limit)
    ended = sum(isinstance(record, Exchange) and record.outcome == "unanswered" for record in said)
    assert inspector.counters.unanswered == sum(row.unanswered for row in inspector.rows()) == ended
    assert ended or (limit > 10 and case.startswith("pipelined"))
