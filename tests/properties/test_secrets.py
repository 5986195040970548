"""A planted secret is never shown, in no way of showing a capture, whatever happened to the frame that holds it or to those around it.

Every bit of a handshake is flipped, by turns where that takes too long (`HYPOTHESIS_PROFILE=large`: all of them, and 125 times as much
damage of other kinds).
"""

from __future__ import annotations

import io
import os
import random
from collections.abc import Iterator

import msgspec
import pytest

from streamdump.capture.files import open_capture
from streamdump.inspector import Inspector
from streamdump.model import Message, Options
from tests.support.frames import pcap
from tests.support.logins import IGGY, MEWBASE, RABBITMQ, SECRET, USER, Login, damaged, flipped
from tests.support.secrets import Lost, Sent, conversation, found, texts

LARGE = os.environ.get("HYPOTHESIS_PROFILE") == "large"
EVERY = (*RABBITMQ, *IGGY, *MEWBASE)
DAMAGED = 6000 if LARGE else 48
"""Damaged captures of each login of RabbitMQ Streams; of others a quarter."""


def ids(login: Login) -> str:
    return f"{login.protocol} {login.name}"


@pytest.mark.parametrize("login", EVERY, ids=ids)
def test_a_sound_login_shows_no_secret(login: Login) -> None:
    said = texts(conversation(login.sent, login.port), full=True)
    assert found(SECRET, said) == []
    assert f'"protocol":"{login.protocol}"' in said["json"]
    assert '"fault":{' not in said["json"]


@pytest.mark.parametrize("login", [RABBITMQ[0], RABBITMQ[4], IGGY[0], IGGY[-1], MEWBASE[0]], ids=ids)
@pytest.mark.parametrize(("bytes_as", "detail"), [("hex", False), ("base64", False), ("text", False), ("hex", True)])
def test_a_secret_that_is_shown_is_found(login: Login, bytes_as: str, detail: bool) -> None:
    """The tests here would fail."""
    inspector = Inspector(
        [open_capture(io.BytesIO(pcap(conversation(login.sent, login.port))), name="x")],
        Options(bytes_as=bytes_as, detail=detail, show_secrets=True),  # type: ignore[arg-type]
    )
    records = list(inspector.records())
    if detail:
        from streamdump.render.hexdump import hexdump

        said = {"details": "\n".join(line for record in records if hasattr(record, "raw") for line in hexdump(record, True))}
    else:
        said = {f"json {bytes_as}": msgspec.json.Encoder().encode_lines(records).decode()}
    assert found(SECRET, said)


def bits(login: Login) -> Iterator[tuple[int, int]]:
    """Frames and bits of them: of one login all of the frame with the secret, of others those that say what a frame is and where it ends;
    and some of all others."""
    for index, (_, data) in enumerate(login.sent):
        size = len(data) * 8
        if LARGE or (login is RABBITMQ[0] and SECRET in data):
            yield from ((index, bit) for bit in range(size))
            continue
        rabbitmq = login.protocol.startswith("rabbitmq")
        telling = range(EVERY.index(login) % 4, 24 * 8 if SECRET in data and rabbitmq else 0, 4)
        step = 59 if login.protocol == "mewbase" else 11 if login is RABBITMQ[0] else 197
        yield from ((index, bit) for bit in sorted({*telling, *range(index % step, size, step)}))


@pytest.mark.sweep
@pytest.mark.parametrize("login", EVERY, ids=ids)
def test_a_flipped_bit_shows_no_secret(login: Login) -> None:
    for index, bit in bits(login):
        packets = conversation(flipped(login, index, bit), login.port)
        forced = login.forced() if bit % 3 == 0 else ()
        assert found(SECRET, texts(packets, full=bit % 61 == 0, decode_as=forced)) == [], (index, bit, forced)


# Damage that makes a sound frame of another command of a token alone cannot be told from one
@pytest.mark.sweep
@pytest.mark.parametrize("login", EVERY, ids=ids)
def test_damage_shows_no_secret(login: Login) -> None:
    rabbitmq = login.protocol.startswith("rabbitmq")
    for seed in range(DAMAGED if rabbitmq else DAMAGED // 4):
        chance = random.Random(f"{login.name} {seed}")
        packets = damaged(chance, login, 4 if rabbitmq else 2)
        forced = ((login.port, login.protocol, login.layout), (9999, login.protocol, login.layout)) if chance.random() < 0.4 else ()
        assert found(SECRET, texts(packets, full=seed % 10 == 0, decode_as=forced)) == [], (seed, forced)


@pytest.mark.parametrize("login", EVERY, ids=ids)
def test_what_is_hidden_does_not_depend_on_batches(login: Login) -> None:
    for seed in range(3):
        capture = pcap(damaged(random.Random(f"{login.name} {seed}"), login, 2))
        said = []
        for rows in (1, 7, None):
            inspector = Inspector([open_capture(io.BytesIO(capture), name="x")], Options(exchanges=True), rows)
            said.append(msgspec.json.Encoder().encode_lines(list(inspector.records())))
        assert said[0] == said[1] == said[2], seed


@pytest.mark.parametrize("login", RABBITMQ, ids=ids)
def test_details_hide_what_is_hidden_without_them(login: Login) -> None:
    """One is read frame by frame, the other by the short way where there is one."""
    for seed in range(36):
        capture = pcap(damaged(random.Random(f"{login.name} {seed}"), login, 2))
        said = []
        for detail in (False, True):
            inspector = Inspector([open_capture(io.BytesIO(capture), name="x")], Options(detail=detail))
            records = list(inspector.records())
            for record in records:
                if isinstance(record, Message):
                    record.raw = record.spans = None
            said.append(msgspec.json.Encoder().encode_lines(records))
        assert said[0] == said[1], seed


def test_what_damage_moves_into_other_fields_of_iggy_is_hidden() -> None:
    """By bytes that were lost before it, or by another command's code."""
    by_name = {f"{login.name}": login for login in IGGY}
    create, enter, token = (by_name[name] for name in ("create_user L0", "login_user L0", "login_with_personal_access_token V4"))
    given = by_name["create_personal_access_token V2"]
    # The name of the user is lost, and the password is in its place
    shorter = create.sent[2][1][:8] + create.sent[2][1][14:]
    # A code that says delete_user, whose first field is an identifier of a kind that nobody knows, and the rest is lost
    renamed = b"\x43" + enter.sent[2][1][1:4] + b"\x22" + enter.sent[2][1][5:]
    # Bytes of a header of 256 are lost, and those of the body that stand in their place are padding
    moved = token.sent[2][1][:220] + token.sent[2][1][228:]
    # What stands before a token says that results of commands do, of which one is there and a part of another
    early, listed = given.sent[3][1][:256] + given.sent[3][1][257:], given.sent[3][1][:256] + b"\1" + given.sent[3][1][257:]
    # A size that takes in a byte of 0: the token is a name, and its password is empty
    register = by_name["login_register_with_pat V4"]
    longer = register.sent[2][1][:48] + bytes([register.sent[2][1][48] + 1]) + register.sent[2][1][49:]
    cases = (
        (create, 2, shorter, 0),
        (enter, 2, renamed, 0),
        (token, 2, moved, 8),
        (given, 3, early, 1),
        (given, 3, listed, 0),
        (register, 2, longer, 0),
    )
    for login, index, data, lost in cases:
        side = login.sent[index][0]
        sent: list[Sent | Lost] = [*login.sent[:index], (side, data), Lost(side, lost), *login.sent[index + 1 :]]
        packets = conversation(sent, login.port, syn=login is not enter)
        for forced in ((), login.forced()):
            assert found(SECRET, texts(packets, decode_as=forced)) == [], (login.name, index, forced)


def test_the_user_is_named() -> None:
    for login in EVERY:
        shown = login.name.split()[0] in ("PLAIN", "AMQPLAIN") or ("authInfo" not in login.name and "user" in login.name)
        if login.protocol == "iggy":
            shown = "login_user" in login.name or login.name.startswith("login_register V") or "with a bind secret" in login.name
        said = texts(conversation(login.sent, login.port))
        assert (USER.decode() in said["details"]) == (shown or login.name.startswith("binary")), login.name
