"""What comes out of TLS against tshark with the same key log: it follows the inner byte streams by its own code."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from streamdump.model import SideData
from tests.support.peers import GOLDEN, said
from tests.tls.peers import CLIENT, SERVER, OpenSSL, Said, Wire, talk
from tests.tls.reading import opened, read, text

pytestmark = [pytest.mark.witness, pytest.mark.skipif(shutil.which("tshark") is None, reason="tshark is not installed")]

CASES = [
    ("rabbitmq-stream/js_publish_consume_405.pcap", "1.2", ""),
    ("rabbitmq-stream/publish_small_405.pcap", "1.3", ""),
    ("iggy/py090-basic.pcap", "1.3", ""),
    ("iggy/py080-basic.pcap", "1.2", "ECDHE-RSA-CHACHA20-POLY1305"),
    ("seastar-rpc/big_mtu1500.pcap", "1.3", ""),
    ("seastar-rpc/basic.pcap", "1.2", "AES128-SHA"),
    ("mewbase/java-publish.pcap", "1.2", "ECDHE-ECDSA-AES256-SHA384"),
    ("mewbase/cut-tiny-segments.pcap", "1.2", "AES256-CCM8"),
]


def followed(path: Path, *options: str) -> tuple[bytes, bytes]:
    """What tshark says that the client and the server of the first conversation said inside of TLS."""
    command = ["tshark", "-r", str(path), *options, "-d", "tcp.port==5551,tls", "-q", "-z", "follow,tls,raw,0"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    (first,) = [line.split(": ", 1)[1] for line in lines if line.startswith("Node 0")]
    body = [line for line in lines if not line.startswith(("=", "Follow", "Filter", "Node"))]
    one = "".join(line for line in body if not line.startswith("\t"))
    two = "".join(line.strip() for line in body if line.startswith("\t"))
    found = bytes.fromhex(one), bytes.fromhex(two)
    return found if first == "192.0.2.1:40000" else found[::-1]


def check(sent: list[Said], keys: bytes, folder: Path) -> None:
    capture = Wire().send(sent).end().capture()
    sides, _ = opened(capture, keys)
    path, log = folder / "capture.pcap", folder / "keys.log"
    path.write_bytes(capture)
    log.write_bytes(keys)
    assert (text(sides[CLIENT]), text(sides[SERVER])) == followed(path, "-o", f"tls.keylog_file:{log}")


@pytest.mark.parametrize(("name", "version", "suite"), CASES)
def test_the_same_bytes_as_tshark(name: str, version: str, suite: str, tmp_path: Path) -> None:
    one = talk(said(GOLDEN / name), version, suite)
    check(one.sent, one.keys, tmp_path)


@pytest.mark.witness
@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_key_updates_and_renegotiation(tmp_path: Path) -> None:
    with OpenSSL(["-tls1_3", "-rev"]) as openssl:
        check(*openssl.talk([b"one\n", b"K\n", b"two\n", b"k\n", b"three\n"]), tmp_path)
    with OpenSSL(["-tls1_2", "-client_renegotiation", "-rev"]) as openssl:
        check(*openssl.talk([b"one\n", b"R\n", b"two\n"]), tmp_path)


def test_each_record_is_where_tshark_sees_it(tmp_path: Path) -> None:
    """A record is dated by the packet in which tshark decrypts it."""
    one = talk(said(GOLDEN / "iggy/py090-basic.pcap"))
    capture = Wire().send(one.sent, 700).end().capture()
    sides, _ = opened(capture, one.keys)
    ours = sorted(item.mark[1] for side in sides for item in side if isinstance(item, SideData))
    path, log = tmp_path / "capture.pcap", tmp_path / "keys.log"
    path.write_bytes(capture)
    log.write_bytes(one.keys)
    command = ["tshark", "-r", str(path), "-o", f"tls.keylog_file:{log}", "-d", "tcp.port==5551,tls", "-T", "fields", "-e", "frame.number"]
    command += ["-e", "tls.app_data", "-Y", "tls.app_data", "-E", "separator=,"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    theirs = {int(line.split(",")[0]) for line in shown}
    assert set(ours) <= theirs


def test_secrets_that_were_embedded_are_read_by_tshark(tmp_path: Path) -> None:
    """What `--embed-keys` writes: the secrets as a block before the packets, without any key log."""
    from streamdump.capture.files import open_capture
    from streamdump.capture.write import PcapngWriter
    from streamdump.tls.keys import KeyLog

    one = talk(said(GOLDEN / "rabbitmq-stream/js_publish_consume_405.pcap"))
    capture = Wire().send(one.sent).end().capture()
    source, path = tmp_path / "plain.pcap", tmp_path / "written.pcapng"
    source.write_bytes(capture)
    log = KeyLog()
    log.add(one.keys)
    session = bytes.fromhex(next(line for line in one.keys.decode().splitlines() if line.startswith("CLIENT_TRAFFIC")).split()[1])
    writer = PcapngWriter(str(path), ["lo"], 1, 262_144)
    writer.secrets(b"".join(log.lines(session)))
    for batch in open_capture(source).batches():
        writer.write(batch)
    writer.close(0, 0, 0)
    sides, _ = opened(capture, one.keys)
    assert followed(path) == (text(sides[CLIENT]), text(sides[SERVER]))
    assert len(read(path.read_bytes()).messages) == 26
