"""The protocol that `dissect/README.md` adds, added to a copy of the repository as it stands there: the tests for all protocols find it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "dissect" / "README.md").read_text()

SPOKEN = """
from pathlib import Path

from streamdump.protocols.lantern.layouts import BY_COMMAND
from tests.support.encoder import encode
from tests.support.frames import pcap
from tests.support.secrets import CLIENT, SERVER, conversation


def frame(command, ident, **values):
    made = encode(BY_COMMAND[command], {"size": 0, "magic": 0x4C, "command": command, "id": ident, **values})
    return (len(made) - 4).to_bytes(4, "big") + made[4:]


sent = [
    (CLIENT, frame(0x01, 1, user="ann", password="opensesame")),
    (SERVER, frame(0x81, 1, status=0)),
    (CLIENT, frame(0x02, 2, names=["hall", "attic"]) + frame(0x02, 3, names=[])),
    (SERVER, frame(0x82, 2, status=0, values=[{"value": "on", "lit": True}, {"value": None, "lit": False}])),
    (SERVER, frame(0x03, 0, text="the moon is up")),
    (SERVER, frame(0x82, 3, status=1, values=[])),
    (CLIENT, frame(0x02, 4, names=["cellar"])),
]
Path("captures/golden/lantern/talk.pcap").write_bytes(pcap(conversation(sent, 7999)))
"""

GENERIC = (
    "tests/golden/test_captures.py",
    "tests/properties/test_dissectors.py",
    "tests/spark/test_carry_golden.py",
    "tests/properties/test_layouts.py",
    "tests/scrub/test_golden_captures.py",
    "tests/spark/test_tables.py",
    "tests/test_damage.py",
    "tests/wireshark/test_plugin.py",
    "tests/test_structure.py",
)


def code(path: str) -> str:
    """The block of code that follows this name of a file."""
    found = re.search(rf"^`{re.escape(path)}`.*?:\n\n```python\n(.*?)^```$", TEXT, re.M | re.S)
    assert found is not None, path
    return found[1]


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The repository with Lantern and, of all captures, one of it alone."""
    tree: Path = tmp_path_factory.mktemp("lantern") / "tree"
    for part, left_out in (("dissect", "cli"), ("cli", ""), ("tests", "")):
        shutil.copytree(ROOT / part, tree / part, ignore=shutil.ignore_patterns("__pycache__", left_out))
    (tree / ".src").mkdir()
    (tree / ".src" / "streamdump").symlink_to("../dissect")
    (tree / "dissect" / "cli").symlink_to("../cli")
    shutil.copy(ROOT / "pyproject.toml", tree)
    (tree / "captures" / "golden" / "lantern").mkdir(parents=True)
    (tree / "dissect" / "protocols" / "lantern").mkdir()
    for name in ("layouts.py", "dissector.py", "__init__.py"):
        path = f"dissect/protocols/lantern/{name}"
        (tree / path).write_text(code(path))
    line = code("dissect/protocols/__init__.py")
    place = tree / "dissect" / "protocols" / "__init__.py"
    text = place.read_text()
    text = text.replace("\nfrom .mewbase", f"\n{line}from .mewbase")
    place.write_text(re.sub(r"^(PROTOCOLS: .*)\)$", r"\1, *LANTERN)", text, flags=re.M))
    run(tree, "-c", SPOKEN)
    return tree


def run(tree: Path, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": f"{tree / '.src'}{os.pathsep}{tree}"}
    made = subprocess.run([sys.executable, *arguments], cwd=tree, env=environment, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stdout[-3000:] + made.stderr[-3000:]
    return made.stdout


def test_it_is_read(copy: Path) -> None:
    said = run(copy, "-m", "streamdump", "captures/golden/lantern/talk.pcap")
    assert re.findall(r"lantern  (\w+)", said) == ["Hello", "Hello", "Get", "Get", "Get", "Flash", "Get", "Get", "Get"]
    assert "#2  hall  attic" in said
    assert re.search(r"Get +3 ms +! #3 +not found", said)
    details = run(copy, "-m", "streamdump", "-V", "-x", "captures/golden/lantern/talk.pcap")
    assert "opensesame" not in details
    assert "<redacted 10 bytes>" in details
    assert "Get is refused: not found" in run(copy, "-m", "streamdump", "diagnose", "captures/golden/lantern/talk.pcap")
    assert "values[].lit" in run(copy, "-m", "streamdump", "protocols", "lantern")


@pytest.mark.witness
def test_its_code_is_as_all_code_is(copy: Path) -> None:
    run(copy, "-m", "ruff", "check", "--no-cache", "dissect/protocols")
    run(copy, "-m", "ruff", "format", "--no-cache", "--check", "dissect/protocols")


@pytest.mark.witness
def test_its_types_are_told(copy: Path) -> None:
    run(copy, "-m", "mypy", "--cache-dir", str(copy / ".mypy_cache"), "-p", "streamdump.protocols.lantern")


@pytest.mark.spark
def test_what_holds_for_every_protocol_holds_for_it(copy: Path) -> None:
    said = run(copy, "-m", "pytest", "-q", "-p", "no:cacheprovider", *GENERIC, "-m", "not broker", "-k", "lantern or talk")
    passed = re.search(r"^(\d+) passed", said, re.M)
    assert passed is not None
    assert int(passed[1]) >= 10, said
