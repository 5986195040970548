"""The tables of rules: a rule is a function in its family's file, a line in that family's table and a case in a test."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from streamdump.diagnose import across, common
from streamdump.diagnose.registry import FAMILIES
from streamdump.diagnose.rules import ERROR, NOTE, WARNING, Rule
from tests.support import rules

FILES = {"rabbitmq-stream": "rabbitmq", "iggy": "iggy", "iggy:replica": "iggy_replica", "seastar-rpc": "seastar", "mewbase": "mewbase"}
TESTS = "".join(path.read_text() for path in Path(__file__).parents[1].rglob("test_*.py"))
SHARED = "rules"
"""The file with the functions that make a rule of a pattern for notes."""


def tables() -> Iterator[tuple[str, Rule]]:
    """Each rule about one conversation, and the file that its function belongs into."""
    for rule in (*common.FIRST, *common.COMMON):
        prefix = rule.name.partition(".")[0]
        yield prefix if prefix in ("tcp", "tls") else "common", rule
    for family in FAMILIES:
        yield from ((FILES[family.protocols[0]], rule) for rule in family.rules)


def name_of(function: object) -> str:
    return str(getattr(function, "__module__", "")).rpartition(".")[2]


@pytest.mark.parametrize("file", ["tcp", "tls", "common", *FILES.values()])
def test_a_rule_is_a_function_in_the_file_of_its_family(file: str) -> None:
    found = [rule for where, rule in tables() if where == file]
    assert found
    assert [rule.name for rule in found if name_of(rule.check) not in (file, SHARED)] == []


def test_a_rule_about_several_conversations_is_in_their_file() -> None:
    assert [rule.name for rule in across.ACROSS if name_of(rule.check) != "across"] == []


def test_a_rule_has_a_severity_and_one_sentence_of_advice() -> None:
    for rule in (*(rule for _, rule in tables()), *across.ACROSS):
        assert rule.severity in (ERROR, WARNING, NOTE)
        assert re.fullmatch(r"(--)?[\w\"'].*\.", rule.advice), rule.name


def test_a_rule_has_a_case_in_a_test() -> None:
    """Or a capture that shows it, which the page of the rules names."""
    names = {rule.name for rule in (*(rule for _, rule in tables()), *across.ACROSS)} - {rules.SILENT.partition(".")[2]}
    names |= {name for family in FAMILIES for name, _ in family.others}
    shown = set(re.findall(r"^\| `(?:[a-z-]+\.)?([a-z-]+)` .*/captures/", rules.PAGE.read_text(), re.M))
    tails = {name: name.rpartition(".")[2] for name in names}
    assert [name for name, tail in tails.items() if tail not in shown and not re.search(rf'[ ".]{tail}["\':,]', TESTS)] == []


def test_a_rule_is_asked_where_all_holds_that_it_needs() -> None:
    """Those about the end go by other conditions than those about messages."""
    for _, rule in tables():
        assert rule.needs < 1 << 15
        assert rule.needs == 0 or isinstance(rule.on, str) or rule.needs < 1 << 6 or set(rule.on) <= {"closed", "closed before"}
