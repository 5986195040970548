"""Captures of real TLS, damaged at random."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pytest

from streamdump.capture.files import open_capture
from streamdump.model import Message
from tests.fuzz.targets import counted
from tests.support.frames import Packet as Frame
from tests.support.frames import enhanced, interface, section
from tests.support.peers import GOLDEN
from tests.support.rewrite import Packet, packets, tcp_offset
from tests.tls.peers import secrets_block
from tests.tls.reading import once

CAPTURES = ("rabbitmq-stream/tls_keys_310.pcapng", "rabbitmq-stream/tls_405.pcap", "iggy/node080-tls.pcap")
CALLS, CALLS_A_BYTE = 200_000, 150


def keys(path: Path) -> bytes:
    with open_capture(path) as reader:
        for _ in reader:
            pass
        return b"".join(text for _, text in reader.secrets)


def damaged(found: list[Packet], chance: random.Random) -> list[Packet]:
    """Some payloads have bytes overwritten, or their end was not captured; some packets are lost or come again."""
    out = list(found)
    for _ in range(chance.choice([1, 2, 5, 20])):
        at = chance.randrange(len(out))
        one = out[at]
        header = tcp_offset(one)
        start = len(one.raw) if header is None else header + (one.raw[header + 12] >> 4) * 4
        how = chance.randrange(6)
        if how < 3 and start < len(one.raw):
            place = chance.randrange(start, len(one.raw))
            size = min(chance.choice([1, 1, 5, 400]), len(one.raw) - place)
            out[at] = one._replace(raw=one.raw[:place] + chance.randbytes(size) + one.raw[place + size :])
        elif how == 3 and start < len(one.raw):
            out[at] = one._replace(raw=one.raw[: chance.randrange(start, len(one.raw))])
        elif how == 4:
            del out[at]
        elif how == 5:
            out.insert(chance.randrange(len(out)), one)
    return out


def written(found: list[Packet], secrets: bytes) -> bytes:
    blocks = [enhanced(Frame(one.raw, one.time_ns, one.wire), ticks=one.time_ns) for one in found]
    held = [secrets_block(secrets)] if secrets else []
    return b"".join([section(), interface(found[0].link, resolution=9), *held, *blocks])


def said(messages: list[Message]) -> set[bytes]:
    """What messages without a fault or a note say."""
    return {msgspec.json.encode((one.sender, one.name, one.fields)) for one in messages if one.fault is None and not one.notes}


@pytest.mark.sweep
@pytest.mark.parametrize("name", CAPTURES)
def test_no_message_is_made_up(name: str) -> None:
    found, secrets = packets(GOLDEN / name), keys(GOLDEN / name)
    true = said(once(written(found, secrets)).messages)
    assert bool(true) == bool(secrets)
    for seed in range(60):
        capture = written(damaged(found, random.Random(seed)), secrets)
        with counted(CALLS + CALLS_A_BYTE * len(capture)):
            whole = once(capture)
        assert said(whole.messages) <= true, seed
        assert not whole.inspector.reports
        if seed % 5 == 0:
            assert once(capture, rows=1).json == whole.json
