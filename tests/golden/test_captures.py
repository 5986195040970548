"""Every capture of the repository: what it says, that no byte is lost, and that batches never show."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import msgspec
import pytest

from streamdump.capture.files import open_capture
from streamdump.inspector import Inspector
from streamdump.model import Exchange, Gap, Message, Options, Record

GOLDEN = Path(__file__).parents[2] / "captures" / "golden"
CAPTURES = sorted(path for path in GOLDEN.rglob("*.pcap*"))


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


def name(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"


@pytest.mark.parametrize("path", CAPTURES, ids=name)
def test_messages_and_gaps_are_the_byte_stream(path: Path) -> None:
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
        sizes[side] += record.size
        reach[side] += record.size
    for row in inspector.rows():
        if row.protocol is None:
            continue
        # Inside of TLS, it is what was decrypted
        said_in_all = row.facts.get("tls_plain_bytes", row.bytes)
        for side in (0, 1):
            assert sizes[row.conversation, row.endpoints[side]] == said_in_all[side]


@pytest.mark.parametrize("path", CAPTURES, ids=name)
def test_batches_never_show(path: Path) -> None:
    whole = lines(path)
    for rows in (1, 7):
        assert lines(path, rows) == whole


@pytest.mark.parametrize("path", CAPTURES, ids=name)
def test_rows_are_the_same_however_conversations_are_kept_that_carry_nothing(path: Path) -> None:
    whole = rows_of(path)
    for rows in (7, None):
        assert rows_of(path, rows, finite=True) == whole


@pytest.mark.parametrize("path", [path for path in CAPTURES if jsonl(path).exists()], ids=name)
def test_golden(path: Path, request: pytest.FixtureRequest) -> None:
    said = lines(path)
    golden = jsonl(path)
    if request.config.getoption("--update-golden"):
        golden.write_bytes(said)
    assert said.decode().splitlines() == golden.read_text().splitlines()


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
