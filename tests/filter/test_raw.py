"""Text in the bytes of messages: what a frame and what is packed in it say is found, what the output hides is not."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import pytest

import streamdump
from streamdump.cli.app import main
from streamdump.errors import CaptureError, UsageError
from streamdump.filter import compile_columns, compile_filter
from streamdump.model import Message
from tests.support.captures import CAPTURES, GOLDEN, capture_name, every_family

LOGIN = GOLDEN / "rabbitmq-stream" / "publishers_310.pcap"
PACKED = GOLDEN / "rabbitmq-stream" / "subbatch_compressed_405.pcap"


def found(capture: Path, where: str, **options: object) -> list[Message]:
    return [one for one in streamdump.read(capture, where=where, **options) if isinstance(one, Message)]


def test_bytes_of_a_frame_are_found_and_nothing_else_is() -> None:
    said = [one for one in streamdump.read(LOGIN, detail=True) if isinstance(one, Message)]
    holding = [one.number for one in said if b"m10" in (one.raw or {})["frame"]]
    assert holding == [one.number for one in found(LOGIN, 'raw contains "m10"')]
    assert [one.name for one in said if one.number in holding] == ["Publish"]
    assert holding == [one.number for one in found(LOGIN, "raw matches 'm[0-9]0.*m20'")]


def test_what_is_packed_is_found_where_the_frame_does_not_hold_it() -> None:
    said = [one for one in streamdump.read(PACKED, detail=True) if isinstance(one, Message)]
    word = b"papa delta papa"
    inside = [one.number for one in said if any(word in data for name, data in (one.raw or {}).items() if name != "frame")]
    outside = {one.number for one in said if word in (one.raw or {})["frame"]}
    assert set(inside) - outside
    assert set(inside) | outside == {one.number for one in found(PACKED, f'raw contains "{word.decode()}"')}


def test_no_filter_finds_what_the_output_hides() -> None:
    secret = "\\x00guest\\x00guest"
    (login,) = found(LOGIN, f"raw matches '{secret}'", show_secrets=True)
    assert login.name == "SaslAuthenticate"
    for where in (
        f"raw matches '{secret}'",
        "raw contains guest",
        "sasl_opaque_data contains guest",
        "fields.sasl_opaque_data contains gue",
    ):
        assert found(LOGIN, where) == [], where
    assert len(found(LOGIN, "sasl_opaque_data contains guest", show_secrets=True)) == 1


@pytest.mark.sweep
@every_family([path for path in CAPTURES if path.stat().st_size <= 100_000])
def test_what_is_searched_is_what_a_dump_shows(paths: list[Path], subtests: pytest.Subtests) -> None:
    for path in paths:
        with subtests.test(capture_name(path)):
            asked = compile_filter("raw contains '<<<'")
            records = []
            with suppress(CaptureError):
                records += streamdump.read(path, detail=True)
            for record in records:
                if isinstance(record, Message) and any(span.secret and span.length for span in record.spans or ()):
                    for name, data in (record.raw or {}).items():
                        for span in record.spans or ():
                            if span.secret and span.leaf and span.buffer == name and span.length > 2:
                                data = data[: span.offset] + b"<" * span.length + data[span.offset + span.length :]
                                changed = {**(record.raw or {}), name: data[: len((record.raw or {})[name])]}
                                record.raw, kept = changed, record.raw
                                assert not asked.keeps(record), f"{record.name}: {span.name}"
                                record.raw = kept
                                break


def test_text_is_found_in_a_value_of_bytes() -> None:
    assert {one.name for one in found(LOGIN, "body contains m1")} == {"Publish"}
    assert {one.name for one in found(LOGIN, "body contains 6d31")} == {"Publish"}
    assert found(LOGIN, "body contains 'm1!'") == []


def test_the_bytes_stay_out_of_the_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--json", "-Y", "raw contains m10", str(LOGIN)]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    plain = [one for one in streamdump.read(LOGIN, where="name == Publish") if isinstance(one, Message)]
    assert json.loads(line)["number"] == plain[0].number
    assert list(json.loads(line))[-1] == "fault"


def test_it_is_no_column() -> None:
    with pytest.raises(UsageError, match="-x prints the bytes"):
        compile_columns(["raw"])
