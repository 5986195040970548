"""TLS in the bulk pipeline: the same as in a plain run, and keys are where they were put and nowhere else."""

from __future__ import annotations

import gzip
import io
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest

from streamdump import snapshot
from streamdump.capture.files import open_capture
from streamdump.errors import CaptureError, ForeignState
from streamdump.inspector import Inspector
from streamdump.model import Message, Options
from streamdump.session import Session
from streamdump.spark import flows, storage
from streamdump.spark.splits import plan
from streamdump.tls.decryptor import TlsDecryptor
from streamdump.tls.keys import KeyLog
from tests.spark.here import Here, go
from tests.spark.lots import FOREVER, Lots, at_once, in_lots, packets
from tests.support.frames import Packet, enhanced, interface, pcap, section
from tests.support.peers import GOLDEN, said
from tests.tls.peers import CLIENT, OpenSSL, Wire, secrets_block, talk

CASES = (
    ("rabbitmq-stream/js_publish_consume_405.pcap", "1.3", ""),
    ("iggy/py090-basic.pcap", "1.2", ""),
    ("mewbase/java-query.pcap", "1.2", "AES128-SHA"),
    ("seastar-rpc/port7000.pcap", "1.3", ""),
)


def written(folder: Path, sent: Any, keys: bytes, lost: tuple[int, ...] = ()) -> tuple[Path, Options]:
    capture, log = folder / "tls.pcap", folder / "keys.log"
    capture.write_bytes(Wire().send(sent).end().capture(lost))
    log.write_bytes(keys)
    return capture, replace(FOREVER, keylog=(str(log),))


@pytest.mark.parametrize(("name", "version", "suite"), CASES)
@pytest.mark.parametrize("lost", [(), (14, 25)], ids=["whole", "lossy"])
def test_what_is_carried_from_lot_to_lot(name: str, version: str, suite: str, lost: tuple[int, ...], tmp_path: Path) -> None:
    one = talk(said(GOLDEN / name), version, suite)
    capture, options = written(tmp_path, one.sent, one.keys, lost)
    count = len(packets([capture]))
    cuts = list(range(1, count, max(1, count // 25)))
    expected = at_once([capture], options)
    assert len(expected["messages"]) > 5
    assert in_lots([capture], cuts, options) == expected


def test_key_updates_are_carried(tmp_path: Path) -> None:
    with OpenSSL(["-tls1_3", "-rev"]) as openssl:
        sent, keys = openssl.talk([b"one\n", b"K\n", b"two\n", b"K\n", b"K\n", b"three\n"])
    capture, options = written(tmp_path, sent, keys)
    options = replace(options, decode_as=((5551, "mewbase", None),))
    expected = at_once([capture], options)
    assert expected["gaps"]
    assert in_lots([capture], list(range(1, len(packets([capture])))), options) == expected


def test_without_keys(tmp_path: Path) -> None:
    one = talk(said(GOLDEN / CASES[0][0]))
    capture, _ = written(tmp_path, one.sent, one.keys)
    assert in_lots([capture], list(range(1, 30)), FOREVER) == at_once([capture])


def test_no_key_is_carried(tmp_path: Path) -> None:
    one = talk(said(GOLDEN / CASES[0][0]))
    capture, options = written(tmp_path, one.sent, one.keys)
    secrets = [bytes.fromhex(line.split()[-1].decode()) for line in one.keys.splitlines() if b"SECRET" in line]
    derived = bytes(32)
    for count in range(3, len(packets([capture]))):
        lots = Lots(options)
        lots.add(packets([capture])[:count])
        for _, carried in lots.carried:
            assert not any(secret in carried or secret.hex().encode() in carried for secret in secrets)
            for one in Session.restore(carried, options, KeyLog()).table.conversations:
                if one.tls.decryptor is not None:
                    assert all(flow.opener is None and flow.secret is None and not flow.openers for flow in one.tls.decryptor.flows)
    assert derived not in secrets


def test_when_the_key_log_is_gone_what_follows_is_a_gap(tmp_path: Path) -> None:
    one = talk(said(GOLDEN / CASES[0][0]))
    capture, options = written(tmp_path, one.sent, one.keys)
    lots = Lots(options)
    all_packets = packets([capture])
    lots.add(all_packets[:20])
    Path(options.keylog[0]).unlink()
    lots.add(all_packets[20:], True)
    (row,) = lots.conversations
    assert row.protocol == "rabbitmq-stream"
    assert row.facts["tls_unread"] == "keys missing"
    assert 5 < len(lots.lines["messages"]) < 20
    assert len(lots.lines["gaps"]) == 2


def test_a_damaged_state_is_told(tmp_path: Path) -> None:
    one = talk(said(GOLDEN / CASES[0][0]))
    capture, options = written(tmp_path, one.sent, one.keys)
    lots = Lots(options)
    lots.add(packets([capture])[:20])
    ((_, carried),) = lots.carried
    with pytest.raises(ForeignState):
        Session.restore(carried[:-3], options, KeyLog())
    stage = TlsDecryptor(Options(), KeyLog())
    assert type(snapshot.decode(snapshot.encode(stage), Options(), KeyLog())) is TlsDecryptor


def blocks(keys: bytes, packets: list[Packet], place: int) -> bytes:
    made = [enhanced(packet, ticks=packet.time_ns) for packet in packets]
    made.insert(place, secrets_block(keys))
    return section() + interface(resolution=9) + b"".join(made)


@pytest.mark.parametrize("place", [0, 20, 1000])
@pytest.mark.parametrize("packed", [False, True])
def test_captures_that_hold_keys_are_found(place: int, packed: bool, tmp_path: Path) -> None:
    one = talk([(CLIENT, b"x" * 1000)] * 60)
    wire = Wire().send(one.sent).end()
    data = blocks(one.keys, wire.packets, place)
    path, other = tmp_path / "tls.pcapng", tmp_path / "other.pcap"
    path.write_bytes(gzip.compress(data) if packed else data)
    other.write_bytes(pcap(wire.packets[:3], nano=True))
    for split in (8_000, 1 << 30):
        assert plan([str(other), str(path)], split).secrets == [str(path)]
    assert KeyLog([str(path)]).lines(bytes.fromhex(one.keys.split(b"\nCLIENT_T")[1].split()[1].decode()))


def test_the_log_is_read_once_by_a_process(tmp_path: Path) -> None:
    log = tmp_path / "keys.log"
    log.write_bytes(talk([]).keys)
    first = flows.key_log((str(log),))
    assert flows.key_log((str(log),)) is first
    log.write_bytes(talk([]).keys * 2)
    assert flows.key_log((str(log),)) is not first


@pytest.mark.parametrize("packed", [False, True])
def test_keys_in_a_capture_of_a_store(packed: bool, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    whole = storage.open_packets

    def counted(name: str) -> Any:
        asked.append(name)
        return whole(name)

    monkeypatch.setattr(flows.storage, "open_packets", counted)
    one, two = (talk(said(GOLDEN / name), version, suite) for name, version, suite in CASES[:2])
    wire = Wire().send(one.sent).end()
    # Its end is missing, but not what it has of keys, those of another capture too
    data = blocks(one.keys + two.keys, wire.packets, 0)[:-7]
    place = storage.folder(f"{bucket}/one.pcapng")
    place.write(gzip.compress(data) if packed else data)
    other = tmp_path / "two.pcap"
    other.write_bytes(Wire(client_port=41_000).send(two.sent).end().capture())
    log = tmp_path / "keys.log"
    log.write_bytes(one.keys + two.keys)
    readers = [open_capture(io.BytesIO(data), name="one"), open_capture(other)]
    plain = Inspector(readers, Options(keylog=(str(log),), exchanges=True))
    wanted = sum(isinstance(one, Message) for one in plain.records())
    assert wanted > 70
    flows._key_log.cache_clear()
    run = go([place.name, other], tmp_path / "out", Here(tmp_path / "scratch"), parts=3, split=20_000)
    assert run.rows["messages"] == wanted
    assert run.plan.secrets == [place.name]
    assert asked.count(place.name) == 1


def test_a_store_that_fails_is_no_reason_to_go_on_without_keys(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    one = talk([])
    place = storage.folder(f"{bucket}/one.pcapng")
    place.write(blocks(one.keys, Wire().send(one.sent).end().packets, 0))

    class Failing(io.BytesIO):
        def read(self, *_: Any) -> bytes:
            raise OSError(5, "slow down")

        read1 = read  # type: ignore[assignment]

    monkeypatch.setattr(storage, "open_input", lambda name: Failing())
    options = replace(FOREVER, keylog=(place.name,))
    with pytest.raises(CaptureError, match="slow down"):
        list(flows.dissect(iter(()), options, flows.CaptureFacts()))
    monkeypatch.undo()
    assert not list(flows.dissect(iter(()), options, flows.CaptureFacts()))
    assert flows.key_log((place.name,))
    place.remove()
    assert not list(flows.dissect(iter(()), options, flows.CaptureFacts())), "in a ring captures go"
    assert not flows.key_log((place.name,))


def test_tables(java_home: str, tmp_path: Path) -> None:
    """The command's own run, with keys in a log for one capture and in the other capture itself; and none in what it writes."""
    talks = [talk(said(GOLDEN / name), version, suite) for name, version, suite in CASES[:2]]
    captures, log, out = tmp_path / "captures", tmp_path / os.fsdecode(b"keys-\xff.log"), tmp_path / "tables"
    captures.mkdir()
    (captures / "one.pcap").write_bytes(Wire().send(talks[0].sent).end().capture())
    wire = Wire(client_port=41_000).send(talks[1].sent).end()
    (captures / "two.pcapng").write_bytes(blocks(talks[1].keys, wire.packets, 0))
    log.write_bytes(talks[0].keys)
    argv = ["pipeline", str(captures), "--out", str(out), "--keylog", str(log), "--memory", "512M"]
    environment = {**os.environ, "JAVA_HOME": java_home}
    done = subprocess.run(
        [sys.executable, "-m", "streamdump", *argv], capture_output=True, text=True, check=False, env=environment, timeout=240
    )
    assert done.returncode == 0, done.stderr
    inspector = Inspector([open_capture(one) for one in sorted(captures.iterdir())], Options(keylog=(str(log),), exchanges=True))
    wanted = sum(isinstance(one, Message) for one in inspector.records())
    assert wanted > 70
    assert pq.read_table(out / "messages").num_rows == wanted
    facts = pq.read_table(out / "conversations").column("facts").to_pylist()
    assert sorted(msgspec.json.decode(one)["tls"] for one in facts) == ["1.2", "1.3"]
    secrets = [line.split()[-1] for one in talks for line in one.keys.splitlines() if not line.startswith(b"#")]
    for path in out.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            assert not any(secret in data or bytes.fromhex(secret.decode()) in data for secret in secrets)
