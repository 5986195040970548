"""Looking for frames costs no more than bytes pay for, whatever they are: work is counted, not timed."""

from __future__ import annotations

import io
from functools import partial
from pathlib import Path

import pytest

from streamdump.capture.files import open_capture
from streamdump.inspector import Inspector
from streamdump.model import Options
from streamdump.protocols.work_budget import ALWAYS, ONCE, PAID, WorkBudget
from tests.bench.hostile import FORCED, FORCED_LAYOUTS, SENT, Made, Shape, sending
from tests.support.work import steps

MADE_UP = Path(__file__).parents[2] / "captures" / "samples" / "hostile"

STEPS, FIXED = 320, 400_000
"""Instructions of Python that a byte of a packet may cost, and a run whatever it reads; a thousand take about ten microseconds."""

SMALL, LARGE = 9_000, 36_000


def inspect(file: bytes, *decode_as: tuple[int, str, str | None]) -> Inspector:
    inspector = Inspector([open_capture(io.BytesIO(file))], Options(decode_as=decode_as))
    for _ in inspector.batches():
        pass
    return inspector


def work(made: Made) -> int:
    decode_as: list[tuple[int, str, str | None]] = []
    if made.options:
        port, _, what = made.options[1].removeprefix("tcp.port==").partition(",")
        protocol, _, layout = what.partition(":")
        decode_as = [(int(port), protocol, layout or None)]
    return steps(lambda: inspect(made.file, *decode_as))


def assert_bounded(name: str, shape: Shape) -> None:
    small, large = (work(sending(SENT[name], size, shape)) for size in (SMALL, LARGE))
    assert large < STEPS * LARGE + FIXED
    assert large - small < 1.3 * (LARGE / SMALL - 1) * (small + FIXED)


UNDECIDED = (
    "zeros",
    "pages of zeros",
    "zeros and a little",
    "little endian counters",
    "little-endian 1s of 64 bits",
    "big-endian 4s",
    "random bytes",
    "LZ4_FRAGMENTED of many chunks",
    "frames of SCYLLA_V3 of LZ4 blocks of nothing",
    "frames of SCYLLA_V3 of zstd that is damaged",
    "control blocks of SCYLLA_V3",
    "heads of Publish of the draft",
    "zeros and commands of replies",
    "SSTARRPC with records",
)


@pytest.mark.sweep
@pytest.mark.parametrize("shape", [Shape(), Shape(100, syn=True, both=False), Shape(9, port=5552), Shape(65_000, port=8090)], ids=str)
@pytest.mark.parametrize("name", UNDECIDED)
def test_detection_costs_what_the_bytes_pay_for(name: str, shape: Shape) -> None:
    assert_bounded(name, shape)


@pytest.mark.sweep
@pytest.mark.parametrize("forced", [*FORCED, *FORCED_LAYOUTS])
@pytest.mark.parametrize(
    "name",
    ["zeros", "little endian counters", "big-endian 4s", "frames and zeros", "frames of SCYLLA_V3 of zstd that is damaged"],
)
def test_the_way_back_into_frames_costs_what_the_bytes_pay_for(name: str, forced: str) -> None:
    assert_bounded(name, Shape(100, lost=9, forced=forced))


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("name", "forced"),
    [
        ("heads of Publish of 2 MB", "rabbitmq-stream"),
        ("heads of batches of 2 MB of Iggy", "iggy"),
        ("calls of Seastar of 2 MB", "seastar-rpc"),
        ("calls of Seastar of 2 MB", "seastar-rpc:rpc"),
    ],
)
def test_frames_that_are_never_looked_at_as_a_whole_cost_what_their_bytes_pay_for(name: str, forced: str) -> None:
    assert_bounded(name, Shape(100, lost=9, forced=forced))


@pytest.mark.sweep
@pytest.mark.parametrize(
    "name",
    [
        "publishing with a byte missing",
        "confirms with a byte missing",
        "pings of iggy with a byte missing",
        "pings of iggy without answers",
        "requests that are never answered",
        "calls of seastar after the negotiation",
    ],
)
@pytest.mark.parametrize("shape", [Shape(), Shape(syn=True), Shape(17)], ids=str)
def test_small_frames_cost_what_their_bytes_pay_for(name: str, shape: Shape) -> None:
    assert_bounded(name, shape)


@pytest.mark.sweep
@pytest.mark.parametrize("first", range(0, 256, 32))
def test_one_byte_repeated_is_nothing(first: int, subtests: pytest.Subtests) -> None:
    for value in range(first, first + 32):
        shape = Shape(600, port=(9999, 5552, 8090)[value % 3], syn=value % 2 == 0)
        file = sending(lambda size, side, value=value: bytes([value]) * size, 6_000, shape).file  # type: ignore[misc]
        with subtests.test(value=value):
            assert steps(partial(inspect, file)) < STEPS * 6_000 + FIXED


@pytest.mark.parametrize("name", ["zeros-mid", "zeros-start"])
def test_a_disk_image_of_zeros_is_unknown(name: str) -> None:
    file = (MADE_UP / f"{name}.pcap").read_bytes()
    inspector = inspect(file)
    assert [row.protocol for row in inspector.rows()] == [None]
    assert steps(lambda: inspect(file)) < STEPS * len(file)


@pytest.mark.parametrize("forced", ["", "rabbitmq-stream"])
def test_frames_behind_zeros_are_found(forced: str) -> None:
    """Looks get rare, but never end."""

    def content(size: int, side: int) -> bytes:
        return bytes(size - 3_000) + SENT["publishing that is never confirmed"](3_000, 0)

    made = sending(content, 100_000, Shape(100, both=False, forced=forced))
    inspector = inspect(made.file, *([(9999, forced, None)] if forced else []))
    assert [row.protocol for row in inspector.rows()] == ["rabbitmq-stream"]
    assert inspector.counters.messages > 100


def test_a_look_goes_on_while_bytes_have_paid() -> None:
    work_budget = WorkBudget()
    work_budget.pay(1_000)
    paid = work_budget.left
    assert paid > PAID * 1_000
    work_budget.begin(1_000, 1)
    assert work_budget.spend(paid)
    assert work_budget.spend(ALWAYS + ONCE * 1_000)
    assert not work_budget.spend(ONCE * 1_000)
    assert work_budget.left < 0
