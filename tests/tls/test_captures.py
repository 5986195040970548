"""Recorded conversations of all families, said again inside of TLS: what is read is what the plain capture says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from streamdump.model import Gap, Message
from tests.support.peers import GOLDEN, Pair, capturing, free_port, needs_capture, records, said
from tests.tls.peers import CLIENT, Said, Talk, Wire, contexts, secrets_block, talk
from tests.tls.reading import Read, meaning, once, read

FAMILIES = (
    "rabbitmq-stream/js_publish_consume_405.pcap",
    "rabbitmq-stream/publish_small_405.pcap",
    "rabbitmq-stream/draft_exchange.pcap",
    "iggy/py080-basic.pcap",
    "iggy/py090-basic.pcap",
    "iggy/v05-cli.pcap",
    "seastar-rpc/basic.pcap",
    "seastar-rpc/big_mtu1500.pcap",
    "seastar-rpc/port7000.pcap",
    "mewbase/java-publish.pcap",
    "mewbase/java-query.pcap",
    "mewbase/cut-tiny-segments.pcap",
)
ONE_EACH = FAMILIES[::3]

CIPHERS_13 = (
    "TLS_AES_128_GCM_SHA256",
    "TLS_AES_256_GCM_SHA384",
    "TLS_CHACHA20_POLY1305_SHA256",
    "TLS_AES_128_CCM_SHA256",
    "TLS_AES_128_CCM_8_SHA256",
)

UNREAD = ("ARIA", "NULL")
"""What nothing here opens: `cryptography` has no ARIA, and what is not sealed is no secret."""


def plainly(what: list[Said]) -> Read:
    """What is read of a capture without TLS, in segments as the sides wrote."""
    return read(Wire().send(what, 60_000).end().capture())


def check(what: list[Said], carried: Read) -> None:
    """The capture of TLS says what the plain one does, and no byte is missing."""
    plain = plainly(what)
    assert plain.messages
    assert meaning(carried.messages) == meaning(plain.messages)
    assert carried.gaps == plain.gaps
    row, wanted = carried.rows[0], plain.rows[0]
    assert (row.protocol, row.layout, row.candidates, row.client) == (wanted.protocol, wanted.layout, wanted.candidates, wanted.client)
    sizes = [sum(len(data) for side, data in what if side == one) for one in (0, 1)]
    assert row.facts["tls_plain_bytes"] == sizes
    assert row.facts["tls_handshake"] == "complete"


def bytes_add_up(found: Read) -> None:
    """The sizes of messages and gaps are the byte streams that came out."""
    reach = dict.fromkeys(found.rows[0].endpoints, 0)
    for one in sorted((one for one in found.records if isinstance(one, Message | Gap)), key=lambda one: (one.src, one.position)):
        if isinstance(one, Gap) and one.in_frame:
            continue
        assert one.position == reach[one.src]
        reach[one.src] += one.size or 0
    assert list(reach.values()) == found.facts.get("tls_plain_bytes", [0, 0])


@pytest.mark.parametrize("version", ["1.2", "1.3"])
@pytest.mark.parametrize("name", FAMILIES)
def test_messages_are_those_of_the_plain_capture(name: str, version: str) -> None:
    what = said(GOLDEN / name)
    one = talk(what, version)
    found = read(Wire().send(one.sent).end().capture(), one.keys)
    check(what, found)
    bytes_add_up(found)
    assert found.facts["tls"] == version


def offered() -> list[str]:
    """The cipher suites of OpenSSL for TLS 1.2 that need no secret agreed on before."""
    names = subprocess.run(["openssl", "ciphers", "ALL:COMPLEMENTOFALL:@SECLEVEL=0"], capture_output=True, text=True, check=True).stdout
    without = ("PSK", "SRP", "DSS", "TLS_")
    return [name for name in names.strip().split(":") if not any(one in name for one in without)]


try:
    OFFERED = offered()
except OSError:
    OFFERED = ["ECDHE-RSA-AES128-GCM-SHA256", "ECDHE-RSA-CHACHA20-POLY1305", "AES128-SHA", "AES256-SHA256", "ECDHE-RSA-AES256-SHA384"]


@pytest.mark.sweep
@pytest.mark.parametrize("ciphers", OFFERED)
def test_each_cipher_that_openssl_offers(ciphers: str) -> None:
    what = said(GOLDEN / FAMILIES[0])
    one = talk(what, "1.2", ciphers)
    found = once(Wire().send(one.sent).end().capture(), one.keys)
    if any(name in ciphers for name in UNREAD):
        assert found.rows[0].name == "TLS, cipher suite not supported"
        return
    check(what, found)
    assert one.ends[CLIENT].cipher()[0] == ciphers  # type: ignore[index]


@pytest.mark.parametrize("ciphers", CIPHERS_13)
def test_each_cipher_of_tls_1_3(ciphers: str, tmp_path: Path, subtests: pytest.Subtests) -> None:
    """Python's `ssl` cannot choose them, the configuration of OpenSSL can."""
    settings = tmp_path / "openssl.cnf"
    settings.write_text(f"openssl_conf = a\n[a]\nssl_conf = b\n[b]\nsystem_default = c\n[c]\nCiphersuites = {ciphers}\n")
    script = f"""
import json
from tests.support.peers import GOLDEN, said
from tests.tls.peers import talk
for name in {ONE_EACH!r}:
    one = talk(said(GOLDEN / name))
    print(json.dumps([one.ends[0].cipher()[0], [[side, data.hex()] for side, data in one.sent], one.keys.decode()]))
"""
    environment = {**os.environ, "OPENSSL_CONF": str(settings), "PYTHONPATH": str(GOLDEN.parents[1])}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment, timeout=60)
    for name, line in zip(ONE_EACH, done.stdout.splitlines(), strict=True):
        with subtests.test(name):
            chosen, sent, keys = json.loads(line)
            assert chosen == ciphers
            found = once(Wire().send([(side, bytes.fromhex(data)) for side, data in sent]).end().capture(), keys.encode())
            check(said(GOLDEN / name), found)
            assert found.facts["tls_cipher"] == ciphers


@pytest.mark.parametrize("name", ONE_EACH)
@pytest.mark.parametrize("size", [1, 13, 536])
def test_records_over_many_segments(name: str, size: int) -> None:
    what = said(GOLDEN / name)[:20]
    one = talk(what)
    check(what, once(Wire().send(one.sent, size).end().capture(), one.keys))


@pytest.mark.parametrize("version", ["1.2", "1.3"])
def test_large_records(version: str) -> None:
    """What a side writes at once goes in records of 16 KiB."""
    what = said(GOLDEN / "seastar-rpc/big_mtu1500.pcap")
    joined: list[Said] = []
    for side, data in what:
        if joined and joined[-1][0] == side:
            joined[-1] = side, joined[-1][1] + data
        else:
            joined.append((side, data))
    one = talk(joined, version)
    assert max(len(data) for _, data in one.sent) > 40_000
    found = read(Wire().send(one.sent).end().capture(), one.keys)
    assert meaning(found.messages) == meaning(plainly(what).messages)


@pytest.mark.parametrize("version", ["1.2", "1.3"])
def test_secrets_in_the_capture(version: str) -> None:
    """A Decryption Secrets Block in front of the packets does as a key log does."""
    from tests.support.frames import enhanced, interface, section

    what = said(GOLDEN / FAMILIES[0])
    one = talk(what, version)
    packets = [enhanced(packet, ticks=packet.time_ns) for packet in Wire().send(one.sent).end().packets]
    head = section() + interface(resolution=9)
    found = read(b"".join([head, secrets_block(one.keys), *packets]))
    check(what, found)
    by_log = once(b"".join([head, *packets]), one.keys)
    assert by_log.json == found.json


@pytest.mark.parametrize("version", ["1.2", "1.3"])
@pytest.mark.parametrize("place", [4, 9, 30, None])
def test_secrets_behind_the_packets_that_need_them(version: str, place: int | None) -> None:
    from tests.support.frames import enhanced, interface, section

    what = said(GOLDEN / FAMILIES[0])
    one = talk(what, version)
    blocks = [enhanced(packet, ticks=packet.time_ns) for packet in Wire().send(one.sent).end().packets]
    blocks.insert(len(blocks) if place is None else place, secrets_block(one.keys))
    found = read(section() + interface(resolution=9) + b"".join(blocks))
    check(what, found)
    assert not found.rows[0].limit_hits


def test_secrets_of_one_of_several_captures() -> None:
    from io import BytesIO

    from streamdump.capture.files import open_capture
    from streamdump.inspector import Inspector
    from tests.support.frames import enhanced, interface, section

    what = said(GOLDEN / FAMILIES[0])
    talks = [talk(what, version) for version in ("1.2", "1.3")]
    captures = []
    for index, one in enumerate(talks):
        wire = Wire(client_port=40_000 + index, start_ns=1_700_000_000_000_000_000 + index).send(one.sent).end()
        blocks = [enhanced(packet, ticks=packet.time_ns) for packet in wire.packets]
        keys = b"".join(other.keys for other in talks)
        captures.append(section() + interface(resolution=9) + b"".join([*blocks, secrets_block(keys)] if index else blocks))
    shown = []
    for rows in (1, 7, None):
        inspector = Inspector([open_capture(BytesIO(one), name="test") for one in captures], rows=rows)
        shown.append([(one.number, one.conversation, one.name) for one in inspector.records() if isinstance(one, Message)])
    assert shown[0] == shown[1] == shown[2]
    assert len(shown[0]) == 2 * len(plainly(what).messages)


def test_a_conversation_that_begins_with_the_answer() -> None:
    """No SYN was captured, and the server's hello comes before the client's: both byte streams are whole all the same."""
    what = said(GOLDEN / FAMILIES[0])
    one = talk(what)
    wire = Wire(syn=False).send(one.sent).end()
    wire.packets[0], wire.packets[1] = wire.packets[1], wire.packets[0]
    found = read(wire.capture(), one.keys)
    assert meaning(found.messages) == meaning(plainly(what).messages)
    assert found.rows[0].client == "192.0.2.1:40000"


def test_a_conversation_without_syn_that_begins_with_the_hello_is_whole() -> None:
    what = said(GOLDEN / FAMILIES[0])
    one = talk(what)
    found = read(Wire(syn=False).send(one.sent).end().capture(), one.keys)
    assert found.rows[0].facts.items() >= plainly(what).rows[0].facts.items()


# Really sent


@needs_capture
@pytest.mark.parametrize(("name", "version"), list(zip(ONE_EACH, ("1.2", "1.3", "1.3", "1.2"), strict=True)))
def test_captured_on_the_loopback_interface(name: str, version: str, tmp_path: Path) -> None:
    """Live: keys come with the packets, into a log that is followed; and again from the file that was written, with the keys in it."""
    what = said(GOLDEN / name)
    port, log, file = free_port(), tmp_path / "keys.log", tmp_path / "live.pcapng"
    options = ("-f", f"tcp port {port}", "--json", "--keylog", str(log), "-w", str(file), "--embed-keys")
    with capturing("-i", "lo", *options) as capture:
        with Pair(port) as pair:
            one = Talk(*contexts(version), log=log)
            pair.replay(one.begin().sent)
            for side, data in what:
                one.sent.clear()
                one.say(side, data)
                pair.replay(one.sent)
        code, out, err = capture.finish()
    assert code == 0, err
    live = records(out)
    plain = json.loads(b"[" + b",".join(plainly(what).json.splitlines()) + b"]")
    dropped = {"file", "time", "time_ns", "src", "dst", "conversation", "packets", "latency_ns"}

    def kept(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{key: value for key, value in one.items() if key not in dropped} for one in found if one["record"] == "message"]

    assert kept(live) == kept(plain)
    environment = {name: value for name, value in os.environ.items() if name != "SSLKEYLOGFILE"}
    again = subprocess.run(
        [sys.executable, "-m", "streamdump", "--json", str(file)], capture_output=True, text=True, check=False, env=environment
    )
    assert records(again.stdout) == live
