"""Writes the page of all rules of `diagnose` from their tables and the captures: `python -m tests.support`."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterator
from textwrap import dedent
from typing import Any, NamedTuple

from streamdump.diagnose.common import ACROSS, COMMON
from streamdump.diagnose.registry import FAMILIES
from streamdump.diagnose.rules import REFUSED, WARNING
from streamdump.tls import diagnostics
from tests.diagnose.talks import diagnosed
from tests.support.pages import ROOT

PAGE = ROOT / "dissect" / "diagnose" / "README.md"
BEGIN = "<!-- rules -->\n"
TITLES = {"rabbitmq-stream": "RabbitMQ Streams", "iggy": "Apache Iggy", "seastar-rpc": "Seastar RPC", "mewbase": "mewbase"}
HEAD = "| rule | severity | cause, as a capture shows it | advice | capture |\n| --- | --- | --- | --- | --- |\n"
EVERY = """In a finding, a name without a dot has the protocol before it: `iggy.refused`.

"""
TLS = {**dict(diagnostics.RULES), "tls.plain-peer": diagnostics._plain_peer}
"""The sentences of these rules are made where TLS is read."""
DRAFT = "The protocol's first draft has the same rules under `rabbitmq-stream-draft.`.\n\n"


class Shown(NamedTuple):
    """What a capture shows of a rule."""

    severity: str
    cause: str
    capture: str


def examples() -> dict[str, Shown]:
    """By rule, what the smallest capture shows that has it; below the name alone, what any protocol shows."""
    found: dict[str, Shown] = {}
    paths = [path for path in (ROOT / "captures").rglob("*.pcap*") if path.suffix not in (".jsonl", ".golden")]
    for path in sorted(paths, key=lambda path: (path.stat().st_size, path)):
        for finding in diagnosed(path, bytes_as="omit")[0]:
            shown = Shown(finding.severity, finding.cause, str(path.relative_to(ROOT / "captures")))
            for name in (finding.rule, finding.rule.partition(".")[2]):
                found.setdefault(name, shown)
    return found


def template(tell: Callable[..., Any]) -> str:
    """The sentence that a rule makes, with an ellipsis for what it fills in; empty where it is made elsewhere."""
    noted = inspect.getclosurevars(tell).nonlocals.get("cause")
    if noted is not None:
        return re.sub(r"{\w+}", "…", noted)
    sentences = []
    for node in ast.walk(ast.parse(dedent(inspect.getsource(tell)))):
        parts = node.values if isinstance(node, ast.JoinedStr) else [node] if isinstance(node, ast.Constant) else []
        text = "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in parts)
        if text.count(" ") > 3 and text != inspect.getdoc(tell):
            sentences.append(text)
    return max(sentences, key=len, default="")


def row(name: str, severity: str, advice: str, tell: Callable[..., Any] | None, shown: Shown | None) -> str:
    """A line of a table: where a capture shows the rule, with its severity and cause there."""
    said = shown.cause if shown is not None else template(tell) if tell is not None else ""
    cause = re.sub(r"([|<*_])", r"\\\1", said)
    link = f"[{shown.capture}](../../captures/{shown.capture})" if shown is not None else ""
    return f"| `{name}` | {severity} | {cause} | {advice} | {link} |\n"


def tables() -> Iterator[str]:
    """A section for the rules of each family, after those of all protocols."""
    seen = examples()
    every = [("refused", WARNING, REFUSED, None), *((one.name, one.severity, one.advice, one.tell) for one in (*COMMON, *ACROSS))]
    families = [("All protocols", "", EVERY, every)]
    for family in FAMILIES:
        name = family.protocols[0]
        rules = [(one.name, one.severity, one.advice, one.tell) for one in family.rules]
        rules += [(other, "", advice, None) for other, advice in family.others]
        families.append((TITLES[name], f"{name}.", DRAFT if len(family.protocols) > 1 else "", rules))
    for title, prefix, more, rules in families:
        lines: dict[str, str] = {}
        for name, severity, advice, tell in rules:
            full = name if "." in name else f"{prefix}{name}"
            shown, tell = seen.get(full), TLS.get(full, tell)
            lines.setdefault(full, row(full, severity or (shown.severity if shown else "varies"), advice, tell, shown))
        yield f"## {title}\n\n{more}{HEAD}{''.join(lines.values())}"


def page() -> str:
    """The page as it should be."""
    return PAGE.read_text().partition(BEGIN)[0] + BEGIN + "\n" + "\n".join(tables())


def write() -> None:
    """Writes the page."""
    PAGE.write_text(page())
