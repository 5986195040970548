"""The same cases in each run: bytes damaged at random, on the way that `python -m tests.fuzz` goes for longer."""

from __future__ import annotations

from random import Random

import pytest

from tests.fuzz.mutate import mutated
from tests.fuzz.seeds import seeds
from tests.fuzz.targets import PORTS, TARGETS, look
from tests.support.frames import A, Packet, ethernet, ip4, pcap, tcp

CASES = 150
"""Of each target; one in `DEEP` of them with its work counted and its records held against the schema."""

DEEP = 3


def test_a_connection_of_an_endpoint_with_itself() -> None:
    port, heartbeat = PORTS["rabbitmq-stream"], bytes.fromhex("00000004 0017 0001")
    look(pcap([Packet(ethernet(ip4(tcp(heartbeat * 4, sport=port, dport=port), src=A, dst=A)))]))


@pytest.mark.sweep
@pytest.mark.parametrize("target", TARGETS)
def test_damaged_bytes(target: str) -> None:
    begin = seeds(target)
    for number in range(CASES):
        data = mutated(begin, Random(f"{target} {number}"))
        try:
            TARGETS[target](data, number % DEEP == 0)
        except BaseException as error:
            error.add_note(f"case {number} of {target}: {data.hex()}")
            raise
