"""Writes the page of all rules of `diagnose` from their tables and the captures: `python -m tests.support`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from streamdump.diagnose.across import ACROSS
from streamdump.diagnose.common import COMMON, FIRST
from streamdump.diagnose.registry import FAMILIES
from streamdump.diagnose.rules import ERROR, REFUSED_ADVICE, SEVERITIES, WARNING
from streamdump.model import Finding
from tests.diagnose.talks import capture, diagnosed
from tests.support.pages import ROOT

PAGE = ROOT / "dissect" / "diagnose" / "README.md"
BEGIN = "<!-- rules -->\n"
TITLES = {"rabbitmq-stream": "RabbitMQ Streams", "iggy": "Apache Iggy", "iggy:replica": "Apache Iggy between replicas"}
TITLES.update({"seastar-rpc": "Seastar RPC", "mewbase": "mewbase"})
HEAD = "| rule | severity | cause, in an example | advice | capture |\n| --- | --- | --- | --- | --- |\n"
EVERY = """In a finding, a name without a dot has the protocol before it: `iggy.refused`.

"""
TOLD = {
    "tls.plain-peer": "the client does not speak TLS, and the server expects it",
    "tls.no-common-version": "the server accepts none of the versions that the client offers (TLS 1.2)",
    "tls.no-common-cipher": "the server accepts none of the cipher suites, or groups, that the client offers (TLS_AES_128_GCM_SHA256)",
    "tls.unknown-authority": "the client does not know who issued the server's certificate",
    "tls.certificate-expired": "the server's certificate had expired (2026-01-31T00:00:00Z)",
    "tls.client-certificate-missing": "the server asks for a client certificate, and the client sends none",
    "server-stalled": "192.0.2.2:5552 no longer answers any client: requests of 4 connections of 4 clients have no answer, "
    "the first was sent 9.3 s before the capture ends",
    "tcp.proxy-header-damaged": "the PROXY header (version 2) from the client is damaged: the checksum is wrong",
    "tcp.icmp": "for segments from the client, 192.0.2.254 reports by ICMP: host unreachable (2 times)",
    "not-readable": "poll_messages from the server is not readable with the layouts known here (the server says 0.13.0)",
    "late": "poll_messages was not answered in time",
    "advertised-unreachable": "clients are sent to 192.0.2.9:5552, where connections fail: the SYN has no answer",
    "tcp.turns-everybody-away": "192.0.2.2:5552 refuses every connection: 3 connections of 3 clients",
    "retry-loop": "192.0.2.1 retries repeatedly: 5 connections to 192.0.2.2:5552, one every 1 s, each with the same error: "
    "192.0.2.2:5552 refuses the connection: it answers the SYN with RST",
    "rabbitmq-stream.sub-batch": "a sub-batch of Publish cannot be unpacked: sub-batch unpacks to 90 bytes, 100 declared",
    "iggy.stream-deleted": "192.0.2.7:50000 deleted the topic 1/1 9 s before 192.0.2.1:40000 wanted to consume from it",
    "mewbase.impossible-length": "servers do not answer after a frame from the client that states a length of 2 bytes, which no frame has",
}
"""Causes of rules that neither a capture nor a table of cases shows."""

SILENT = "mewbase.skipped-bytes"
"""A rule that only remembers something for others."""
DRAFT = "The protocol's first draft has the same rules under `rabbitmq-stream-draft.`.\n\n"


class Shown(NamedTuple):
    """A finding by a rule, and the capture that has it, if one does."""

    finding: Finding
    capture: str


@cache
def found_in(path: Path) -> list[Finding]:
    """What is found in a capture."""
    return diagnosed(path, bytes_as="omit")[0]


def findings() -> Iterator[Shown]:
    """All that is found in captures, the smallest first, and then in the cases of the tests."""
    paths = [path for path in (ROOT / "captures").rglob("*.pcap*") if path.suffix not in (".jsonl", ".golden")]
    for path in sorted(paths, key=lambda path: (path.stat().st_size, path)):
        for finding in found_in(path):
            yield Shown(finding, str(path.relative_to(ROOT / "captures")))
    for name in ("common", "rabbitmq", "iggy", "seastar", "mewbase"):
        for make, *_ in import_module(f"tests.diagnose.test_{name}").CASES.values():
            for finding in diagnosed(capture(make()))[0]:
                yield Shown(finding, "")


@cache
def examples() -> dict[str, list[Shown]]:
    """By rule what shows it; below the name alone, what any protocol shows."""
    found: dict[str, list[Shown]] = {}
    for shown in findings():
        prefix, _, name = shown.finding.rule.partition(".")
        found.setdefault(shown.finding.rule, []).append(shown)
        if prefix not in ("tcp", "tls"):
            found.setdefault(name, []).append(shown)
    return found


def row(name: str, severity: str | None, advice: str, every: list[Shown]) -> str:
    """A line of a table: how severe the rule may be, and what shows it at its worst."""
    severities = {severity, *(one.finding.severity for one in every)}
    shown = min(every, key=lambda one: (not one.capture, SEVERITIES.index(one.finding.severity)), default=None)
    said, advice = (TOLD[name], advice) if shown is None else (shown.finding.cause, shown.finding.advice)
    cause = re.sub(r"([|<*_])", r"\\\1", said)
    link = f"[{shown.capture}](../../captures/{shown.capture})" if shown is not None and shown.capture else ""
    return f"| `{name}` | {', '.join(one for one in SEVERITIES if one in severities)} | {cause} | {advice} | {link} |\n"


def tables() -> Iterator[str]:
    """A section for the rules of each family, after those of all protocols."""
    seen = examples()
    every = [("refused", WARNING, REFUSED_ADVICE), *((one.name, one.severity, one.advice) for one in (*FIRST, *COMMON, *ACROSS))]
    families = [("All protocols", "", EVERY, every)]
    for family in FAMILIES:
        name, _, layout = family.protocols[0].partition(":")
        rules = [(one.name, one.severity, one.advice) for one in family.rules]
        rules += [(other, None if seen.get(f"{name}.{other}") else ERROR, advice) for other, advice in family.others]
        families.append((TITLES[f"{name}:{layout}" if layout else name], f"{name}.", DRAFT if len(family.protocols) > 1 else "", rules))
    for title, prefix, more, rules in families:
        lines: dict[str, str] = {}
        for name, severity, advice in rules:
            full = name if "." in name else f"{prefix}{name}"
            if full != SILENT:
                lines.setdefault(full, row(full, severity, advice, seen.get(full, [])))
        yield f"## {title}\n\n{more}{HEAD}{''.join(lines.values())}"


def page() -> str:
    """The page as it should be."""
    return PAGE.read_text().partition(BEGIN)[0] + BEGIN + "\n" + "\n".join(tables())


def write() -> None:
    """Writes the page."""
    PAGE.write_text(page())
