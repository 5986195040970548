"""What a check found: for people, for GitHub, as JUnit XML."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from xml.etree import ElementTree

from ..units import count
from .check import Checked
from .compare import ABSENT, Difference

ERRORS = ("unreadable", "internal error")
"""Outcomes of captures that could not be compared."""

SHOWN = 50
"""Differences of one capture that are listed."""

BOUNDED = "too much differs for a complete comparison: the rest was compared place by place, which may list more differences than there are"

_ILLEGAL = re.compile("[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What XML cannot have."""


def failed(one: Checked) -> bool:
    """Whether a capture is not as its golden file says."""
    return one.outcome in ("different", "no golden", *ERRORS)


def text(one: Checked, loud: str = "", quiet: str = "", reset: str = "", then: str = "golden") -> list[str]:
    """Return the report on one capture as lines; `then`: the name of what it was compared with."""
    if one.outcome == "no golden":
        return [f"{loud}{one.capture}: there is no golden file {one.golden}; check --update writes it{reset}"]
    if one.outcome in ERRORS:
        return [f"{loud}{one.error}{reset}"]
    if one.outcome != "different":
        return []
    if one.error is not None:
        return [f"{loud}{one.capture}: {one.error}{reset}"]
    lines = [f"{loud}{one.capture}: {count(len(one.differences), 'difference')} from {one.golden}{reset}"]
    if one.bounded:
        lines.append(f"  {BOUNDED}")
    for difference in one.differences[:SHOWN]:
        lines.append(f"  {difference.text}")
        lines += [f"    {quiet}{line}{reset}" for line in details(difference, then)]
    if len(one.differences) > SHOWN:
        lines.append(f"  and {len(one.differences) - SHOWN:,} more")
    return lines


def details(difference: Difference, then: str = "golden") -> list[str]:
    """The lines around a difference, and the fields that its first line does not name."""
    more = difference.changes[1:]
    lines = [f"{one.field}: {one.got or ABSENT}, {then} {one.golden or ABSENT}" for one in more[: SHOWN // 5]]
    if len(more) > SHOWN // 5:
        lines.append(f"and {count(len(more) - SHOWN // 5, 'more field')}")
    return [*lines, *difference.context]


# GitHub


def for_github(one: Checked) -> list[str]:
    """Return commands for GitHub's runner that annotate the lines of the golden file that differ."""
    if not failed(one):
        return []
    if one.outcome != "different" or one.error is not None:
        file = one.golden if one.outcome == "different" else one.capture
        return [_command("error", file, None, one.capture, "\n".join(text(one)))]
    return [
        _command("error", one.golden, difference.line or 1, one.capture, "\n".join([difference.text, *details(difference)]))
        for difference in one.differences[:SHOWN]
    ]


def unused_annotation(path: str) -> str:
    """The annotation for a golden file without a capture."""
    return _command("warning", path, 1, path, f"{path}: there is no capture that this golden file belongs to")


def defused(line: str) -> str:
    """Return a line that the runner does not read as a command: the older form of those begins anywhere in a line."""
    return line.replace("##[", "#\\u0023[")


def _command(kind: str, file: str, line: int | None, title: str, message: str) -> str:
    # GitHub wants paths as they are in the repository, where its steps run
    root, absolute = Path(os.environ.get("GITHUB_WORKSPACE") or Path.cwd()), Path(file).absolute()
    path = str(absolute.relative_to(root)) if absolute.is_relative_to(root) else file
    place = f",line={line}" if line is not None else ""
    return f"::{kind} file={_property(path)}{place},title={_property(title)}::{_data(defused(message))}"


def _data(value: str) -> str:
    return value.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(value: str) -> str:
    return _data(value).replace(":", "%3A").replace(",", "%2C")


# JUnit


def junit(found: Sequence[tuple[Checked, float]], began: datetime) -> bytes:
    """A report as CI servers read it: a test case for each capture; the numbers are seconds."""
    failures = sum(one.outcome in ("different", "no golden") for one, _ in found)
    errors = sum(one.outcome in ERRORS for one, _ in found)
    total = f"{sum(seconds for _, seconds in found):.3f}"
    counts = {"tests": str(len(found)), "failures": str(failures), "errors": str(errors), "time": total}
    root = ElementTree.Element("testsuites", {"name": "streamdump check", **counts})
    stamp = began.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S")
    about = {"name": "streamdump check", **counts, "skipped": "0", "timestamp": stamp, "hostname": "localhost", "package": "", "id": "0"}
    suite = ElementTree.SubElement(root, "testsuite", about)
    ElementTree.SubElement(suite, "properties")
    for one, seconds in found:
        folder, name = os.path.split(one.capture)
        place = {"name": _legal(name), "classname": _legal(folder or "."), "time": f"{seconds:.3f}"}
        case = ElementTree.SubElement(suite, "testcase", place)
        if failed(one):
            kind = "error" if one.outcome in ERRORS else "failure"
            lines = text(one)
            about = {"message": _legal(one.differences[0].text if one.differences else lines[0]), "type": one.outcome.replace(" ", "-")}
            ElementTree.SubElement(case, kind, about).text = _legal("\n".join(lines))
    ElementTree.SubElement(suite, "system-out")
    ElementTree.SubElement(suite, "system-err")
    ElementTree.indent(root)
    return bytes(ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)) + b"\n"


def _legal(value: str) -> str:
    return _ILLEGAL.sub("?", value)
