"""What captures say where exact output is not the point: their golden files, and copies of captures that say the same.

`pytest tests/golden --update-golden` writes the golden files anew.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from streamdump.golden.check import capture_source, check, golden_of
from streamdump.golden.settings import CheckSettings
from streamdump.model import Options
from tests.golden.rebuild import GOLDEN, compared
from tests.support.captures import ACCEPT, CAPTURES, capture_name, every_family

EXPECTED = GOLDEN.parent / "check"
FILES = sorted(EXPECTED.rglob("*.golden"))

SAME = {
    "seastar-rpc": {
        "big_reordered": "big_mtu1500",
        "inflight_duplicates": "inflight",
        "exceptions_ns_be": "exceptions",
        "stream_ng": "stream",
        "isolation_raw_ip": "isolation",
        "basic_seqwrap": "basic",
        "out_of_order_overlap": "out_of_order",
        "nosyn": "handler_duration",
    },
    "rabbitmq-stream": {
        "big_endian_padded_310": "publishers_310",
        "duplicated_310": "rstream_publish_consume_310",
        "reordered_310": "rstream_publish_consume_310",
        "resegmented_1460_405": "publish_large_batch_405",
        "seq_wrap_405": "publish_large_batch_405",
        "vlan_405": "filters_405",
        "gzip_310": "two_connections_310",
        "overlapping_405": "subbatch_compressed_405",
        "other_port_405": "metadata_update_405",
    },
    "mewbase": {
        "cut-reordered": "java-sub",
        "cut-duplicated": "java-subpos",
        "cut-tiny-segments": "java-find",
        "cut-coalesced": "java-pipeline",
        "fmt-pcapng": "java-query",
    },
}
"""Copies whose packets were repeated, swapped, cut otherwise or written in another form, and what they are copies of."""


@every_family(FILES)
def test_a_capture_says_what_its_golden_file_says(paths: list[Path], subtests: pytest.Subtests, request: pytest.FixtureRequest) -> None:
    for path in paths:
        with subtests.test(capture_name(path)):
            capture = GOLDEN / path.relative_to(EXPECTED).with_name(path.name.removesuffix(".golden"))
            if request.config.getoption("--update-golden"):
                check(str(capture), path, capture_source(capture, Options()), CheckSettings(), update=True)
            checked = check(str(capture), path, capture_source(capture, Options()), CheckSettings())
            if checked.outcome != "same":
                found = [f"  {one.text}" for one in checked.differences]
                pytest.fail("\n".join([f"{capture_name(capture)} is {checked.outcome}:", *found, ACCEPT]), pytrace=False)


def test_there_are_golden_files() -> None:
    assert len(FILES) > 100


@every_family(CAPTURES)
def test_a_capture_without_exact_output_has_a_golden_file(
    paths: list[Path], subtests: pytest.Subtests, request: pytest.FixtureRequest
) -> None:
    for path in paths:
        with subtests.test(capture_name(path)):
            case = path.parent / path.name.split(".")[0]
            copies = {f"{family}/{copy}" for family, pairs in SAME.items() for copy in pairs}
            exact = case.with_suffix(".jsonl").exists() or str(case.relative_to(GOLDEN)) in copies
            golden = EXPECTED / golden_of(path.relative_to(GOLDEN))
            if not exact and path.stat().st_size < 10_000 and golden not in FILES:
                assert request.config.getoption("--update-golden"), f"{path}: neither exact output nor a golden file"
                check(str(path), golden, capture_source(path, Options()), CheckSettings(), update=True)


def _bytes(family: str, case: str) -> bytes:
    return next((GOLDEN / family).glob(f"{case}.pcap*")).read_bytes()


@pytest.mark.parametrize(("family", "copy"), [(family, copy) for family, pairs in SAME.items() for copy in pairs])
def test_a_copy_says_the_same(family: str, copy: str) -> None:
    assert [one.text for one in compared(_bytes(family, SAME[family][copy]), _bytes(family, copy))] == []
