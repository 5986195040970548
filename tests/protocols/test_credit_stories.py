"""The made captures of credit in bytes: every value is the one that was written, and healthy conversations are called healthy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from streamdump.capture.files import open_capture
from streamdump.cli.app import main
from streamdump.inspector import Inspector
from streamdump.model import Finding, Message, Options
from tests.protocols.credit_stories import BYTES, CAPTURES, CHUNKS, FAILING, HEALTHY, IN_BYTES, STORIES, Said, Story, hostile, newer_release


def without_labels(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without_labels(one) for name, one in value.items() if not name.endswith("_label")}
    return [without_labels(one) for one in value] if isinstance(value, list) else value


def read(name: str, **options: Any) -> list[Any]:
    reader = open_capture(str(CAPTURES / name))
    try:
        return list(Inspector([reader], Options(**options)).records())
    finally:
        reader.close()


@pytest.mark.parametrize("name", STORIES)
def test_the_captures_are_what_the_stories_write(name: str) -> None:
    assert (CAPTURES / name).read_bytes() == STORIES[name]().capture()


@pytest.mark.parametrize("detail", [False, True], ids=["fast", "exact"])
@pytest.mark.parametrize("name", [name for name, story in STORIES.items() if story is not hostile])
def test_every_value_is_the_one_that_was_written(name: str, detail: bool) -> None:
    messages = [one for one in read(name, detail=detail, bodies=True) if type(one) is Message]
    place = {message.number: at for at, message in enumerate(messages)}
    found = [
        Said(str(one.sender), one.name, one.kind, without_labels(one.fields), None if one.request is None else place[one.request])
        for one in messages
    ]
    assert found == STORIES[name]().said
    assert not [one.fault for one in messages if one.fault is not None]


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_conversations_give_notes_at_most(name: str) -> None:
    found = [one for one in read(name, findings=True) if type(one) is Finding]
    assert [one for one in found if one.severity != "note"] == []
    if HEALTHY[name] is not newer_release:
        assert {one.rule for one in found} <= {"tcp.mid-stream"}


CAUSES = {
    "byte_credit_refused_made.pcap": [
        'RabbitMQ 4.4.0 refuses a Credit of 1 chunk for subscription 0 ("orders"): the credit of this subscription is in bytes',
        'RabbitMQ 4.4.0 refuses a Credit of 70,000,000 bytes for subscription 0 ("orders"): that is more than the 67,108,864 bytes that '
        "servers allow by default",
        'RabbitMQ 4.4.0 refuses a Credit of 100 bytes for subscription 1 ("bills"): the credit of this subscription is in chunks',
    ],
    # 400 of Subscribe and 7 times 100, 8 chunks of 48 and 104
    "byte_credit_starved_made.pcap": [
        'subscription 0 ("orders") has had no credit for 31 s when the connection ends: 1,100 bytes were granted and 1,216 delivered'
    ],
    "byte_credit_unknown_made.pcap": [
        'the server closes with unknown frame: "unknown frame" after Subscribe from the client; RabbitMQ 4.0.5 does not know Subscribe '
        "(key 0x0007, version 2)"
    ],
}


@pytest.mark.parametrize("name", CAUSES)
def test_what_is_wrong_in_the_others(name: str) -> None:
    assert [one.cause for one in read(name, findings=True) if type(one) is Finding and one.severity != "note"] == CAUSES[name]
    assert set(CAUSES) == set(FAILING) - {"byte_credit_hostile_made.pcap"}


def test_check_does_not_compare_how_bytes_of_credit_were_divided(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The server divides the same messages into other chunks; and a consumer that counts chunks is another behaviour."""

    def consumed(*chunks: tuple[bytes, ...], version: int = BYTES) -> bytes:
        story = Story().ready(versions=IN_BYTES).subscribe(version, 1_000).subscribed()
        for bodies in chunks:
            size = story.deliver(*bodies)
            story.credit(version, size if version == BYTES else 1)
        return story.unsubscribe().close().capture()

    path = tmp_path / "consumer.pcap"
    path.write_bytes(consumed((b"one", b"two"), (b"three",)))
    assert main(["check", "--update", str(path)]) == 0
    for capture, code in (
        (consumed((b"one",), (b"two", b"three")), 0),
        (consumed((b"one", b"two", b"three")), 0),
        (consumed((b"one", b"two"), (b"three",), version=CHUNKS), 1),
    ):
        path.write_bytes(capture)
        assert main(["check", str(path)]) == code, capsys.readouterr().out


def test_hostile_credit_has_its_values() -> None:
    """Each Credit says what is on the wire, and no amount is mistaken for that of the other unit."""
    messages = [one for one in read("byte_credit_hostile_made.pcap") if type(one) is Message]
    said = [(one.name, without_labels(one.values)) for one in hostile().said]
    found = [(one.name, without_labels(one.fields)) for one in messages if one.fault is None and "trailing" not in one.fields]
    assert [one for one in found if one in said] == said
