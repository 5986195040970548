"""Validates lines of `--json` by the kind of record: the schema's `oneOf`, which tries every kind, costs ten times as much a line."""

from __future__ import annotations

from functools import cache
from typing import Any

from jsonschema import Draft202012Validator

from streamdump.render.schema import schema


def validate(line: dict[str, Any]) -> None:
    """Raise `ValidationError` if a line is not as the schema describes its kind of record."""
    _validator(line["record"]).validate(line)


@cache
def _validator(kind: str) -> Draft202012Validator:
    contract = schema()
    kinds = {contract["$defs"][one["$ref"].rpartition("/")[2]]["properties"]["record"]["const"]: one for one in contract["oneOf"]}
    return Draft202012Validator({**contract, "oneOf": [kinds[kind]]})
