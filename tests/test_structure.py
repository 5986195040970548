"""The order of the modules: imports go one way. Other rules of the code, and that CI runs every test."""

from __future__ import annotations

import ast
import re
import tomllib
from collections import defaultdict
from itertools import product
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROWS = (
    {"errors", "options"},
    {"model"},
    {"lz4", "patterns", "quota"},
    {"layout", "bson", "tcp", "capture"},
    {"tls", "layers"},
    {"protocols"},
    {"detect", "pair", "diagnose", "filter"},
    {"conversation"},
    {"snapshot"},
    {"session"},
    {"inspector", "latency", "stats"},
    {"render", "spark", "golden", "scrub", "wireshark"},
    {"cli"},
    {"__main__"},
)
LATE = {"cryptography", "scapy", "pyspark", "rich", "textual"}
"""Imported inside the functions that need them."""

BROWSE = "streamdump.cli.browse"
"""The terminal interface: nobody else imports it, and it imports what draws it."""


def unit_of(module: str) -> str:
    """The room of a module, or a module that is none; empty for the package itself."""
    return f"{module}.".split(".")[1]


def row_of(module: str) -> int:
    unit = unit_of(module) or "inspector"
    for row, units in enumerate(ROWS):
        if unit in units:
            return row
    raise AssertionError(f"{module} is in no row of the order of modules")


def modules() -> list[Path]:
    return sorted([*(ROOT / "dissect").rglob("*.py"), *(ROOT / "cli").rglob("*.py")])


def name_of(path: Path) -> str:
    """The module of a file: the folder `dissect` is the package `streamdump`, and `cli` is in it."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(("streamdump", *parts[parts[0] == "dissect" :])).removesuffix(".__init__")


def imported(tree: ast.AST) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    return names


def test_imports_go_one_way(subtests: pytest.Subtests) -> None:
    for path in modules():
        with subtests.test(str(path.relative_to(ROOT))):
            module = name_of(path)
            for name in imported(ast.parse(path.read_text())):
                assert name.split(".")[0] not in ("dissect", "cli"), f"{module} imports {name}"
                if name.startswith("streamdump.") and module != "streamdump":
                    assert unit_of(name) == unit_of(module) or row_of(name) < row_of(module), f"{module} imports {name}"


def test_heavy_packages_are_imported_where_they_are_used(subtests: pytest.Subtests) -> None:
    for path in modules():
        with subtests.test(str(path.relative_to(ROOT))):
            tree = ast.parse(path.read_text())
            top = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
            late = LATE - {"rich", "textual"} if name_of(path).startswith(BROWSE) else LATE
            for node in top:
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
                assert not {name.split(".")[0] for name in names} & late


def test_the_terminal_interface_is_imported_by_its_command_alone_and_only_when_that_runs() -> None:
    for path in modules():
        tree, module = ast.parse(path.read_text()), name_of(path)
        if not module.startswith(BROWSE):
            assert module == "streamdump.cli.commands.browse" or not any(one.startswith(BROWSE) for one in imported(tree)), module
            top = ast.Module([node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)], [])
            assert not any(one.startswith(BROWSE) for one in imported(top)), module


def test_text_files_are_in_utf_8_whatever_the_locale_says(subtests: pytest.Subtests) -> None:
    for path in modules():
        with subtests.test(str(path.relative_to(ROOT))):
            for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if not isinstance(call, ast.Call):
                    continue
                name = call.func.attr if isinstance(call.func, ast.Attribute) else call.func.id if isinstance(call.func, ast.Name) else ""
                modes = [one.value for one in call.args if isinstance(one, ast.Constant) and isinstance(one.value, str)]
                text = name in ("read_text", "write_text") and isinstance(call.func, ast.Attribute)
                text |= name in ("open", "fdopen") and any(set(mode) <= set("rwax+") for mode in modes)
                assert not text or "encoding" in {one.arg for one in call.keywords}, f"{path.name}:{call.lineno}"


def test_no_class_has_more_methods_than_can_be_kept_in_mind() -> None:
    for path in modules():
        for node in ast.parse(path.read_text()).body:
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
