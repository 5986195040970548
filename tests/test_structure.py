"""The order of the modules: imports go one way. Other rules of the code, and that CI runs every test."""

from __future__ import annotations

import ast
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterable
from functools import cache
from itertools import product
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROWS = (
    {"errors", "options", "units"},
    {"model"},
    {"crc32c", "lz4", "patterns", "quota", "zstd"},
    {"layout", "bson", "tcp", "capture"},
    {"tls", "layers"},
    {"protocols"},
    {"detect", "pair", "filter"},
    {"diagnose", "entries", "credit"},
    {"conversation"},
    {"snapshot"},
    {"session"},
    {"inspector", "latency", "stats"},
    {"render", "spark", "golden", "scrub", "wireshark"},
    {"cli"},
    {"__main__"},
)
OURS = {"streamdump", "dissect", "cli"}
LATE = {"cryptography", "scapy", "pyspark", "rich", "textual", "mcp", "mcp_types"}
"""Imported inside the functions that need them."""

BROWSE, MCP = Path("cli/browse"), Path("cli/mcp")
"""Two interfaces of which nobody but their commands imports anything; these modules import what they need of an extra."""


def row_of(path: Path) -> int:
    """The row of a module or folder below the root."""
    unit = path.parts[0] if path.parts[0] == "cli" else Path(*path.parts[1:2]).stem or "inspector"
    for row, units in enumerate(ROWS):
        if unit in units:
            return row
    raise AssertionError(f"{path} is in no row of the order of modules")


def modules() -> list[Path]:
    return sorted(path.relative_to(ROOT) for folder in ("dissect", "cli") for path in (ROOT / folder).rglob("*.py"))


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse((ROOT / path).read_text(encoding="utf-8"))


@cache
def nodes(path: Path) -> list[ast.AST]:
    """What the rules look at: imports and calls."""
    return [node for node in ast.walk(parsed(path)) if isinstance(node, ast.Import | ast.ImportFrom | ast.Call)]


def imported(path: Path, nodes: Iterable[ast.AST]) -> set[Path]:
    """The folders and modules of this project that a module imports, below the root and without suffix."""
    found: set[Path] = set()
    for node in nodes:
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
        if isinstance(node, ast.Import):
            found |= {absolute(path, name) for name in names if name.split(".")[0] in OURS}
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if node.level:
                target = path.parents[node.level - 1].joinpath(*module.split("."))
                found |= {target} if module else {target / name if exists(target / name) else target for name in names}
            elif module.split(".")[0] in OURS:
                found.add(absolute(path, module))
    return found


def exists(module: Path) -> bool:
    return (ROOT / module).is_dir() or (ROOT / module).with_suffix(".py").is_file()


def absolute(path: Path, name: str) -> Path:
    """The library as `cli/` and any user import it. Inside of each folder imports are relative."""
    top, *parts = name.split(".")
    assert path.parts[0] == "cli" and top == "streamdump" and parts[:1] != ["cli"], f"{path} imports {name}: write it relative"
    return Path("dissect", *parts)


def test_imports_go_one_way(subtests: pytest.Subtests) -> None:
    for path in modules():
        with subtests.test(str(path)):
            for target in imported(path, nodes(path)):
                assert exists(target), f"{path} imports {target}, which is not there"
                same = target.parts[:2] == path.with_suffix("").parts[:2] if path.parts[0] == "dissect" else target.parts[0] == "cli"
                if path != Path("dissect/__init__.py"):
                    assert same or row_of(target) < row_of(path), f"{path} imports {target}"


def test_heavy_packages_are_imported_where_they_are_used(subtests: pytest.Subtests) -> None:
    for path in modules():
        with subtests.test(str(path)):
            tree = parsed(path)
            top = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
            extra = (
                {"rich", "textual"} if path.is_relative_to(BROWSE) else {"mcp", "mcp_types"} if path == MCP / "server.py" else set[str]()
            )
            for node in top:
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
                assert not {name.split(".")[0] for name in names} & (LATE - extra)


@pytest.mark.parametrize("interface", [BROWSE, MCP], ids=str)
def test_an_interface_is_imported_by_its_command_alone_and_only_when_that_runs(interface: Path) -> None:
    for path in modules():
        if not path.is_relative_to(interface):
            found = [one for one in imported(path, nodes(path)) if one.is_relative_to(interface)]
            assert path == Path("cli/commands", f"{interface.name}.py") or not found, path
            assert not any(one.is_relative_to(interface) for one in imported(path, parsed(path).body)), path


def test_text_files_are_in_utf_8_whatever_the_locale_says(subtests: pytest.Subtests) -> None:
    for path in modules():
        with subtests.test(str(path)):
            for call in nodes(path):
                if not isinstance(call, ast.Call):
                    continue
                name = call.func.attr if isinstance(call.func, ast.Attribute) else call.func.id if isinstance(call.func, ast.Name) else ""
                modes = [one.value for one in call.args if isinstance(one, ast.Constant) and isinstance(one.value, str)]
                text = name in ("read_text", "write_text") and isinstance(call.func, ast.Attribute)
                text |= name in ("open", "fdopen") and any(set(mode) <= set("rwax+") for mode in modes)
                assert not text or "encoding" in {one.arg for one in call.keywords}, f"{path.name}:{call.lineno}"


def test_no_class_has_more_methods_than_can_be_kept_in_mind() -> None:
    for path in modules():
        for node in parsed(path).body:
            if isinstance(node, ast.ClassDef):
                methods = [one.name for one in node.body if isinstance(one, ast.FunctionDef)]
                assert len(methods) <= 25, f"{path.name}: {node.name}"


def test_ci_runs_every_test() -> None:
    """Whatever marks a test has, the mark expression of one run in `.ci/run` selects it; none of these runs is of a folder alone."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    marks = [line.partition(":")[0] for line in settings["markers"]]
    runs = re.findall(r" -m pytest (.*)", (ROOT / ".ci" / "run").read_text())
    assert not any("tests" in run for run in runs)
    short, *others = re.findall(r" -m (?:'(.+?)'|(\w+))", " ".join((settings["addopts"], *(f" {run}" for run in runs))))
    assert len(others) == len(runs) == 2
    for chosen in product((False, True), repeat=len(marks)):
        names = defaultdict(bool, zip(marks, chosen, strict=True))
        assert any(eval(quoted or word, {}, names) for quoted, word in (short, *others)), [name for name in marks if names[name]]
