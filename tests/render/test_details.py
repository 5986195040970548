"""The tree and the hex dump: every field with its bytes, and no secret in either."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from streamdump.model import Fault, Message, Span
from streamdump.render import hexdump as hexdump_module
from streamdump.render import tree as tree_module
from streamdump.render.terminal import width
from tests.render.records import detailed, message


def tree(*told: Any, **how: Any) -> str:
    return "\n".join(tree_module.tree(*told, **how))


def hexdump(*told: Any, **how: Any) -> str:
    return "\n".join(hexdump_module.hexdump(*told, **how))


def test_tree_shows_offset_length_bytes_and_value() -> None:
    assert tree(detailed(), False).splitlines() == [
        "    packet 4, bytes 0-21 from 192.0.2.1:51054",
        "    [0000+4]    00 00 00 14                size         20",
        "    [0004+2]    00 01                      key          1  DeclarePublisher",
        "    [0006+16]                              properties",
        "    [0006+8]    00 06 6f 72 64 65 72 73      reference  'orders'",
        "    [000e+8]    ** ** ** ** ** ** ** **      password   <redacted 6 bytes>",
    ]


def test_tree_shows_a_number_cut_into_parts() -> None:
    made = tree(detailed(spans=[Span("flags", 0, 1, {"version": 2, "mode": 1, "mode_label": "slow"})]), False)
    assert made.splitlines()[1].endswith("flags  version 2, mode 1, mode_label 'slow'")


class Spans(list[Span]):
    """Counts how often they are passed."""

    passes = 0

    def __iter__(self) -> Iterator[Span]:
        self.passes += 1
        return super().__iter__()


def test_hex_dump_passes_the_spans_as_often_whatever_the_frame_unpacks_to() -> None:
    passes = []
    for count in (1, 50):
        raw = {"frame": bytes(4), **{f"unpacked {at}": bytes(4) for at in range(count)}}
        spans = Spans([Span("size", 0, 4, 0), *(Span("password", 0, 4, "", buffer=name, secret=at % 2 > 0) for at, name in enumerate(raw))])
        made = detailed()
        made.raw, made.spans = raw, spans
        assert hexdump(made, False).count("** ** ** **") == (count + 1) // 2
        passes.append(spans.passes)
    assert passes[0] == passes[1] > 0


def test_tree_points_at_the_damage() -> None:
    spans = [Span("size", 0, 4, 20), Span("undecoded", 4, 5, None)]
    made = tree(detailed(spans=spans, fault=Fault("reference", 6, "length says 6 bytes, 3 left")), False)
    assert made.splitlines()[2].endswith("00 01 00 06 6f          !  undecoded  reference at byte 6: length says 6 bytes, 3 left")


def test_tree_says_where_a_fault_lies_that_no_field_holds() -> None:
    made = tree(detailed(spans=[Span("size", 0, 4, 20)], fault=Fault("rest", 90, "missing")), False)
    assert made.splitlines()[-1].endswith("!  rest at byte 90: missing")


def test_tree_without_byte_ranges_shows_the_fields() -> None:
    made = tree(message(fields={"a": 1, "b": {"c": "x\x1b", "d": [True, None, []]}}), False)
    assert [" ".join(line.split()) for line in made.splitlines()[1:]] == [
        "a 1",
        "b",
        r"c 'x\x1b'",
        "d",
        "[0] true",
        "[1] null",
        "[2] empty",
    ]


def test_dump_names_the_fields_of_each_row() -> None:
    assert hexdump(detailed(), False).splitlines() == [
        "    0000  00 00 00 14 00 01 00 06  6f 72 64 65 72 73 ** **  ........orders**  size key properties.reference .password",
        "    0010  ** ** ** ** ** **                                 ******",
    ]


def test_dump_keeps_bytes_of_no_field_secret_where_there_are_secrets() -> None:
    spans = detailed().spans
    assert spans is not None
    made = hexdump(detailed(spans=[span for span in spans if span.name != "reference"]), False)
    assert "orders" not in made
    assert "6f 72" not in made


def test_dump_without_fields_shows_nothing_that_might_be_secret() -> None:
    made = hexdump(detailed(spans=None), False)
    assert len(made.splitlines()) == 1
    assert "22 bytes without known fields" in made
    assert "secret" in hexdump(detailed(spans=None), True)


def test_secrets_are_shown_when_asked_for() -> None:
    spans = [*(detailed().spans or [])[:-1], Span("password", 14, 8, "secret", 1, True, None, True)]
    assert "'secret'" in tree(detailed(spans=spans), True)
    assert "65 63 72 65 74" in hexdump(detailed(spans=spans), True)


def test_a_secret_value_is_hidden_even_if_its_dissector_forgot() -> None:
    spans = [*(detailed().spans or [])[:-1], Span("password", 14, 8, "secret", 1, True, None, True)]
    assert "secret" not in tree(detailed(spans=spans), False)


def test_bytes_are_told_from_text() -> None:
    made = tree(detailed(spans=[Span("head", 0, 4, "00000014"), Span("body", 4, 18, "00000014")]), False).splitlines()
    assert made[1].endswith("  head  00000014")
    assert made[2].endswith("  body  '00000014'")


def test_zeros_that_do_not_stand_beside_their_field_are_counted() -> None:
    spans = [
        Span("few", 0, 8, "00" * 8),
        Span("many", 8, 66, "00" * 66),
        Span("text", 74, 16, "0" * 16),
        Span("mixed", 90, 9, "00" * 8 + "01"),
    ]
    one = detailed(raw={"frame": bytes(74) + b"0" * 16 + bytes(8) + b"\1"}, spans=spans)
    for how in ({}, {"columns": 200}):
        ends = [line.split("  ")[-1].strip() for line in tree(one, False, **how).splitlines()[1:]]
        assert ends == ["00" * 8, "66 zero bytes", f"'{'0' * 16}'", "00" * 8 + "01"]


def unpacked(buffers: dict[str, bytes], *spans: Span) -> Message:
    """A detailed message with these buffers, too, and their fields."""
    one = detailed()
    return detailed(raw={**(one.raw or {}), **buffers}, spans=[*(one.spans or ()), *spans])


def test_unpacked_bytes_are_shown_as_their_own() -> None:
    one = unpacked({"unpacked": b"\x00\x01hello"}, Span("body", 0, 7, "hello", buffer="unpacked"))
    assert "    unpacked  7 bytes" in tree(one, False).splitlines()
    assert "    0000  00 01 68 65 6c 6c 6f                              ..hello           body" in hexdump(one, False).splitlines()


def test_of_unpacked_bytes_the_first_are_shown() -> None:
    buffers = {"unpacked": bytes(4_000), "unpacked 2": bytes(3_000), "unpacked 3": bytes(50)}
    one = unpacked(buffers, *(Span(f"[{at}]", at, 1, 0, buffer=name) for name, data in buffers.items() for at in range(len(data))))
    limit = 4096 + 32 * one.size
    for show in (tree, hexdump):
        wider = {"columns": 200}
        for how in ({}, wider):
            lines = show(one, False, **how).splitlines()
            left = [line.split("! ")[1] for line in lines if "further unpacked bytes are not shown" in line]
            each = [7_000 - limit, 50] if show is hexdump else [7_050 - limit]
            assert left == [f"{size:,} further unpacked bytes are not shown" for size in each]
    assert sum(" 00 " in line for line in tree(one, False).splitlines()) <= limit + 10


def test_a_field_of_no_unpacked_bytes_is_shown() -> None:
    one = unpacked({"unpacked": b""}, Span("body", 0, 0, "", buffer="unpacked"))
    assert [line for line in tree(one, False).splitlines() if "body" in line]
    assert "further" not in tree(one, False)


def test_dump_says_what_is_missing() -> None:
    assert hexdump(detailed(size=100), False).splitlines()[-1] == "    0016  ! 78 further bytes of this frame not captured or not kept"


@pytest.mark.parametrize("columns", [20, 40, 80, 200])
def test_long_values_go_on_in_further_lines_of_a_terminal(columns: int) -> None:
    value = "äb 世界 " * 60
    one = detailed(spans=[Span("body", 0, 22, value)])
    first, *rest = tree(one, False, columns=columns).splitlines()[1:]
    assert all(width(line) <= columns for line in rest)
    told = first.partition("  body  ")[2] + "".join(line[len(line) - len(line.lstrip(" ")) :] for line in rest)
    assert told.replace(" ", "") == f"'{value}'".replace(" ", "")
    if columns >= 80:
        assert width(first) <= columns
        assert len({len(line) - len(line.lstrip(" ")) for line in rest if not line.strip(" ").startswith(" ")}) <= 2
    assert value in tree(one, False)


def test_dump_names_fields_by_their_path() -> None:
    spans = [Span("entries", 0, 8, None, 0, False), Span("entries[0]", 0, 4, None, 1, False), Span("size", 0, 4, 1, 2)]
    spans += [Span("entries[1]", 4, 4, None, 1, False), Span("size", 4, 2, 1, 2), Span("body", 6, 2, "x", 2), Span("crc", 8, 1, 1)]
    line = hexdump(detailed(spans=spans), False).splitlines()[0]
    for columns in (60, 70, 80, 99):
        narrow = hexdump(detailed(spans=spans), False, columns=columns).splitlines()[0]
        assert width(narrow) <= columns
        assert "size" in narrow
    assert line.endswith("  entries[0].size entries[1].size .body crc")
