"""What the tables declare is what messages have: every field of the golden captures, and of which type."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import streamdump
from streamdump.errors import CaptureError
from streamdump.model import Message
from streamdump.protocols import PROTOCOLS
from streamdump.protocols.field_registry import BOOL, FLOAT, INT, OBJECT, OTHER, WORDS, RegisteredField, declared
from tests.support.captures import CAPTURES, capture_name, every_family

KINDS = {str: WORDS, int: INT, float: FLOAT, bool: BOOL}

FREE = {("mewbase", "frame.errCode", str), ("mewbase", "frame.rID", float)}
"""BSON values of another type than their field should have."""


@cache
def found_in(protocol: str) -> RegisteredField:
    return declared(next(one for one in PROTOCOLS if one.name == protocol))


def undeclared(value: Any, found: RegisteredField, path: str = "") -> Iterator[tuple[str, type]]:
    """The paths of what is not in the table, or not of a type that it says."""
    if OTHER in found.kinds or value is None:
        return
    if isinstance(value, dict):
        if path and OBJECT not in found.kinds:
            yield path, dict
        for name, one in value.items():
            inner = f"{path}.{name}".lstrip(".")
            if name in found.members:
                yield from undeclared(one, found.members[name], inner)
            elif name != "trailing" or (path and not found.sized):
                yield inner, type(one)
    elif isinstance(value, list):
        if found.items is None:
            yield path, list
        else:
            for one in value:
                yield from undeclared(one, found.items, path)
    elif KINDS[type(value)] not in found.kinds:
        yield path, type(value)


@every_family(CAPTURES)
def test_every_field_of_a_capture_is_declared(paths: list[Path], subtests: pytest.Subtests) -> None:
    for capture in paths:
        with subtests.test(capture_name(capture)):
            wrong = set()
            # One is cut off on purpose
            with suppress(CaptureError):
                for record in streamdump.read(capture):
                    if isinstance(record, Message):
                        wrong |= {(record.protocol, *one) for one in undeclared(record.fields, found_in(record.protocol))}
            assert wrong <= FREE


def test_tables_of_parts_are_found_by_the_words_that_refer_to_them() -> None:
    published = found_in("rabbitmq-stream").members["published_messages"].items
    assert published is not None
    assert {"publishing_id", "sections", "compression_label", "messages"} <= published.members.keys()
    assert [*published.members["compression_label"].labels] == ["none", "gzip", "snappy", "lz4", "zstd"]
    sections = published.members["sections"].items
    assert sections is not None
    assert sections.members["value"].kinds == {OTHER}
