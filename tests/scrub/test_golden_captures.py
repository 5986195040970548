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

import dissect
from dissect.capture.files import open_capture
from dissect.errors import CaptureError
from dissect.model import Message, Options, Record
from dissect.scrub.run import Scrubbed, Wanted, scrub
from dissect.scrub.search import LEAST, first

GOLDEN = Path(__file__).parents[2] / "captures" / "golden"
SEALED = GOLDEN / "rabbitmq-stream" / "tls_keys_310.pcapng"
"""TLS with its keys, which do not stay."""

CAPTURES = sorted(path for path in GOLDEN.rglob("*.pcap*") if path != SEALED)
EVERYTHING = Wanted(True, True, True)

PACKED = ("empty_frames_lz4", "five_connections", "lz4", "lz4_fragmented", "lz4_snap120", "multi_algo", "stream_lz4", "xor_then_frag")
"""Captures with compressed frames, which are overwritten as a whole: only where they are stays."""


def records(source: Any, **options: Any) -> list[Record]:
    found: list[Record] = []
    with contextlib.suppress(CaptureError):
        found.extend(dissect.read(source, **options))
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


def scrubbed(path: Path, tmp_path: Path, wanted: Wanted) -> tuple[Path, Scrubbed]:
    target = tmp_path / f"out{''.join(one for one in path.suffixes if one in ('.pcap', '.pcapng'))}"
    return target, scrub(str(path), target, wanted, Options())


TELLING = [path for number, path in enumerate(CAPTURES) if not number % 5 or path.name.startswith(("sasl", "wrong", "java-auth"))]


@pytest.mark.parametrize(
    ("path", "wanted"),
    [*((path, EVERYTHING) for path in CAPTURES), *((path, Wanted()) for path in TELLING)],
    ids=lambda one: f"{one.parent.name}/{one.name}" if isinstance(one, Path) else "everything" if one.anything else "secrets",
)
def test_the_messages_stay(path: Path, wanted: Wanted, tmp_path: Path) -> None:
    target, done = scrubbed(path, tmp_path, wanted)
    before, after = records(str(path)), records(str(target))
    packed = wanted.payloads and path.name.split(".")[0] in PACKED
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
            assert first(data, [secret]) is None
    if wanted.anything and not packed:
        assert bodies(after).isdisjoint(bodies(before))


def sums(found: list[Record]) -> Counter[str]:
    """Wrong checksums that are told, by message."""
    return Counter(
        f"{one.conversation} {one.position} {one.src}"
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


@needs_tshark
@pytest.mark.parametrize("path", CAPTURES[::6], ids=lambda path: f"{path.parent.name}/{path.name}")
def test_tshark_finds_no_bad_checksum_that_was_not_bad_before(path: Path, tmp_path: Path) -> None:
    target, _ = scrubbed(path, tmp_path, EVERYTHING)
    assert set(bad_checksums(target)) <= set(bad_checksums(path))


def test_scrubbing_twice_changes_nothing_more(tmp_path: Path) -> None:
    path = GOLDEN / "rabbitmq-stream" / "rstream_offsets_405.pcap"
    once, _ = scrubbed(path, tmp_path, Wanted(payloads=True))
    data = once.read_bytes()
    twice = tmp_path / "twice.pcap"
    scrub(io.BytesIO(data), twice, Wanted(payloads=True), Options(), "once")
    assert twice.read_bytes() == data


def test_keys_of_tls_go_and_what_they_opened_is_not_read(tmp_path: Path) -> None:
    target, done = scrubbed(SEALED, tmp_path, Wanted())
    assert records(str(SEALED))
    assert records(str(target)) == []
    assert b"TRAFFIC_SECRET" not in target.read_bytes()
    assert done.unread == 8
