"""The columns of tables: typed members say what the JSON says, whatever the values are."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from dissect.capture.files import open_capture
from dissect.inspector import Inspector
from dissect.model import Message, Options
from dissect.spark import typed
from dissect.spark.flows import Linked
from dissect.spark.tables import batch
from dissect.spark.typed import STRUCTS, Member, struct_name

GOLDEN = Path(__file__).parents[2] / "captures" / "golden"


def messages(path: Path, **options: Any) -> list[Linked]:
    inspector = Inspector([open_capture(path)], Options(**options))
    return [(one, None, None) for one in inspector.records() if isinstance(one, Message)]


def expected(member: Member, value: Any) -> Any:
    """What a member holds of a value as the JSON has it, by the rules that the module states."""
    kind = member.type
    if member.members is not None:
        return {name: expected(one, value.get(name)) for name, one in member.members.items()} if isinstance(value, dict) else None
    if pa.types.is_list(kind):
        return [expected(Member(kind.value_type, "", lambda _: None), one) for one in value] if isinstance(value, list) else None
    if kind == pa.bool_():
        return value if isinstance(value, bool) else None
    if kind == typed.TEXT:
        return value if isinstance(value, str) else str(value) if type(value) is int and "int" in member.says else None
    if kind == pa.float64():
        return value if isinstance(value, float) else typed.NOT_FINITE.get(value)
    if type(value) is not int:
        return None
    if kind == typed.WIDE:
        return Decimal(value)
    low, high = -1 << kind.bit_width - 1, (1 << kind.bit_width - 1) - 1
    return value if low <= value <= high else None


def check(made: Any) -> int:
    """Every typed member is what the JSON of its row says; how many are not null."""
    held = 0
    for row in made.to_pylist():
        fields = json.loads(row["fields"])
        for protocol, struct in STRUCTS.items():
            found = row[struct_name(protocol)]
            if protocol != row["protocol"]:
                assert found is None
                continue
            assert found == expected(struct, fields)
            assert list(found) == list(struct.members or {})
            held += sum(value is not None for value in found.values())
    return held


@pytest.mark.parametrize("folder", sorted(path.name for path in GOLDEN.iterdir() if path.is_dir()))
def test_typed_members_say_what_the_json_says(folder: str) -> None:
    held = rows = 0
    everything: list[Linked] = []
    for path in sorted(GOLDEN.joinpath(folder).glob("*.pcap*")):
        found = messages(path)
        made = batch("messages", found)
        made.validate(full=True)
        held += check(made)
        rows += len(found)
        everything += found
    assert held > 2 * rows > 0
    # All of them together, in an order in which no two neighbours are alike, are the same columns.
    mixed = sorted(everything, key=lambda one: hash((one[0].position * 7919, one[0].size)))
    assert check(batch("messages", mixed)) == held
