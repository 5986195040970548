"""What keeps count of values, and of the spans that are kept."""

from __future__ import annotations

import sys
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest

from streamdump import quota
from streamdump.bson import walk as walk_bson
from streamdump.cli.app import main
from streamdump.layout import Array, Blob, Field, Layout, Style, Text, spans, u8, walk
from streamdump.model import VALUES, Options, Span
from streamdump.quota import FURTHER, Spans, UnpackPool, UnpackQuota, ValueQuota, drop_oldest, keep_newest
from streamdump.render.tree import tree
from tests.protocols.test_values import CASES, decoded, received
from tests.render.records import detailed
from tests.support.captures import GOLDEN


def tiles(spans: list[Span], size: int, buffer: str = "frame") -> None:
    at = 0
    for span in spans:
        if span.leaf and span.buffer == buffer:
            assert span.offset == at
            at += span.length
    assert at == size


MANY = 1 << 14
"""Finding the first key of a dict passes those that were removed: of this many that takes 8 µs, of 65,536 four times as long."""

REMEMBERING = (
    *("rabbitmq-stream/consumer_update_sac_436", "rabbitmq-stream/credit_flow_405", "rabbitmq-stream/draft_exchange"),
    *("mewbase/java-nov2016", "iggy/py080-basic", "seastar-rpc/basic"),
)


def test_the_oldest_of_very_many_is_found_at_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    places: dict[str, int] = {}

    def checked(kept: dict[Any, Any], most: int) -> None:
        caller = sys._getframe(1)
        caller = caller.f_back if caller.f_code is keep_newest.__code__ and caller.f_back is not None else caller
        places[f"{Path(caller.f_code.co_filename).name} {caller.f_code.co_name}"] = most
        assert most < MANY or isinstance(kept, OrderedDict), places
        drop_oldest(kept, most)

    for module in [one for one in sys.modules.values() if getattr(one, "drop_oldest", None) is drop_oldest and one.__name__ != __name__]:
        monkeypatch.setattr(module, "drop_oldest", checked)
    for name in REMEMBERING:
        path = str(GOLDEN / f"{name}.pcap")
        for arguments in ((path,), ("diagnose", path), ("stats", path), ("entries", path), ("--json", "-Y", "delta > 1s", path)):
            assert main([*arguments]) in (0, 1)
    capsys.readouterr()
    many = {place for place, most in places.items() if most >= MANY}
    assert many >= {"entries.py keep", "meaning.py _remember", "dissector.py _result", "engine.py _closed"}, sorted(many)


def test_the_oldest_entry_makes_room_for_the_newest() -> None:
    kept = dict.fromkeys("abc", 0)
    drop_oldest(kept, 3)
    keep_newest(kept, "a", 1, 3)
    assert list(kept.items()) == [("b", 0), ("c", 0), ("a", 1)]
    keep_newest(kept, "d", 2, 3)
    assert list(kept) == ["c", "a", "d"]


def test_values_are_counted_down() -> None:
    values = ValueQuota(5, 3)
    assert values.spend(3) and values.spend_empty(2)
    assert not values.spend()
    assert "of a frame no more than 5 values are made" in values.reason("")
    assert values.begin().spend(5)
    assert values.begin().spend_empty()
    assert not values.spend_empty()
    assert "of a conversation no more than 3 values without bytes are made" in values.reason("")
    assert values.spend(4)


def test_packed_bytes_pay_for_unpacked_ones() -> None:
    one = UnpackQuota(UnpackPool(0))
    assert one.grow(0) == UnpackQuota.FREE
    for _ in range(1_000):
        # LZ4 packs up to 255 bytes into one
        assert one.grow(100) >= 25_500 and one.spend(25_500)
    for _ in range(1_000_000 // 100):
        one.grow(100_000)
    assert one.left == UnpackQuota.MOST
    assert not one.spend(UnpackQuota.MOST + 1)


def test_conversations_share_what_none_has_paid() -> None:
    pool = UnpackPool()
    conversations = [UnpackQuota(pool) for _ in range(100)]
    bomb = 3_000_000
    assert sum(one.grow(1_000) >= bomb and one.spend(bomb) for one in conversations) == 6
    # Those that unpack to what they have paid for are not affected by the others
    assert all(UnpackQuota(pool).grow(1_000) >= 256_000 for _ in range(100))


def test_the_usual_limits() -> None:
    assert (Options().values_limit, Options().bare_limit, Style().values) == (VALUES, VALUES, VALUES)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quota, "MOST_SPANS", 7)
    # Readers that are made of layouts before have the usual limit
    monkeypatch.setattr(spans, "WALKED", 1 << 30)


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("name", CASES)
def test_fields_beyond_those_that_are_kept_are_one(name: str) -> None:
    for options in (Options(detail=True), Options(detail=True, values_limit=60)):
        message, _ = decoded(CASES[name], options)
        assert message.spans is not None
        for buffer, data in (message.raw or {}).items():
            tiles(message.spans, len(data), buffer)
        assert len([span for span in message.spans if span.name not in (FURTHER, "undecoded")]) <= 7 + (name == "Seastar records")
        assert any(span.name == FURTHER for span in message.spans)
        list(tree(message, False))


@pytest.mark.usefixtures("few")
def test_a_secret_among_them_hides_them_all() -> None:
    layout = Layout("x", Field("some", Array(u8, u8)), Field("password", Text(u8), secret=True), Field("rest", Blob(u8)))
    frame = bytes([9]) + bytes(9) + b"\3pin" + b"\2ok"
    for data in (frame, frame[:-1], frame[:12]):
        spans = walk(layout, data, 0, len(data)).spans
        tiles(spans, len(data))
        (further,) = [span for span in spans if span.name == FURTHER]
        assert further.secret or b"pin"[:2] not in data[further.offset : further.offset + further.length]
        assert "70 69" not in "".join(tree(detailed(spans=spans), False))


@pytest.mark.usefixtures("few")
def test_groups_that_begin_within_end_where_they_end() -> None:
    data = received(b"\x04event\0" + b"\x1a\0\0\0" + b"\x08\0\1" * 7 + b"\0")
    spans = walk_bson(data, 0, len(data)).spans
    tiles(spans, len(data))
    for span in spans:
        assert span.offset + span.length <= len(data)


def test_what_is_shown_of_very_many_unread_bytes() -> None:
    spans = Spans()
    spans.end(0, bytes(quota.UNDECODED_SHOWN), "0")
    spans.end(0, bytes(quota.UNDECODED_SHOWN + 1), "0")
    assert [span.value for span in spans] == ["0", None]
