"""A failure in the room of TLS costs one conversation, from the record that it came with on."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from streamdump.model import Gap, Message
from streamdump.tls import manager, resync
from streamdump.tls.ciphers import _Explicit12, _Sealed13
from streamdump.tls.decryptor import TlsDecryptor
from streamdump.tls.handshake import TlsHandshake
from streamdump.tls.keys import KeyLog
from streamdump.tls.manager import TlsState
from tests.support.frames import pcap
from tests.support.peers import GOLDEN, said
from tests.support.planting import Planted, plant
from tests.tls.peers import START_NS, Wire, talk
from tests.tls.reading import BATCHES, Read, once

pytestmark = pytest.mark.usefixtures("barrier")

RABBIT = "rabbitmq-stream/js_publish_consume_405.pcap"
MAX_MESSAGE = ("tls", "tls_cipher", "tls_server_name", "tls_plain_bytes", "tls_unread", "frame_max", "heartbeat")
OPENERS = {"1.2": _Explicit12, "1.3": _Sealed13}


def two(version: str) -> tuple[bytes, bytes]:
    """A capture of a conversation inside of TLS beside a plain one, and its keys."""
    what = said(GOLDEN / RABBIT)
    one = talk(what, version)
    packets = Wire().send(one.sent).end().packets + Wire(client_port=50_000, start_ns=START_NS + 500).send(what).end().packets
    return pcap(sorted(packets, key=lambda packet: packet.time_ns), nano=True), one.keys


def in_all_batches(capture: bytes, keys: bytes) -> Read:
    runs = [once(capture, keys, rows, exchanges=True) for rows in BATCHES]
    for one in runs:
        # What is known of a handshake may be what came behind
        one.rows[0].facts = {name: fact for name, fact in one.rows[0].facts.items() if name in MAX_MESSAGE}
    assert runs[0].json == runs[1].json == runs[2].json
    for one in runs:
        assert [(report.conversation, report.number) for report in one.inspector.reports] == [
            (report.conversation, report.number) for report in runs[0].inspector.reports
        ]
    return runs[2]


def check(found: Read, before: Read) -> None:
    """Fails unless the plain conversation is as it was, and all that was decrypted of the other is in a message or a gap."""
    own, other = ([(one.src, one.position, one.size, one.name) for one in run.messages if one.conversation] for run in (found, before))
    assert own == other
    assert len(own) == 26
    assert found.rows[1].internal_error is None
    row = found.rows[0]
    assert row.internal_error is not None
    assert row.internal_error.startswith("Planted")
    (report,) = found.inspector.reports
    assert report.conversation == 0
    sizes = dict.fromkeys(row.endpoints, 0)
    for record in found.records:
        if record.conversation == 0 and isinstance(record, Message | Gap) and not getattr(record, "in_frame", False):
            sizes[record.src] += record.size or 0
    assert list(sizes.values()) == (row.facts.get("tls_plain_bytes", [0, 0]) if row.protocol is not None else [0, 0])
    messages = [msgspec.structs.replace(one, number=0, request=None) for one in before.messages if one.conversation == 0]
    kept = [msgspec.structs.replace(one, number=0, request=None) for one in found.messages if one.conversation == 0]
    assert kept == messages[: len(kept)]


@pytest.mark.parametrize("version", OPENERS)
@pytest.mark.parametrize("sealed", [0, 1, 9, 20, 24])
def test_a_record(version: str, sealed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The conversation ends with the message before the record that failed, whatever the batches are."""
    capture, keys = two(version)
    before = once(capture, keys, exchanges=True)
    opened: list[bytes] = []
    monkeypatch.setattr(OPENERS[version], "open", _noting(OPENERS[version].open, opened))
    once(capture, keys, 1)
    record = list(dict.fromkeys(opened))[sealed]
    plant(monkeypatch, OPENERS[version], "open", lambda self, data, at, end, seq: data[at:end] == record)
    found = in_all_batches(capture, keys)
    check(found, before)
    assert 0 <= len([one for one in found.messages if one.conversation == 0]) < 26


def _noting(function: Any, opened: list[bytes]) -> Any:
    def noting(self: Any, data: bytes, at: int, end: int, seq: int) -> Any:
        opened.append(data[at:end])
        return function(self, data, at, end, seq)

    return noting


PLACES: list[tuple[Any, str]] = [
    (TlsHandshake, "_offer"),
    (TlsHandshake, "_answer"),
    (TlsHandshake, "finish"),
    (TlsHandshake, "alert"),
    (TlsHandshake, "feed"),
    (TlsHandshake, "facts_so_far"),
    (KeyLog, "find"),
    (TlsDecryptor, "_read_clear"),
    (TlsDecryptor, "_read_sealed"),
    (TlsDecryptor, "_recognise"),
    (TlsDecryptor, "_read_both"),
    (TlsDecryptor, "opener"),
    (TlsDecryptor, "close"),
    (TlsState, "row"),
    (manager.TlsManager, "check_start"),
]


@pytest.mark.sweep
@pytest.mark.parametrize("version", OPENERS)
@pytest.mark.parametrize(("owner", "name"), PLACES, ids=lambda one: getattr(one, "__name__", one))
def test_any_place(version: str, owner: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    capture, keys = two(version)
    before = once(capture, keys, exchanges=True)
    plant(monkeypatch, owner, name, lambda *_: True)
    for rows in BATCHES:
        found = once(capture, keys, rows, exchanges=True)
        others = [(one.src, one.position, one.size, one.name) for one in found.messages if one.conversation]
        if name != "check_start":
            assert others == [(one.src, one.position, one.size, one.name) for one in before.messages if one.conversation]
        assert found.inspector.reports
        assert all("Planted" in report.what for report in found.inspector.reports)


def test_the_way_back(monkeypatch: pytest.MonkeyPatch) -> None:
    what = said(GOLDEN / RABBIT)
    one = talk(what)
    capture = Wire().send(one.sent).end().capture([20])
    plant(monkeypatch, resync, "_authenticate", lambda *_: True)
    found = in_all_batches(capture, one.keys)
    assert found.rows[0].internal_error is not None
    assert found.messages


def test_a_wrong_report_has_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    capture, keys = two("1.3")
    plant(monkeypatch, _Sealed13, "open", lambda *_: True)
    found = once(capture, keys)
    for line in keys.decode().splitlines():
        if not line.startswith("#"):
            assert all(line.split()[2] not in report.text("x") for report in found.inspector.reports)
    assert Planted.__name__ in found.inspector.reports[0].text("x")
