"""What is found in the golden captures: nothing above a note in healthy ones, and in the failing ones the cause first."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.diagnose.failing import FAILING
from tests.diagnose.talks import worst_first
from tests.support import rules

GOLDEN = Path(__file__).parents[2] / "captures" / "golden"
CAPTURES = sorted(path for path in GOLDEN.glob("*/*") if ".pcap" in path.name and path.suffix != ".jsonl")


@pytest.mark.parametrize("family", sorted({path.parent.name for path in CAPTURES}))
def test_golden_captures(family: str) -> None:
    told = {}
    for path in CAPTURES:
        if path.parent.name == family:
            found = worst_first(rules.found_in(path))
            if found and found[0].severity != "note":
                told[path.name] = f"{found[0].severity} {found[0].rule}"
    assert told == FAILING.get(family, {})


def test_the_page_of_the_rules_has_all_that_there_are() -> None:
    text = rules.PAGE.read_text()
    assert text == rules.page(), "python -m tests.support writes it anew"
    named = set(re.findall(r"^\| `([a-z.-]+)` \|", text, re.M))
    for rule in rules.examples():
        if "." in rule:
            name = rule.replace("-draft.", ".")
            assert name in named or name.partition(".")[2] in named, rule
