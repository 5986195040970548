"""What a release, CI and other projects' CI use: workflows, pinned versions, hooks."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from streamdump import errors
from tests.support.captures import GOLDEN
from tests.support.pages import ROOT, page

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
ACTION = ROOT / ".github" / "actions" / "check" / "action.yml"
CONSTRAINTS = ROOT / ".ci" / "constraints.txt"
PINNED = re.compile(r"[\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+(\.\d+)*")
INSTALLS = 600
"""Seconds that an installation from an index may take."""


@pytest.mark.parametrize("path", [*WORKFLOWS, ACTION], ids=lambda path: path.name)
def test_actions_of_others_are_pinned_by_commit(path: Path) -> None:
    used = re.findall(r"uses: (.*)", re.sub(r"^#.*$", "", path.read_text(), flags=re.M))
    assert used and [one for one in used if not PINNED.fullmatch(one)] == []


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_may_read_and_only_the_one_that_publishes_may_prove_who_it_is(path: Path) -> None:
    text = path.read_text()
    assert "\npermissions:\n  contents: read\n" in text
    granted = re.findall(r"^ +([\w-]+): (?:write|write-all)$", text, re.M)
    assert granted == (["id-token"] if path.name == "release.yml" else [])
    for name, *lines in (job.splitlines() for job in re.split(r"\n(?=  [\w-]+:\n)", text.partition("\njobs:\n")[2])):
        job = "\n".join(lines)
        assert ("id-token: write" in job) is ("environment: pypi" in job) is (name.strip() == "publish:")
        assert "timeout-minutes" in job and "secrets." not in job


def test_no_system_changes_line_ends_when_it_checks_files_out() -> None:
    """Shells and the list of versions cannot be read with those of Windows."""
    assert "* -text" in (ROOT / ".gitattributes").read_text().splitlines()


def named(one: Requirement) -> str:
    return re.sub("[-_.]+", "-", one.name.lower())


def pins() -> dict[str, list[Requirement]]:
    found: dict[str, list[Requirement]] = {}
    for line in re.findall(r"^([A-Za-z0-9][^\\\n]*?) *\\?$", CONSTRAINTS.read_text(), re.M):
        one = Requirement(line)
        found.setdefault(named(one), []).append(one)
    return found


def test_every_pinned_version_has_hashes_and_no_address() -> None:
    text = CONSTRAINTS.read_text()
    assert "://" not in text and "index" not in text.partition("\n")[2].partition("==")[0]
    for block in re.split(r"\n(?=[A-Za-z0-9])", text)[1:]:
        assert re.match(r"[\w.-]+(\[.*\])?==[\w.!+]+", block) and "--hash=sha256:" in block


def test_the_pinned_versions_are_of_all_that_is_installed_here() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    wanted = [*project["project"]["dependencies"], *project["build-system"]["requires"]]
    wanted += [one for name, some in extras.items() if name != "fuzz" for one in some]
    wanted += [line for line in (ROOT / ".ci" / "tools.txt").read_text().splitlines() if line and line[0] != "#"]
    known = pins()
    for one in map(Requirement, wanted):
        versions = known.get(named(one), []) if one.name != "streamdump" else None
        assert versions is None or (versions and all(one.specifier.contains(str(pin.specifier)[2:]) for pin in versions)), one


def test_the_versions_alone_are_what_pip_takes_beside_a_checkout() -> None:
    done = subprocess.run(["sh", ROOT / ".ci" / "constraints", "--versions"], capture_output=True, text=True, check=True, timeout=60)
    said = [Requirement(line) for line in done.stdout.splitlines()]
    assert {str(one) for one in said} == {str(one) for some in pins().values() for one in some}


def test_the_hook_is_for_captures() -> None:
    (pattern,) = re.findall(r"files: (.*)", (ROOT / ".pre-commit-hooks.yaml").read_text())
    for name in ("a.pcap", "b/c.pcapng", "d.cap", "e.pcap.gz", "f.pcapng.zst"):
        assert re.search(pattern, name), name
    for name in ("a.pcap.golden", "pcap", "capture.py", "a.pcap.gz.txt"):
        assert not re.search(pattern, name), name


@pytest.mark.parametrize(
    "name",
    [
        "README.md",
        "cli/README.md",
        "dissect/spark/README.md",
        *(f"cli/docs/{path.name}" for path in sorted((ROOT / "cli/docs").glob("*.md"))),
    ],
)
def test_documented_tcpdump_has_a_buffer_and_sends_at_once_only_into_a_pipe(name: str) -> None:
    """With the default buffer and every packet sent at once, 27 to 86 packets of a burst of 6,000 messages were lost."""
    for call in re.findall(r"\btcpdump(?: [^\n`|]*)? -(?:i|w) [^\n`]*", page(name)):
        if " -r " not in call:
            assert "-B 65536" in call, call
            assert ("-U" in call or "--immediate-mode" in call) is bool(
                re.search(r"-w - .*\|", call.replace('"', " ").replace("'", " "))
            ), call


def test_what_to_install_is_a_command_that_works_before_anything_is_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert errors.how_to_install("spark") == f"pip install '.[spark]' in {ROOT}"
    monkeypatch.setattr(errors, "ROOT", tmp_path)
    said = errors.how_to_install("spark")
    assert re.fullmatch(r"pip install 'streamdump-\S+-py3-none-any\.whl\[spark\]', with the path of that file", said)
    for folder in ("dissect", "cli"):
        for path in (ROOT / folder).rglob("*.py"):
            assert not re.search(r"pip install '?streamdump", path.read_text()), path


def workspace(tmp_path: Path) -> Path:
    """A project with a capture and its golden file."""
    folder = tmp_path / "project"
    folder.mkdir()
    shutil.copy(GOLDEN / "rabbitmq-stream" / "js_publish_consume_405.pcap", folder / "login.pcap")
    subprocess.run([sys.executable, "-m", "streamdump", "check", "login.pcap", "--update", "--force"], cwd=folder, check=True, timeout=60)
    return folder


@pytest.mark.broker
@pytest.mark.parametrize("file", [".github/workflows/check.yml", ".github/actions/check/action.yml"])
def test_the_check_of_other_projects(file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = workspace(tmp_path)
    monkeypatch.setenv("WORKSPACE", str(folder))
    call = [sys.executable, str(ROOT / ".ci" / "workflow"), str(ROOT / file), *([f"version={ROOT}"] if "workflows" in file else [])]
    done = subprocess.run(call, capture_output=True, text=True, timeout=INSTALLS, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert 'failures="0"' in (folder / "streamdump.xml").read_text()
    golden = folder / "login.pcap.golden"
    golden.write_text(golden.read_text().replace("Open", "Closed", 1))
    done = subprocess.run(call, capture_output=True, text=True, timeout=INSTALLS, check=False)
    assert done.returncode == 1 and "::error" in done.stdout
    assert 'failures="1"' in (folder / "streamdump.xml").read_text()


@pytest.mark.broker
def test_the_hook_checks_changed_captures(tmp_path: Path) -> None:
    folder = workspace(tmp_path)
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    subprocess.run(["git", "add", "."], cwd=folder, check=True)
    call = [sys.executable, "-m", "pre_commit", "try-repo", str(ROOT), "streamdump-check", "--all-files"]
    assert subprocess.run(call, cwd=folder, timeout=INSTALLS, check=False).returncode == 0
    golden = folder / "login.pcap.golden"
    golden.write_text(golden.read_text().replace("Open", "Closed", 1))
    assert subprocess.run(call, cwd=folder, timeout=INSTALLS, check=False).returncode == 1
