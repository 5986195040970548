"""Writes the page of all columns of the tables of `pipeline` from their descriptions: `python -m tests.support`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from streamdump.spark.tables import TABLES, TYPED, schema
from streamdump.spark.typed import WIDE
from tests.support.pages import ROOT

PAGE = ROOT / "dissect" / "spark" / "tables.md"
HEAD = """# Columns of the tables

Of the tables that [`streamdump pipeline`](README.md) writes. Types are those of Spark; Parquet files have the same texts as comments.

"""
TITLES = {
    table: f"Fields of messages of {protocol}, with `--fields typed` or `both`. Those of a message that lacks a field are null."
    for protocol, table in TYPED.items()
}

NAMES = {
    pa.bool_(): "boolean",
    pa.int8(): "tinyint",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    WIDE: "decimal(20,0)",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "binary",
    pa.timestamp("us", "UTC"): "timestamp",
}


def type_name(kind: Any) -> str:
    """The type as Spark calls it."""
    if pa.types.is_map(kind):
        return f"map<{type_name(kind.key_type)},{type_name(kind.item_type)}>"
    if pa.types.is_list(kind):
        return f"array<{type_name(kind.value_type)}>"
    if pa.types.is_struct(kind):
        return f"struct<{','.join(f'{one.name}:{type_name(one.type)}' for one in kind)}>"
    return NAMES[kind]


def columns(table: str) -> Iterator[tuple[str, str, str]]:
    """Yield name, type and meaning of each column; `a.b` is a member of a struct."""
    for field in schema(table):
        yield from _described(field, "")


def _described(field: Any, above: str) -> Iterator[tuple[str, str, str]]:
    name, members = above + field.name, list(field.type) if pa.types.is_struct(field.type) else []
    yield name, "struct" if members else type_name(field.type), (field.metadata or {}).get(b"comment", b"").decode()
    for member in members:
        yield from _described(member, f"{name}.")


def text() -> str:
    """The page."""
    parts = [HEAD]
    for table in TABLES:
        parts.append(f"## {table}\n\n")
        if table in TITLES:
            parts.append(f"{TITLES[table]}\n\n")
        parts.append("| column | type | contents |\n| --- | --- | --- |\n")
        parts += [f"| `{name}` | `{kind}` | {info.replace('<', '&lt;')} |\n" for name, kind, info in columns(table)]
        parts.append("\n")
    return "".join(parts).rstrip() + "\n"


def write() -> None:
    """Write the page."""
    PAGE.write_text(text())
