"""Every capture of the repository, scrubbed of everything and of secrets alone: the same messages, no secret, no bad checksum."""

from __future__ import annotations

import contextlib
import io
import shutil
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import streamdump
from streamdump.capture.files import open_capture
from streamdump.errors import CaptureError
from streamdump.inspector import Inspector
from streamdump.model import ConversationRow, Message, Options, Record
from streamdump.scrub.run import ScrubOptions, ScrubResult, scrub
from streamdump.scrub.search import LEAST, SecretSearch, pieces
from tests.support.captures import GOLDEN, capture_name, every_family
from tests.support.rewrite import packets as packets_of
from tests.support.rewrite import tcp_offset
from tests.tls.peers import Wire, talk

SEALED = GOLDEN / "rabbitmq-stream" / "tls_keys_310.pcapng"
"""TLS with its keys, which do not stay."""

CAPTURES = sorted(path for path in GOLDEN.rglob("*.pcap*") if path != SEALED)
EVERYTHING = ScrubOptions(True, True, True)

PACKED = (
    "empty_frames_lz4",
    "five_connections",
    "lz4",
    "lz4_fragmented",
    "lz4_snap120",
    "multi_algo",
    "stream_lz4",
    "xor_then_frag",
    *(f"scylla_v3_{name}" for name in ("dictionary", "lost", "lz4", "midstream", "stream", "zstd")),
)
"""Captures with compressed frames, which are overwritten as a whole: only where they are stays."""
CHANGED = ("replica-damaged", "newer_release_made")
"""Captures in which a body that did not fit its layout, or a response that pairs by what it holds, reads differently once overwritten."""

UNKNOWN = ("scylla_v3_midstream",)
"""Captures without a negotiation that are known by what is in their compressed frames."""


def records(source: Any, **options: Any) -> list[Record]:
    found: list[Record] = []
    with contextlib.suppress(CaptureError):
        found.extend(streamdump.read(source, **options))
    return found


def said(found: list[Record], packed: bool) -> list[tuple[Any, ...]]:
    """What must stay of the messages."""
    return [
        (one.conversation, one.sender, one.packets, one.position, one.size)
        + (() if packed else (one.name, one.kind, one.outcome, one.fault is None))
        for one in found
        if isinstance(one, Message)
    ]


def secrets_of(path: Path) -> dict[str, bytes]:
    """What is hidden, by message and field: found by comparing what is shown with and without secrets."""
    found: dict[str, bytes] = {}

    def compare(hidden: Any, plain: Any, place: str) -> None:
        if isinstance(hidden, dict):
            for key in hidden:
                compare(hidden[key], plain.get(key), f"{place}.{key}")
        elif isinstance(hidden, list):
            for index, (one, other) in enumerate(zip(hidden, plain, strict=True)):
                compare(one, other, f"{place}[{index}]")
        elif isinstance(hidden, str) and hidden.startswith("<redacted ") and plain is not None:
            found[place] = plain if isinstance(plain, bytes) else str(plain).encode()

    hidden = [one for one in records(str(path)) if isinstance(one, Message)]
    plain = [one for one in records(str(path), show_secrets=True, bytes_as="raw") if isinstance(one, Message)]
    for one, other in zip(hidden, plain, strict=True):
        compare(one.fields, other.fields, f"{one.conversation} {one.src} {one.position}")
    return found


def scrubbed(path: Path, tmp_path: Path, wanted: ScrubOptions) -> tuple[Path, ScrubResult]:
    target = tmp_path / f"out{''.join(one for one in path.suffixes if one in ('.pcap', '.pcapng'))}"
    return target, scrub(str(path), target, wanted, Options())


TELLING = [path for number, path in enumerate(CAPTURES) if not number % 5 or path.name.startswith(("sasl", "wrong", "java-auth"))]


@pytest.mark.sweep
@pytest.mark.parametrize("wanted", [EVERYTHING, ScrubOptions()], ids=["everything", "secrets"])
@every_family(CAPTURES)
def test_the_messages_stay(paths: list[Path], subtests: pytest.Subtests, wanted: ScrubOptions, tmp_path: Path) -> None:
    for path in paths if wanted.anything else [path for path in paths if path in TELLING]:
        with subtests.test(capture_name(path)):
            target, done = scrubbed(path, tmp_path, wanted)
            before, after = records(str(path)), records(str(target))
            packed = wanted.payloads and path.name.split(".")[0] in PACKED
            if not (packed and path.name.split(".")[0] in UNKNOWN) and path.name.split(".")[0] not in CHANGED:
                assert said(after, packed) == said(before, packed)
            assert (done.packed > 0 and not done.parts["key"]) or not packed
            assert done.messages == sum(isinstance(one, Message) for one in before)
            # sums that were right are right
            assert sums(after) <= sums(before)
            # the format is that of the input
            assert open_capture(str(target)).format == open_capture(str(path)).format
            data = target.read_bytes()
            shown = {value for one in after if isinstance(one, Message) for value in texts(one.fields)}
            now = secrets_of(target) if not wanted.addresses else {}
            for place, secret in secrets_of(path).items():
                instead = now.get(place, bytes(len(secret)))
                assert len(secret) == len(instead)
                secret = secret.rpartition(b"\0")[2]
                assert secret != instead.rpartition(b"\0")[2] or not secret
                if len(secret) >= LEAST and secret.decode("latin-1") not in shown:
                    assert secret not in data
                    assert not list(SecretSearch(pieces(secret)).everywhere(data))
            if wanted.anything and not packed:
                assert bodies(after).isdisjoint(bodies(before))


def sums(found: list[Record]) -> Counter[str]:
    """Wrong checksums that are told, by message."""
    return Counter(
        f"{one.conversation} {one.position} {one.sender}"
        for one in found
        if isinstance(one, Message) and any("checksum" in note and " computed " in f"{note} computed " for note in one.notes)
    )


def texts(value: Any) -> set[str]:
    """Every text in some fields."""
    if isinstance(value, dict):
        return {text for one in value.values() for text in texts(one)}
    if isinstance(value, list):
        return {text for one in value for text in texts(one)}
    return {value} if isinstance(value, str) else set()


def bodies(found: list[Record]) -> set[str]:
    """Bodies of some length, in hex; not those that are hidden."""

    def inside(value: Any) -> set[str]:
        if isinstance(value, list):
            return {text for one in value for text in inside(one)}
        if not isinstance(value, dict):
            return set()
        own = {one for key, one in value.items() if key in ("payload", "body") and isinstance(one, str) and len(set(one)) > 2}
        return own | {text for one in value.values() for text in inside(one)}

    return {text for one in found if isinstance(one, Message) for text in inside(one.fields) if len(text) >= 16 and text[0] != "<"}


needs_tshark = pytest.mark.skipif(shutil.which("tshark") is None, reason="tshark is not installed")


def bad_checksums(path: Path) -> list[str]:
    """The packets with a bad IP or TCP checksum, as tshark sees them."""
    argv = [
        "tshark",
        "-n",
        "-r",
        str(path),
        "-o",
        "tcp.check_checksum:TRUE",
        "-o",
        "ip.check_checksum:TRUE",
        "-o",
        "udp.check_checksum:TRUE",
    ]
    argv += ["-T", "fields", "-e", "frame.number", "-Y", "tcp.checksum.status == 0 || ip.checksum.status == 0 || udp.checksum.status == 0"]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False).stdout.split()


@pytest.mark.witness
@needs_tshark
@every_family(CAPTURES[::6])
def test_tshark_finds_no_bad_checksum_that_was_not_bad_before(paths: list[Path], subtests: pytest.Subtests, tmp_path: Path) -> None:
    for path in paths:
        with subtests.test(capture_name(path)):
            target, _ = scrubbed(path, tmp_path, EVERYTHING)
            bad = bad_checksums(target)
            assert not bad or set(bad) <= set(bad_checksums(path))


def test_scrubbing_twice_changes_nothing_more(tmp_path: Path) -> None:
    path = GOLDEN / "rabbitmq-stream" / "rstream_offsets_405.pcap"
    once, _ = scrubbed(path, tmp_path, ScrubOptions(payloads=True))
    data = once.read_bytes()
    twice = tmp_path / "twice.pcap"
    scrub(io.BytesIO(data), twice, ScrubOptions(payloads=True), Options(), "once")
    assert twice.read_bytes() == data


def test_keys_of_tls_go_and_what_they_opened_is_not_read(tmp_path: Path) -> None:
    target, done = scrubbed(SEALED, tmp_path, ScrubOptions())
    assert records(str(SEALED))
    assert records(str(target)) == []
    assert b"TRAFFIC_SECRET" not in target.read_bytes()
    assert (done.sealed, done.unread) == (8, 0)
    # TLS itself stays as it is
    assert said(records(str(target), keylog=(str(SEALED),)), False) == said(records(str(SEALED)), False)


@pytest.mark.parametrize(
    "wanted", [ScrubOptions(payloads=True), ScrubOptions(names=True), ScrubOptions(addresses=True), EVERYTHING], ids=str
)
def test_tls_is_still_told_as_tls(wanted: ScrubOptions, tmp_path: Path) -> None:
    bare, _ = scrubbed(SEALED, tmp_path, ScrubOptions())
    before = rows(bare)
    target, done = scrubbed(SEALED, tmp_path, wanted)
    after = rows(target)
    assert [row.name for row in after] == ["TLS"] * 8
    changing = ("tls_server_name", "tls_certificate", "tls_troubles")
    hidden = wanted.names or wanted.addresses
    for one, other in zip(before, after, strict=True):
        assert {key: value for key, value in one.facts.items() if key not in changing} == {
            key: value for key, value in other.facts.items() if key not in changing
        }
        assert (one.facts == other.facts) != hidden
        if hidden:
            assert other.facts["tls_server_name"] == "NAME----1"
            assert other.facts.get("tls_certificate") == ("cannot be read" if "tls_certificate" in one.facts else None)
    data = target.read_bytes()
    assert (b"localhost" in data) == (b"broker.example" in data) == (not hidden)
    assert done.sealed == 8
    # what is sealed is there for those who have the keys, or it is gone
    found = [one for one in records(str(target), keylog=(str(SEALED),)) if isinstance(one, Message)]
    original = [one for one in records(str(SEALED)) if isinstance(one, Message)]
    assert [one.name for one in found] == ([] if wanted.payloads else [one.name for one in original])


@pytest.mark.parametrize("version", ["1.2", "1.3"])
@pytest.mark.parametrize("size", [1, 100, 1448])
@pytest.mark.parametrize("losses", [3, pytest.param(12, marks=pytest.mark.sweep)])
def test_whatever_of_tls_is_lost_nothing_sealed_and_no_name_is_left(losses: int, size: int, version: str, tmp_path: Path) -> None:
    one = talk([(0, b"first words" * 9), (1, b"an answer" * 30), (0, b"more" * 50)], version)
    wire = Wire()
    for side, data in one.sent:
        for at in range(0, len(data), size):
            wire.send([(side, data[at : at + size])])
    wire.end()
    sent = [b"".join(data for side, data in one.sent if side == which) for which in (0, 1)]
    hosts = b"broker.example"
    sealed = {data[at : at + 12] for data in sent for at in spans_of_data(data)}
    assert sealed
    assert any(hosts in data for data in sent)
    packets = len(wire.packets)
    for lost in [[], *([number] for number in range(4, packets, max(1, packets // losses)))]:
        source, target = tmp_path / "in.pcap", tmp_path / "out.pcap"
        source.write_bytes(wire.capture(lost))
        scrub(str(source), target, EVERYTHING, Options())
        joined = segments(target)
        assert hosts not in joined
        assert not any(piece in joined for piece in sealed)
        assert lost or [row.name for row in rows(target)] == ["TLS"]


def rows(path: Path) -> list[ConversationRow]:
    inspector = Inspector([open_capture(str(path))], Options())
    for _ in inspector.batches():
        pass
    return inspector.rows()


def spans_of_data(stream: bytes) -> list[int]:
    """Where there are twelve bytes of data that is sealed."""
    found, at = [], 0
    while at + 5 <= len(stream):
        size = int.from_bytes(stream[at + 3 : at + 5], "big")
        if stream[at] == 23:
            found += range(at + 5, at + 5 + size - 12)
        at += 5 + size
    return found


def segments(path: Path) -> bytes:
    """What both sides said, one after the other, as far as it was captured."""
    found = packets_of(path)
    said: dict[bytes, dict[int, bytes]] = {}
    for packet in found:
        at = tcp_offset(packet)
        assert at is not None
        payload = packet.raw[at + (packet.raw[at + 12] >> 4) * 4 :]
        said.setdefault(packet.raw[at : at + 2], {})[int.from_bytes(packet.raw[at + 4 : at + 8], "big")] = payload
    return b"|".join(b"".join(payloads[seq] for seq in sorted(payloads)) for payloads in said.values())
