"""What of a RabbitMQ Streams handshake is shown: frames whose key, version, size or mechanism lie, and where they begin in it."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from streamdump.capture.files import open_capture
from streamdump.inspector import Inspector
from streamdump.layout import rows
from streamdump.model import Options
from streamdump.protocols.rabbitmq import PROTOCOLS, layouts, layouts_draft
from streamdump.protocols.rabbitmq.frame_redaction import HIDDEN
from streamdump.protocols.rabbitmq.sasl_redaction import (
    MAX_WAIT_FRAMES,
    HandshakePlace,
    SaslRedaction,
    SeenFrame,
    is_mechanism,
    may_be_login,
    username,
)
from streamdump.render.jsonl import encode
from streamdump.render.summary import Lines
from streamdump.render.tree import tree
from tests.support.frames import START_NS, Packet, pcap
from tests.support.logins import MECHANISMS, RABBITMQ, SECRET, Login, rabbitmq, stream_frame, text
from tests.support.secrets import CLIENT, SAYS, SERVER, Lost, Sent, conversation, found, texts

CAPTURES = Path(__file__).parents[2] / "captures" / "golden" / "rabbitmq-stream"

PLAIN = rabbitmq("PLAIN")
AUTHENTICATE = 4
"""Where SaslAuthenticate stands in it, its answer behind it, then both Tune, and Open with its answer."""

HEADER = ["size", "key", "version", "correlation_id"]


def said(packets: list[Packet], rows: int | None = None, **options: Any) -> list[dict[str, Any]]:
    inspector = Inspector([open_capture(io.BytesIO(pcap(packets)), name="x")], Options(**options), rows)
    return [json.loads(line) for line in encode(list(inspector.records())).splitlines()]


def messages(sent: list[Sent | Lost], syn: bool = True, **options: Any) -> list[dict[str, Any]]:
    return [one for one in said(conversation(sent, 5552, syn=syn), **options) if one["record"] == "message"]


def capture(name: str, **options: Any) -> list[dict[str, Any]]:
    inspector = Inspector([open_capture(str(CAPTURES / name))], Options(**options))
    return [json.loads(line) for line in encode(list(inspector.records())).splitlines()]


def changed(sent: list[Sent | Lost], index: int, at: int, code: str, value: int) -> list[Sent | Lost]:
    """The same with a number of one frame changed."""
    side, data = sent[index]
    assert isinstance(data, bytes)
    raw = bytearray(data)
    struct.pack_into(f">{code}", raw, at, value)
    return [*sent[:index], (side, bytes(raw)), *sent[index + 1 :]]


# The user name


@pytest.mark.parametrize(
    ("mechanism", "data", "name"),
    [
        ("PLAIN", b"\0guest\0secret", "guest"),
        ("PLAIN", b"admin\0guest\0secret", "guest"),
        ("PLAIN", b"\0ghost-user\0", "ghost-user"),
        ("PLAIN", b"\0user@secret\0", None),
        ("PLAIN", b"\0user secret\0", None),
        ("PLAIN", b"@user\0sec\0ret", None),
        ("PLAIN", b"\x08user\0sec\0ret", None),
        ("PLAIN", b"admin\0secret\0", None),
        ("PLAIN", b"admin\0\0secret", None),
        ("PLAIN", "\0jörg\0secret".encode(), "jörg"),
        ("PLAIN", b"guest\0secret\0", None),
        ("PLAIN", b"\0\0", None),
        ("PLAIN", b"\0\0secret", None),
        ("PLAIN", b"\0guestsecret", None),
        ("PLAIN", b"\0guest\0sec\0ret", None),
        ("PLAIN", b"\0gu\xffst\0secret", None),
        ("PLAIN", b"\0gu\x1bst\0secret", None),
        ("PLAIN", b"", None),
        ("EXTERNAL", b"\0guest\0secret", None),
        ("plain", b"\0guest\0secret", None),
        (None, b"\0guest\0secret", None),
        ("AMQPLAIN", b"\5LOGINS\0\0\0\5guest\x08PASSWORDS\0\0\0\6secret", "guest"),
        ("AMQPLAIN", b"\x08PASSWORDS\0\0\0\6secret\5LOGINS\0\0\0\5guest", "guest"),
        ("AMQPLAIN", b"\5LOGINS\0\0\0\5guest\x08PASSWORDS\0\0\0\6secre", None),
        ("AMQPLAIN", b"\5LOGINS\0\0\0\5guest\x08PASSWORDS\0\0\0\6secretx", None),
        ("AMQPLAIN", b"\5LOGINS\0\0\0\5guest", None),
        ("AMQPLAIN", b"\5LOGINI\0\0\0\5\x08PASSWORDS\0\0\0\6secret", None),
        ("AMQPLAIN", b"\5LOGINS\0\0\0\5guest\5LOGINS\0\0\0\1x\x08PASSWORDS\0\0\0\6secret", None),
        ("AMQPLAIN", b"\0guest\0secret", None),
    ],
)
def test_the_user_name_of_a_login(mechanism: str | None, data: bytes, name: str | None) -> None:
    assert username(mechanism, data) == name


@pytest.mark.parametrize("login", RABBITMQ, ids=lambda login: login.name)
@pytest.mark.parametrize("detail", [False, True])
def test_the_user_name_stands_behind_the_data(login: Login, detail: bool) -> None:
    mechanism = login.name.split()[0]
    name = "alice" if mechanism in ("PLAIN", "AMQPLAIN") else None
    inspector = Inspector([open_capture(io.BytesIO(pcap(conversation(login.sent, 5552))), name="x")], Options(detail=detail))
    records = list(inspector.records())
    found = [one for one in records if one.name == "SaslAuthenticate" and one.kind == "request"]  # type: ignore[union-attr]
    assert len(found) == len(MECHANISMS[mechanism])
    for message, data in zip(found, MECHANISMS[mechanism], strict=True):
        fields = message.fields  # type: ignore[union-attr]
        assert list(fields)[3:] == ["correlation_id", "mechanism", "sasl_opaque_data", "sasl_username"]
        assert list(fields.values())[4:] == [mechanism, f"<redacted {len(data)} bytes>", name]
        (line,) = Lines(SAYS).text([message]).splitlines()
        assert line.endswith(f"{mechanism}  user {name}" if name else mechanism)
        if detail:
            spans = message.spans  # type: ignore[union-attr]
            assert [(span.name, span.length, span.secret) for span in spans[-2:]] == [
                ("sasl_opaque_data", 4 + len(data), True),
                ("sasl_username", 0, False),
            ]
            assert list(tree(message, False))[-1].split()[1:] == ["sasl_username", f"'{name}'" if name else "null"]  # type: ignore[arg-type]


def test_the_tables_have_the_user_name() -> None:
    for layout in (layouts.SASL_AUTHENTICATE, layouts_draft.SASL_AUTHENTICATE):
        assert rows(layout)[-1] == ("sasl_username", "text", "not on the wire: what the data of PLAIN or AMQPLAIN names, else null")
    assert [protocol.name for protocol in PROTOCOLS if "sasl_username" in protocol.loaded.text] == ["rabbitmq-stream"]


@pytest.mark.parametrize("name", ["PLAIN", "SCRAM-SHA-256-PLUS", "X_9", "A", "A" * 20])
def test_names_of_mechanisms(name: str) -> None:
    assert is_mechanism(name)
    assert not is_mechanism(name.lower()) or name == "9"
    assert not is_mechanism(f"{name}{'A' * 20}")
    assert not is_mechanism(f"{name} ")


@pytest.mark.parametrize("mechanism", ["plain", "PLAIN GUEST", "Zq7#kV9!xW2$mP4&", "", "ÜBER"])
def test_what_is_no_mechanism_is_hidden_in_a_sound_frame_too(mechanism: str) -> None:
    data = struct.pack(">I", 3) + text(mechanism) + struct.pack(">i", 4) + b"\0a\0b"
    sent = [*PLAIN.sent[:AUTHENTICATE], (CLIENT, stream_frame("SaslAuthenticate", data)), *PLAIN.sent[AUTHENTICATE + 1 :]]
    (message,) = [one for one in messages(sent) if one["name"] == "SaslAuthenticate" and one["kind"] == "request"]
    assert message["fields"]["mechanism"] == f"<redacted {len(mechanism.encode())} bytes>"
    assert message["fault"] is None
    (shown,) = [one for one in messages(sent, show_secrets=True) if one["name"] == "SaslAuthenticate" and one["kind"] == "request"]
    assert shown["fields"]["mechanism"] == mechanism


# As captured and damaged


def test_a_damaged_key_shows_header_and_mechanism() -> None:
    for name, key, called in (("sasl_key_3_damaged.pcap", 3, "PublishConfirm"), ("sasl_key_17_damaged.pcap", 0x17, "Heartbeat")):
        message = capture(name)[4]
        assert message["name"] == called
        assert message["fields"] == {
            "size": 40,
            "key": key,
            "version": 1,
            "correlation_id": 3,
            "mechanism": "PLAIN",
            "body": "<redacted 25 bytes>",
        }
        assert message["notes"][-1] == HIDDEN
        assert capture(name, show_secrets=True)[4]["fields"] != message["fields"]


def test_a_frame_that_takes_in_all_that_follows_is_hidden_though_it_ends_when_the_connection_is_open() -> None:
    records = capture("sasl_size_and_key_damaged_310.pcap")
    message = [one for one in records if one["record"] == "message"][-1]
    assert message["name"] == "unknown 0x0813"
    assert message["packets"] == [10, 18]
    assert message["fields"] == {"size": 16415, "key": 0x0813, "version": 513, "correlation_id": 3, "mechanism": "PLAIN"}
    assert message["fault"]["reason"] == "88 of 16419 bytes captured"
    assert [one["name"] for one in records if one.get("sender") == "server"][2:5] == ["SaslAuthenticate", "Tune", "Open"]


def test_data_that_stands_as_the_mechanism_is_hidden() -> None:
    message = capture("sasl_data_in_mechanism.pcap")[4]
    assert message["fields"] == {"size": 27, "key": 19, "version": 1, "correlation_id": 3, "mechanism": "<redacted 17 bytes>"}
    assert message["fault"] == {"field": "sasl_opaque_data", "offset": 31, "reason": "cannot be read", "buffer": "frame"}


def test_a_mechanism_of_null_is_a_fault_of_its_message() -> None:
    records = capture("sasl_null_mechanism.pcap")
    assert [one["name"] for one in records if one["record"] == "message"] == [
        "PeerProperties",
        "PeerProperties",
        "SaslHandshake",
        "SaslHandshake",
        "SaslAuthenticate",
    ]
    assert records[4]["fields"]["mechanism"] is None
    assert records[4]["fault"] == {"field": "sasl_opaque_data", "offset": 14, "reason": "cannot be read", "buffer": "frame"}
    inspector = Inspector([open_capture(str(CAPTURES / "sasl_null_mechanism.pcap"))], Options())
    assert Lines(SAYS).text(list(inspector.records())).splitlines()[4].endswith("#3  no mechanism")


# Where a frame begins


def test_every_key_shows_as_little() -> None:
    """Whatever a frame says it is."""
    for key in (*range(0x40), *range(0x8000, 0x8040), 0x0813, 0xFFFF):
        for version in (0, 1, 2):
            sent = changed(changed(list(PLAIN.sent), AUTHENTICATE, 4, "H", key), AUTHENTICATE, 6, "H", version)
            message = [one for one in messages(sent) if one["sender"] == "client"][2]
            assert list(message["fields"])[:5] == [*HEADER, "mechanism"]
            rest = list(message["fields"].values())[5:]
            assert all(str(one).startswith("<redacted ") or one == "alice" for one in rest), (key, version, message)
            assert ("alice" in rest) == (key == 0x13 and version == 1)
            assert [one["name"] for one in messages(sent) if one["sender"] == "client"][3:] == ["Tune", "Open", "Create"]


def test_a_sound_frame_is_hidden_as_well() -> None:
    """A client that does not wait until it is let in; or a login that looks like that."""
    create = PLAIN.sent[-2]

    def created(index: int) -> dict[str, Any]:
        return next(one for one in messages([*PLAIN.sent[:index], create, *PLAIN.sent[index:]]) if one["name"] == "Create")

    for index in (AUTHENTICATE, AUTHENTICATE + 1):
        message = created(index)
        assert message["fields"] == {"size": 20, "key": 13, "version": 1, "correlation_id": 8, "body": "<redacted 12 bytes>"}
        assert (message["id"], message["outcome"], message["fault"]) == (8, None, None)
        assert HIDDEN in message["notes"]
    assert created(2)["fields"]["stream"] == "orders", "no password is sent before SaslHandshake"


def test_properties_and_heartbeats_are_shown_everywhere() -> None:
    heartbeat = (CLIENT, struct.pack(">IHH", 4, 0x17, 1))
    for index in range(1, len(PLAIN.sent)):
        heard = messages([*PLAIN.sent[:index], heartbeat, PLAIN.sent[0], *PLAIN.sent[index:]])
        assert [one["fields"] for one in heard if one["name"] == "Heartbeat"] == [{"size": 4, "key": 0x17, "version": 1}]
        assert all("peer_properties" in one["fields"] for one in heard if one["name"] == "PeerProperties")


def test_a_first_frame_that_is_cut_says_what_is_there() -> None:
    """The properties of a client are no secret, and what cuts them is no damage."""
    for snap in range(66, 80):
        packets = [one._replace(data=one.data[:snap], wire=len(one.data)) for one in conversation(PLAIN.sent, 5552)]
        first = said(packets)[0]
        assert (first["name"], first["notes"]) == ("PeerProperties", [])
    broken = changed(list(PLAIN.sent), 0, 0, "I", 200)
    assert found(SECRET, texts(conversation(broken, 5552), full=True)) == []


@pytest.mark.parametrize("answers", [[5], [5, 6], [5, 6, 9]])
@pytest.mark.parametrize("key", [0x0813, 0x0017, 0x0002])
def test_an_acceptance_that_is_captured_first_leaves_the_login_hidden(answers: list[int], key: int) -> None:
    """A capture may have the server's packets before the client's."""
    sent = changed(list(PLAIN.sent), AUTHENTICATE, 4, "H", key)
    early = [*sent[:AUTHENTICATE], *(sent[index] for index in answers), sent[AUTHENTICATE]]
    early += [one for index, one in enumerate(sent) if index > AUTHENTICATE and index not in answers]
    assert found(SECRET, texts(conversation(early, 5552))) == []
    assert [one["name"] for one in messages(early) if one["sender"] == "client"][3:] == ["Tune", "Open", "Create"]
    assert messages(early)[-2]["fields"]["stream"] == "orders"


WRONG = {
    "size, key and mechanism": [(0, "I", 290_000), (4, "H", 0x0002), (16, "B", 0x5C)],
    "a size that ends in the data": [(0, "I", 30)],
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_an_acceptance_that_is_captured_first_hides_what_ends_when_the_connection_is_open(wrong: list[tuple[int, str, int]]) -> None:
    """Of the server a frame is lost behind it."""
    sent: list[Sent | Lost] = list(rabbitmq("AMQPLAIN").sent)
    sent[9] = Lost(SERVER, len(sent[9][1]))  # type: ignore[arg-type]
    for change in wrong:
        sent = changed(sent, AUTHENTICATE, *change)
    early = [*sent[:AUTHENTICATE], sent[5], sent[AUTHENTICATE], *sent[6:]]
    assert found(SECRET, texts(conversation(early, 5552))) == []


@pytest.mark.parametrize("lost", [[5], [6], [5, 6], [5, 6, 7], [5, 6, 7, 8], [2, 3], [0, 1, 2], [3, 5, 6, 9]])
def test_an_acceptance_that_is_lost_does_not_hide_the_rest(lost: list[int]) -> None:
    sent: list[Sent | Lost] = changed(list(PLAIN.sent), AUTHENTICATE, 4, "H", 0x0813)
    for index in lost:
        side, data = sent[index]
        assert isinstance(data, bytes)
        sent[index] = Lost(side, len(data))
    assert found(SECRET, texts(conversation(sent, 5552))) == []
    assert [one["fields"]["stream"] for one in messages(sent) if one["name"] == "Create" and one["kind"] == "request"] == ["orders"]


def test_one_side_alone() -> None:
    for side in (CLIENT, SERVER):
        for key in (0x13, 0x0813):
            sent = [one for one in changed(list(PLAIN.sent), AUTHENTICATE, 4, "H", key) if one[0] == side]
            heard = messages(sent)
            assert found(SECRET, texts(conversation(sent, 5552))) == []
            assert heard[-1]["name"] == "Create"
            assert heard[-1]["fields"].get("stream", "orders") == "orders"


@pytest.mark.parametrize("begin", range(len(PLAIN.sent)))
def test_a_capture_that_begins_in_the_middle(begin: int) -> None:
    for key in (0x13, 0x0813, 0x0002):
        sent = changed(list(PLAIN.sent), AUTHENTICATE, 4, "H", key)[begin:]
        assert found(SECRET, texts(conversation(sent, 5552, syn=False))) == []
    whole = messages(list(PLAIN.sent[begin:]), syn=False)
    assert all(HIDDEN not in one["notes"] for one in whole), "a sound conversation is shown from its first frame on"


def test_what_follows_a_frame_that_ends_too_early_is_no_header() -> None:
    """Of a login that is cut in two the second part would show its first twelve bytes as size, key, version and correlation id."""
    login = rabbitmq("EXTERNAL")
    size = len(login.sent[AUTHENTICATE][1])
    for short in range(8, size - 4):
        sent = changed(list(login.sent), AUTHENTICATE, 0, "I", short)
        assert found(SECRET, texts(conversation(sent, 5552))) == [], short
    message = next(one for one in messages(changed(list(login.sent), AUTHENTICATE, 0, "I", 18)) if one["name"] == "unknown")
    assert message["fields"] == {"body": f"<redacted {4 + len(SECRET)} bytes>"}


def test_frames_that_are_hidden_tell_nothing_of_the_connection() -> None:
    """A login that says it is Tune would be the limits of the connection, in the view of conversations."""
    sent = changed(list(PLAIN.sent), AUTHENTICATE, 4, "H", 0x14)
    inspector = Inspector([open_capture(io.BytesIO(pcap(conversation(sent, 5552))), name="x")], Options())
    list(inspector.records())
    assert inspector.rows()[0].facts == {"client_product": "x", "frame_max": 1 << 20, "heartbeat": 60, "handshake": "ready"}


def test_credentials_that_are_renewed() -> None:
    """An open connection goes on meanwhile, and only what is not as it should be is hidden."""
    renewal = list(PLAIN.sent[2:6])
    create = list(PLAIN.sent[-2:])
    whole = [*PLAIN.sent, *renewal[:3], *create, renewal[3], *create]
    shown = [one for one in messages(whole) if one["name"] == "Create" and one["kind"] == "request"]
    assert [one["fields"]["stream"] for one in shown] == ["orders"] * 3
    for index in (len(PLAIN.sent), len(PLAIN.sent) + 2):
        for key in (0x13, 0x12, 0x0813, 0x0017, 0x0002):
            for at, code, value in ((4, "H", key), (0, "I", 19), (0, "I", 300)):
                damaged = changed(changed(list(whole), len(PLAIN.sent) + 2, 4, "H", key), index, at, code, value)
                assert found(SECRET, texts(conversation(damaged, 5552))) == [], (index, key, at, value)


def test_a_renewal_without_a_handshake_is_hidden_whatever_its_key_and_mechanism() -> None:
    """On an open connection data that fills the frame behind the name of any mechanism is that of a login."""
    login = rabbitmq("X-HOUSE_9")
    frames = [stream_frame("SaslAuthenticate", struct.pack(">I", 30), text("X-HOUSE_9"), struct.pack(">i", len(SECRET)), SECRET)]
    frames += [stream_frame("Create", struct.pack(">I", 50), text("ORDERS"), struct.pack(">i", 0))]
    whole: list[Sent | Lost] = [*login.sent, *((CLIENT, one) for one in frames)]
    for key in (0x13, *(0x13 ^ 1 << bit for bit in range(16))):
        damaged = changed(whole, len(login.sent), 4, "H", key)
        assert found(SECRET, texts(conversation(damaged, 5552))) == [], key
        assert messages(damaged)[-1]["fields"]["stream"] == "ORDERS"


def test_secrets_are_shown_when_asked_for() -> None:
    for key in (0x13, 0x0813, 0x0002, 0x0017):
        sent = changed(list(PLAIN.sent), AUTHENTICATE, 4, "H", key)
        assert all(HIDDEN not in one["notes"] for one in messages(sent, show_secrets=True))
        shown = encode_all(sent)
        assert SECRET.hex() in shown


def encode_all(sent: list[Sent | Lost]) -> str:
    inspector = Inspector([open_capture(io.BytesIO(pcap(conversation(sent, 5552))), name="x")], Options(show_secrets=True, detail=True))
    return "".join(message.raw["frame"].hex() for message in inspector.records() if getattr(message, "raw", None))  # type: ignore[union-attr]


@pytest.mark.parametrize("key", [0x13, 0x0813, 0x0014, 0x0015])
def test_batches_do_not_change_what_is_hidden(key: int) -> None:
    sent = changed(changed(list(PLAIN.sent), AUTHENTICATE, 4, "H", key), AUTHENTICATE, 0, "I", 70)
    for pieces in (1, 5, 1000):
        cut = [(side, data[at : at + pieces]) for side, data in sent for at in range(0, len(data), pieces)]  # type: ignore[arg-type, index]
        packets = conversation(cut, 5552)
        assert said(packets, 1) == said(packets, 7) == said(packets)


def test_an_answer_that_takes_in_what_follows_it_is_hidden() -> None:
    """What the server sends back to a login belongs to it."""
    login = rabbitmq("SCRAM-SHA-256")
    sent = [(side, bytearray(data)) for side, data in login.sent]
    answer = sent[3][1]
    answer[0], answer[15] = 1, 0xF0  # its size, and how many mechanisms it names
    packets = conversation([(side, bytes(data)) for side, data in sent], login.port)
    assert found(SECRET, texts(packets, full=True)) == []
    assert "SaslHandshake" in texts(packets)["details"]


# Damage that looks like the end of a handshake


def renamed(data: bytes | int, key: int) -> bytes:
    assert isinstance(data, bytes)
    return data[:4] + key.to_bytes(2, "big") + data[6:]


def test_a_tune_that_comes_too_early_does_not_end_the_protection() -> None:
    """Of the server: it has answered what comes before SaslAuthenticate, and that was damaged."""
    tune = stream_frame("Tune", struct.pack(">II", 1, 1))
    opened = (SERVER, renamed(PLAIN.sent[3][1], 0x8015))
    login = changed(list(PLAIN.sent), AUTHENTICATE, 4, "H", 0x0002)[AUTHENTICATE:]
    for early in (
        [*PLAIN.sent[:3], (SERVER, tune)],
        [*PLAIN.sent[:4], (SERVER, tune)],
        [*PLAIN.sent[:3], opened],
        [*PLAIN.sent[:2], (SERVER, tune), PLAIN.sent[2]],
    ):
        assert found(SECRET, texts(conversation([*early, *login], 5552))) == []
        assert messages([*early, *login])[-2]["fields"]["stream"] == "orders"


def test_a_tune_of_the_client_after_a_challenge_does_not_end_the_protection() -> None:
    login = rabbitmq("SCRAM-SHA-256")
    # The second round says that it is Publish, of a body that fills the frame
    publish = stream_frame("Create", b"\x01" + struct.pack(">iQI", 1, 1, len(SECRET)), SECRET)
    sent = [*login.sent[:6], (CLIENT, stream_frame("Tune", bytes(8))), (CLIENT, renamed(publish, 2)), *login.sent[7:]]
    assert found(SECRET, texts(conversation(sent, login.port))) == []
    assert messages(sent)[-2]["fields"]["stream"] == "orders"


def test_a_handshake_that_was_captured_is_believed_where_the_beginning_was_not() -> None:
    """What only an open connection sends shows that it is open, but not behind a SaslHandshake."""
    create = stream_frame("Create", struct.pack(">I", 3), text("PLAIN"), struct.pack(">i", 1), text(b""), text(SECRET))
    for begin in (2, 3):
        sent = [*PLAIN.sent[begin:AUTHENTICATE], (CLIENT, create), *PLAIN.sent[AUTHENTICATE + 1 :]]
        leaks = found(SECRET, texts(conversation(sent, 5552, syn=False)))
        assert bool(leaks) == (begin == 3), "without the SaslHandshake nobody could tell"
        assert messages(sent, syn=False)[-2]["fields"]["stream"] == "orders"


def test_a_challenge_under_another_name_is_hidden() -> None:
    """It belongs to the login, and Close has a code and a text where it has its code and data."""
    login = rabbitmq("SCRAM-SHA-256")
    for key in (0x0016, 0x8013 ^ 0x10, 0x8015):
        sent = [*login.sent[:5], (SERVER, renamed(login.sent[5][1], key)), *login.sent[6:]]
        assert found(SECRET, texts(conversation(sent, login.port))) == []
    close = (SERVER, struct.pack(">IHHIH", 18, 0x16, 1, 1, 13) + text("reason"))
    shown = [one for one in messages([*login.sent[:5], close]) if one["name"] == "Close"]
    assert shown[0]["fields"]["closing_reason"] == "reason"


SCRAM = [pytest.param(rabbitmq("SCRAM-SHA-256", draft), 3 if draft else 5, id="draft" if draft else "current") for draft in (False, True)]
"""With where the challenge stands in it: between the client's first SaslAuthenticate and its second."""


def without(sent: Sequence[Sent | Lost], index: int, begin: int, end: int) -> list[Sent | Lost]:
    """The same with these bytes of one frame lost."""
    side, data = sent[index]
    assert isinstance(data, bytes)
    return [*sent[:index], (side, data[:begin] + data[end:]), *sent[index + 1 :]]


@pytest.mark.parametrize(("login", "at"), SCRAM)
def test_a_challenge_that_cannot_be_read_counts_as_one(login: Login, at: int) -> None:
    """Two rounds were accepted, in packets that were captured before the second, which a size that is wrong begins too late."""
    for lost in (6, 20):
        sent = without(changed(list(login.sent), at, 6, "H", 17), at - 1, -lost, 1000)
        early = [*sent[: at + 1], *sent[at + 2 : at + 5], sent[at + 1], *sent[at + 5 :]]
        assert found(SECRET, texts(conversation(early, login.port))) == [], lost


@pytest.mark.parametrize(("login", "at"), SCRAM)
def test_a_challenge_whose_header_is_lost_shows_nothing_where_one_has_its_own(login: Login, at: int) -> None:
    for begin, size in ((0, 10), (0, 12), (4, 12), (4, 13), (8, 8), (8, 11), (8, 13)):
        assert found(SECRET, texts(conversation(without(login.sent, at, begin, begin + size), login.port))) == [], (begin, size)
    behind = changed(list(login.sent), at, 0, "I", 10)
    assert found(SECRET, texts(conversation(behind, login.port))) == [], "it ends before its data"
    for size in (10, 12):
        shorter = without(login.sent, at - 2, -size, 1000)
        assert found(SECRET, texts(conversation(shorter, login.port))) == [], "the mechanisms take in a part of it"


def test_mechanisms_that_are_none_are_shown_in_one_packet_and_hidden_where_they_take_in_another() -> None:
    odd = stream_frame("SaslHandshake", struct.pack(">IHi", 2, 1, 1), text("PLAIN?"), answers=True)
    for pieces in (1, 2):
        cut = [(SERVER, odd[at : at + len(odd) // pieces]) for at in range(0, len(odd), len(odd) // pieces)]
        (said,) = [one for one in messages([*PLAIN.sent[:3], *cut]) if one["sender"] == "server" and one["name"] == "SaslHandshake"]
        assert ("mechanisms" in said["fields"], HIDDEN in said["notes"]) == (pieces == 1, pieces == 2)


@pytest.mark.parametrize(("login", "at"), SCRAM)
@pytest.mark.parametrize("syn", [True, False])
def test_a_challenge_that_is_captured_when_the_client_has_gone_on_is_hidden(login: Login, at: int, syn: bool) -> None:
    for key in (0x8003, 0x0813):
        sent = changed(list(login.sent), at, 4, "H", key)
        for known in (at - 1, 0):
            client, server = ([one for one in sent[known:] if one[0] == side] for side in (CLIENT, SERVER))
            late = [*sent[:known], *client, *server]
            assert found(SECRET, texts(conversation(late, login.port, syn=syn))) == [], (key, known)
        # All of the server, the mechanisms too; and the challenge has its code elsewhere
        moved = without(late, late.index(sent[at]), 4, 5)
        assert found(SECRET, texts(conversation(moved, login.port, syn=syn))) == [], key


@pytest.mark.parametrize("lost", [2, 3])
def test_what_takes_in_other_packets_is_no_frame_because_a_client_was_let_in(lost: int) -> None:
    """The draft calls bytes of 0 Publish. Of the server all is captured late but the acceptance, and of the client its Tune is early."""
    login = rabbitmq("SCRAM-SHA-256", True)
    packets = conversation(without(login.sent, 4, 0, lost), login.port, syn=False)
    packets = [packets[index] for index in (5, 6, 0, 1, 7, 2, 3, 8, 9, 4, 10, 11)]
    packets = [one._replace(time_ns=START_NS + number) for number, one in enumerate(packets)]
    assert found(SECRET, texts(packets)) == []


@pytest.mark.parametrize("mechanism", ["PLAIN", "AMQPLAIN"])
def test_a_renewal_is_hidden_where_bytes_lost_before_it_have_moved_the_frames(mechanism: str) -> None:
    """In the first login, behind which no frame begins as one; or in what announces the second, of the client alone."""
    login = rabbitmq(mechanism)
    renewed = [*login.sent, *login.sent[2:6], *login.sent[-2:]]
    first = without(renewed, AUTHENTICATE, -20, -8)
    alone = [one for one in without(renewed, len(login.sent), 4, 5) if one[0] == CLIENT]
    for sent in (first, alone):
        assert found(SECRET, texts(conversation(sent, login.port))) == []


def test_a_login_that_is_captured_behind_answers_to_what_follows_it_is_hidden() -> None:
    """Bytes of the server are missing, and what only an open connection sends would show that this one is."""
    sent = changed(changed(list(PLAIN.sent), AUTHENTICATE, 4, "H", 0x03E7), AUTHENTICATE, 0, "I", 245)
    packets = conversation(without(without(sent, AUTHENTICATE, 12, 16), 1, 14, 1000)[1:], 5552, syn=False)
    # SaslHandshake and its answer, that to SaslAuthenticate, Tune, what is answered later, a request; then the login
    packets = [packets[index] for index in (0, 1, 2, 4, 5, 8, 10, 9, 3, 6, 7)]
    packets = [one._replace(time_ns=START_NS + number) for number, one in enumerate(packets)]
    assert found(SECRET, texts(packets)) == []


@pytest.mark.parametrize(("frame", "may"), [("0005 50", True), ("0005", False), ("0105 50", False), ("0015 50", False), ("0014 50", True)])
def test_one_character_of_a_mechanism_may_be_a_login(frame: str, may: bool) -> None:
    data = bytes(12) + bytes.fromhex(frame)
    assert may_be_login(data + b"PLAIN", 0, len(data)) == may


@pytest.mark.parametrize("syn", [True, False])
def test_a_login_that_is_never_captured_is_not_waited_for(syn: bool) -> None:
    """Of a server alone every frame would be looked at closely, or every one behind credentials that are renewed."""
    guard = SaslRedaction(syn, 2, False)

    def hear(name: str, accepts: bool = False) -> HandshakePlace:
        guard.on_server_frame(SeenFrame(name, True, True, False, 1, False, 1), accepts)
        return guard.place

    for _ in range(2):
        hear("SaslHandshake")
        assert hear("SaslAuthenticate", True) is HandshakePlace.LEAVING
        for _ in range(MAX_WAIT_FRAMES):
            assert hear("Deliver") is HandshakePlace.LEAVING
        for _ in range(4):
            hear("Deliver")
        assert hear("Deliver") is HandshakePlace.OUTSIDE


@pytest.mark.parametrize(("began", "place"), [(6, HandshakePlace.LEAVING), (7, HandshakePlace.OUTSIDE)])
def test_what_begins_with_the_packet_that_lets_a_client_in_stands_outside(began: int, place: HandshakePlace) -> None:
    guard = SaslRedaction(True, 2, False)
    guard.begin()
    guard.on_login(True)
    assert guard.on_server_frame(SeenFrame("SaslAuthenticate", True, True, False, 5, False, 7), True)
    guard.shows(SeenFrame("Create", True, True, False, began, False, 8), False, False)
    assert guard.place is place
