"""Apache Iggy between replicas: frames from an encoder that knows only the facts, and what is said of them."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable
from pathlib import Path
from struct import pack

import pytest

from streamdump.capture.files import open_capture
from streamdump.cli.app import main
from streamdump.inspector import Inspector
from streamdump.model import ConversationRow, Message, Options
from streamdump.protocols.iggy import replica_layouts
from tests.diagnose.talks import diagnosed
from tests.support import replicas as r
from tests.support.captures import GOLDEN
from tests.support.frames import Packet, pcap
from tests.support.replica_stories import OTHER, SECRET, STORIES, Link, Wire, metadata
from tests.support.secrets import found, texts

FOLDER = GOLDEN / "iggy"


def read(packets: Iterable[Packet], **options: object) -> tuple[list[Message], list[ConversationRow]]:
    inspector = Inspector([open_capture(io.BytesIO(pcap(packets)), name="capture")], Options(**options))  # type: ignore[arg-type]
    records = list(inspector.records())
    return [one for one in records if isinstance(one, Message)], inspector.rows()


def talk(*sent: tuple[int, bytes], syn: bool = True) -> Wire:
    wire = Wire()
    link = Link(wire, 0, 1, syn=syn)
    if syn:
        link.hello()
    for side, data in sent:
        link.send(side, data)
    return wire


def says(*sent: tuple[int, bytes], syn: bool = True) -> list[Message]:
    return read(talk(*sent, syn=syn).packets)[0][1 if syn else 0 :]


def pairs(found: list[Message]) -> list[tuple[int, int]]:
    return [(one.request, one.number) for one in found if one.request is not None]


@pytest.mark.parametrize("name", STORIES)
def test_a_capture_is_what_its_story_says(name: str) -> None:
    """The captures of these names are made by the stories."""
    assert (FOLDER / f"{name}.pcap").read_bytes() == pcap(STORIES[name]().packets)


def test_the_readme_counts_the_messages() -> None:
    rows = re.findall(r"^\| `(replica-\S+\.pcap)` \| (\d+) \| (\d+) \|", (FOLDER / "README.md").read_text(), re.M)
    assert sorted(name for name, *_ in rows) == sorted(path.name for path in FOLDER.glob("replica-*.pcap"))
    for name, conversations, messages in rows:
        inspector = Inspector([open_capture(io.BytesIO((FOLDER / name).read_bytes()), name=name)], Options())
        count = sum(isinstance(one, Message) for one in inspector.records())
        assert (len(inspector.rows()), count) == (int(conversations), int(messages)), name
        assert {(row.protocol, row.layout) for row in inspector.rows()} == {("iggy", "replica")}


def test_every_command_is_named_and_its_fields_have_their_values() -> None:
    for name, (_, places) in r.COMMANDS.items():
        values = {key: 1 if width == 1 else 3 + at for key, (at, width) in places.items() if width <= 16}
        values |= {"operation": 3, "group": r.METADATA} if "operation" in places else {}
        one = r.frame(name, replica=1, view=2, **values)
        (found,) = says((1, one))
        assert (found.name, found.fault) == (name, None)
        assert (found.fields["view"], found.fields["replica"], found.fields["command"]) == (2, 1, r.COMMANDS[name][0])
        held = {str(value) for value in found.fields.values()}
        assert {str(value) for key, value in values.items() if places[key][1] > 1} <= held, name


def test_a_prepare_has_the_fields_of_its_command() -> None:
    topic, user, password = (
        found for found in says(*((0, one) for one in metadata()[1:5:1])) if found.fields["operation"] in (64, 141, 144)
    )
    assert topic.fields["create_topic"]["name"] == "placed"
    assert [one["group_label"] for one in topic.fields["assigned"]] == ["1/1/0", "1/1/1"]
    assert (user.fields["username"], user.fields["password"]) == ("wanda", f"<redacted {len(SECRET)} bytes>")
    assert password.fields["new_password"] == f"<redacted {len(SECRET)} bytes>"
    (sent,) = says((0, r.prepare(1, 160, r.batch(5, 70, [b"a", b"bc"]), group=r.group_of(3, 2, 5))))
    (batch,) = sent.fields["batches"]
    assert (sent.stream, sent.fields["group_label"]) == ("3/2", "3/2/5")
    assert (batch["partition_id"], batch["base_offset"], [one["payload"] for one in batch["messages"]]) == (5, 70, ["61", "6263"])
    assert not sent.notes


def test_the_same_op_of_several_groups_is_not_the_same() -> None:
    groups = (r.METADATA, r.group_of(0, 0, 0), r.group_of(1, 2, 3))
    asked = [r.prepare(1, 68, r.ident(1) + r.ident(2) + pack("<IQ", 0, 9), group=group) for group in groups]
    found = says(*((0, one) for one in asked), *((1, r.ok(one, 1)) for one in reversed(asked)))
    assert pairs(found) == [(4, 5), (3, 6), (2, 7)]


def test_both_sides_ask_with_the_same_numbers() -> None:
    asks = [(side, r.frame("RequestPrepares", replica=side, nonce=7, from_op=1, to_op=2, group=r.METADATA)) for side in (0, 1)]
    done = [(side, r.frame("RepairDone", replica=side, nonce=7, op=2, group=r.METADATA)) for side in (0, 1)]
    assert pairs(says(*asks, *done)) == [(3, 4), (2, 5)]


def test_a_prepare_that_is_sent_again_is_answered_once() -> None:
    one = r.prepare(1, 128, r.s8("a"))
    found = says((0, one), (0, one), (1, r.ok(one, 1)), (1, r.ok(one, 1)), (0, one), (1, r.ok(one, 1)))
    assert pairs(found) == [(2, 4), (6, 7)]
    assert found[1].notes == ["sent again: its answer is not here yet"]
    assert all(one.latency_ns is None or one.latency_ns > 0 for one in found)


def test_an_answer_to_another_prepare_with_this_op_is_no_answer() -> None:
    old, new = r.prepare(5, 128, r.s8("old"), view=1), r.prepare(5, 128, r.s8("new"), view=2)
    found = says((0, old), (0, new), (1, r.ok(old, 1)), (1, r.ok(new, 1)))
    assert pairs(found) == [(3, 5)]
    assert "prepare_checksum is" in found[2].notes[0]


def test_a_frame_with_a_wrong_seal_is_reported_and_answers_nothing() -> None:
    one = r.prepare(1, 128, r.s8("a"))
    wrong = bytearray(r.ok(one, 1))
    wrong[168] ^= 1
    found = says((0, one), (1, bytes(wrong)))
    assert pairs(found) == []
    assert "replicas drop such a frame" in found[1].notes[0]
    view = bytearray(one)
    view[52] = 9
    assert not says((0, bytes(view)))[0].notes, "the seal of a Prepare leaves the view out"


@pytest.mark.parametrize("name", ["primary", "authenticated", "chain", "view-change", "repair", "unsealed", "midstream"])
def test_nothing_above_a_note_is_said_of_replicas_that_are_well(name: str) -> None:
    assert {one.severity for one in diagnosed(FOLDER / f"replica-{name}.pcap")[0]} <= {"note"}


def test_a_body_of_another_build_is_no_damage_and_hidden() -> None:
    (one,) = says((0, r.prepare(1, 141, b"\x07" + SECRET.encode())))
    assert one.fault is None
    assert one.fields["body"] == f"<redacted {len(SECRET) + 1} bytes>"
    assert one.notes == ["the body cannot be read as create_user of server 0.9.0-edge.5"]


def test_no_output_has_a_secret() -> None:
    login = pack("<I", 11 << 10) + r.s8("rust") + r.s8("0.11") + r.s8("wanda") + r.s8(SECRET) + pack("<I", 0)
    asks = [
        r.frame("Request", login, replica=1, client=9, operation=1, group=r.METADATA),
        r.frame("Request", r.create_user("w", SECRET), replica=1, client=9, operation=141, group=r.METADATA),
        r.frame("Request", r.change_password(1, SECRET, OTHER), replica=1, client=9, operation=2, code=37, group=r.METADATA),
        r.frame("StateChunk", b"\0\1" + SECRET.encode(), replica=1, nonce=1, group=r.METADATA),
    ]
    wrong = [r.prepare(20 + operation, operation, r.create_user("w", SECRET)) for operation in (1, 2, 66, 99, 128, 136, 142, 145, 160, 161)]
    unsealed = [r.prepare(400, operation, r.create_user("w", SECRET), sealed=False) for operation in (128, 130, 146)]
    wire = talk(*((0, one) for one in (*metadata(), *wrong, *unsealed)), *((1, one) for one in asks))
    right = talk(*((0, one) for one in metadata()), *((1, one) for one in asks)).packets
    captures = [wire.packets, *([Packet(one.data[:cut], one.time_ns, len(one.data)) for one in right] for cut in (320, 350, 380, 420))]
    captures += [wire.packets[:at] + wire.packets[at + 1 :] for at in range(4, len(wire.packets), 3)]
    for packets in captures:
        for secret in (SECRET, OTHER):
            # What both begin with is the name of the algorithm
            assert found(secret.encode()[30:], texts(packets)) == []


def test_a_header_that_is_cut_has_what_is_there() -> None:
    packets = [Packet(one.data[: 54 + 200], one.time_ns, len(one.data)) for one in STORIES["replica-primary"]().packets]
    found, (row,) = read(packets)
    assert (row.layout, len(found)) == ("replica", 44) or len(found) > 40
    assert all(one.fault is not None for one in found)


def test_bytes_behind_a_loss_are_not_taken_for_prepares_silently() -> None:
    inside = b"".join(r.prepare(op, 128, r.s8(f"in{op}")) for op in range(1, 20))
    chunk = r.frame("StateChunk", inside, replica=1, nonce=5, group=r.METADATA)
    wire = Wire()
    link = Link(wire, 0, 1)
    link.hello()
    link.lose(1, chunk[:300])
    link.send(1, chunk[300:])
    link.send(1, r.ok(r.prepare(1, 3), 1))
    link.send(0, r.commit(1))
    found, _ = read(wire.packets)
    first = next(one for one in found if one.name == "Prepare")
    assert "it may be a part of" in first.notes[0]
    assert [one.name for one in found[-2:]] == ["PrepareOk", "Commit"]


def test_a_size_that_no_such_frame_has_is_not_believed() -> None:
    wrong = bytearray(r.commit(1))
    wrong[48:52] = pack("<I", 60 << 20)
    assert [one.fields["commit"] for one in says((0, bytes(wrong)), (0, r.commit(2)), (0, r.commit(3)))] == [2, 3]


def test_counts_that_no_manifest_has_allocate_nothing() -> None:
    body = bytearray(r.manifest((0, 1, b"x")))
    body[4:8] = pack("<I", 0xFFFFFFFF)
    (one,) = says((0, r.frame("StateTransferTarget", bytes(body), nonce=1, available=1, group=r.METADATA)))
    assert one.fields["body"].startswith("<redacted ")


def test_codes_that_no_layout_has_share_one_table() -> None:
    first, *others = (replica_layouts.layout_of(5, operation, code) for operation in (2, 7) for code in range(100_000, 100_100))
    assert all(one is first for one in others)
    assert replica_layouts.layout_of(5, 2, 37) is replica_layouts.layout_of(5, 2, 37) is not first


def test_a_connection_of_a_client_is_none_of_replicas() -> None:
    for path in FOLDER.glob("*.pcap"):
        if path.name.startswith("replica-"):
            continue
        inspector = Inspector([open_capture(io.BytesIO(path.read_bytes()), name=path.name)], Options(bodies=False))
        for _ in inspector.records():
            pass
        assert "replica" not in {row.layout for row in inspector.rows()}, path.name


def test_unsealed_frames_alone_need_others_behind_them() -> None:
    sent = [r.prepare(op, 128, r.s8(f"u{op}"), sealed=False) for op in range(1, 6)]
    assert len(says((0, b"".join(sent)[100:]), syn=False)) == 4
    assert says((0, sent[0][:256] + b"\1" * 300), syn=False) == []


@pytest.mark.parametrize("name", ["primary", "repair", "chain"])
def test_a_scrubbed_capture_has_right_seals_and_the_same_pairs(name: str, tmp_path: Path) -> None:
    target = tmp_path / "scrubbed.pcap"
    path = FOLDER / f"replica-{name}.pcap"
    assert main(["scrub", str(path), str(target), "--payloads", "--names"]) == 0
    before, after = (
        [one for one in Inspector([open_capture(io.BytesIO(data), name=name)], Options()).records() if isinstance(one, Message)]
        for data in (path.read_bytes(), target.read_bytes())
    )
    assert pairs(before) == pairs(after)
    assert [one.notes for one in after] == [one.notes for one in before]
    for text in (b"wanda", b"argon2", b"placed", b"orders", b"order 1", b"readers", b"from-a-backup", b"stream-1", b"message 1"):
        assert text not in target.read_bytes()
