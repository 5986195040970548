"""The processes behind conversations in the table of these: those of a plain run, however the captures are cut, sent and carried."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from streamdump.capture.files import open_capture
from streamdump.inspector import Inspector
from streamdump.model import ConversationRow, Options
from tests.capture.process_stories import (
    OUTBOUND,
    annotated,
    comment,
    darwin_block,
    flags,
    interface,
    packet_block,
    process_block,
    thread,
)
from tests.spark.comparing import tables_of
from tests.spark.here import Here, go
from tests.spark.lots import Lots, packets
from tests.support import rewrite
from tests.support.captures import GOLDEN
from tests.support.frames import section

GIVEN = sorted(GOLDEN.glob("*/processes_*_made.pcapng"))
BOTH = GOLDEN / "rabbitmq-stream" / "processes_both_ends_made.pcapng"
PARTS = ("process", "pid", "container", "pod", "namespace")


def plainly(files: Sequence[Path]) -> list[Any]:
    """The processes of each conversation in a plain run."""
    inspector = Inspector([open_capture(file) for file in files], Options())
    list(inspector.records())
    return shown(inspector.rows())


def shown(rows: Sequence[ConversationRow]) -> list[Any]:
    """When conversations began, their sides and processes, as in JSON."""
    every = [msgspec.json.decode(msgspec.json.encode(row)) for row in rows]
    return sorted([(row["time_ns"], row["endpoints"], row.get("processes")) for row in every], key=repr)


def piped(files: Sequence[Path], out: Path, **more: Any) -> list[Any]:
    """The same of the table; the columns of both sides must have what `processes` has."""
    go(files, out, Here(out.with_name("scratch")), **more)
    rows = tables_of(out)["conversations"]
    for row in rows:
        of = {one["endpoint"]: one for one in row["processes"] or ()}
        for role in ("client", "server"):
            end = None if row[role] is None else of.get(row[role])
            assert [row[f"{role}_{name}"] for name in PARTS] == [None if end is None else end[name] for name in PARTS]
    return sorted([(row["time_ns"], row["endpoints"], _known(row["processes"])) for row in rows], key=repr)


def _known(processes: Any) -> Any:
    """Processes without what is not known of them, as in JSON."""
    return processes and [{name: value for name, value in one.items() if value or name == "endpoint"} for one in processes]


@pytest.mark.parametrize("more", [{}, {"split": 3_000, "parts": 3}, {"split": 3_000}], ids=str)
@pytest.mark.parametrize("path", GIVEN, ids=lambda path: path.stem)
def test_processes_are_those_of_a_plain_run(path: Path, more: dict[str, Any], tmp_path: Path) -> None:
    expected = plainly([path])
    assert any(processes for _, _, processes in expected)
    assert piped([path], tmp_path / "out", **more) == expected


def test_processes_of_packets_that_other_tasks_dissect(tmp_path: Path) -> None:
    """One conversation in two files."""
    found = rewrite.packets(BOTH)
    files = []
    for at, half in enumerate((found[: len(found) // 2], found[len(found) // 2 :])):
        files.append(tmp_path / f"{at}.pcapng")
        blocks = [packet_block(one, [comment(f"PID: {5 + at}", "Cmd: /bin/a"), flags(OUTBOUND)]) for one in half]
        files[-1].write_bytes(section("<") + interface(found[0].link) + b"".join(blocks))
    expected = plainly(files)
    assert {"endpoint": "127.0.0.1:60824", "process": "a", "pid": 5, "others": True, "other_pids": [6]} in expected[0][2]
    assert piped(files, tmp_path / "here") == expected
    assert piped(files, tmp_path / "parts", parts=2) == expected


@pytest.mark.parametrize("vendor", ["wireshark", "macos"])
@pytest.mark.parametrize("late", [False, True])
def test_blocks_of_processes_hold_for_all_packets_after_them(vendor: str, late: bool, tmp_path: Path) -> None:
    found = rewrite.packets(BOTH)
    names = [process_block(9, (2, b"nine")), process_block(8, (2, b"eight"))]
    names = names if vendor == "wireshark" else [darwin_block(9, "nine"), darwin_block(8, "eight")]
    said = [thread(9)] if vendor == "wireshark" else [(32769, b"\0\0\0\0"), flags(OUTBOUND)]
    blocks = [packet_block(one, said) for one in found]
    blocks[30 if late else 0 : 30 if late else 0] = names
    path = tmp_path / "a.pcapng"
    path.write_bytes(section("<") + interface(found[0].link) + b"".join(blocks))
    expected = plainly([path])
    assert any(one.get("process") == "nine" for _, _, processes in expected for one in processes or ())
    assert piped([path], tmp_path / "out", split=3_000) == expected
    reasons = [row["reason"] for row in tables_of(tmp_path / "out")["errors"]]
    assert [("processes are described in mid-file; read in one piece" in one) for one in reasons] == [True] * late


def test_blocks_of_other_vendors_do_not_keep_a_file_in_one_piece(tmp_path: Path) -> None:
    found = rewrite.packets(BOTH)
    other = bytearray(process_block(9, (2, b"nine")))
    other[8:12] = (32621).to_bytes(4, "little")
    blocks = [packet_block(one, []) + bytes(other) for one in found]
    path = tmp_path / "a.pcapng"
    path.write_bytes(section("<") + interface(found[0].link) + b"".join(blocks))
    assert piped([path], tmp_path / "out", split=3_000) == plainly([path])
    assert not tables_of(tmp_path / "out")["errors"]


def test_processes_of_a_packed_capture(tmp_path: Path) -> None:
    import gzip

    path = tmp_path / "a.pcapng.gz"
    path.write_bytes(gzip.compress(BOTH.read_bytes()))
    assert piped([path], tmp_path / "out") == plainly([path])


def test_processes_are_carried_to_later_packets(tmp_path: Path) -> None:
    path = tmp_path / "a.pcapng"
    said = lambda index, _: [comment("PID: 5", "Cmd: a"), flags(OUTBOUND)] if index < 20 else []  # noqa: E731
    path.write_bytes(annotated(BOTH, said))
    for given in (path, *GIVEN):
        lots = Lots()
        every = packets([given])
        for begin in range(0, len(every), 9):
            lots.add(every[begin : begin + 9], begin + 9 >= len(every))
        assert shown(lots.conversations) == plainly([given])
