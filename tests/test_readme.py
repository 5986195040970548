"""What the pages show works, and they name what there is."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path

import pytest

from streamdump.cli.app import main
from streamdump.filter import compile_filter
from tests.support.pages import PAGES, ROOT, everything
from tests.support.peers import needs_capture
from tests.support.terminal import on_terminal

README = everything()
SHOWN = [
    (shown, argv)
    for argv, shown in re.findall(r"^(?:[^\n]* )?on a terminal \(`streamdump ([^`]+)`\):\n\n```\n(.*?)```", README, re.S | re.M | re.I)
]


def test_the_library_example_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    example = re.search(r"```python\n(import streamdump\n.*?)```", README, re.S)
    assert example is not None
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(compile(example[1], "dissect/README.md", "exec"), {})
    assert "client" in said.getvalue()
    assert "server" in said.getvalue()


def anchors(path: Path) -> set[str]:
    """The names by which headings of a page are linked."""
    titles = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", path.read_text(), flags=re.S | re.M), re.M)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"^```.*?^```", "", path.read_text(), flags=re.S | re.M)):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        there = path.parent / name if name else path
        assert there.exists(), link
        assert not anchor or anchor in anchors(there), link


def test_the_captures_it_names_are_there() -> None:
    named = re.findall(r"captures/golden/[\w./-]+pcap\w*", README)
    assert named
    assert all((ROOT / name).exists() for name in named)


@pytest.mark.parametrize(("shown", "argv"), SHOWN, ids=lambda one: one[:20])
def test_the_lines_it_shows_are_printed(shown: str, argv: str) -> None:
    _, printed = on_terminal([part if "/" not in part else str(ROOT / part) for part in shlex.split(argv)], 96, {"NO_COLOR": "1"})
    lines = {line.rstrip().replace(f"{ROOT}/", "") for line in printed.splitlines()}
    assert {line for line in shown.splitlines() if line not in lines} == {"  ..."}


def test_it_shows_lines() -> None:
    assert len(SHOWN) == 2


def test_the_recipe_is_of_calls_that_there_are() -> None:
    recipe = re.search(r"^## Find what went wrong\n.*?```sh\n(.*?)```", README, re.S | re.M)
    assert recipe is not None
    calls = [shlex.split(call, comments=True) for line in recipe[1].splitlines() for call in line.split(" && ")]
    mine = [call[1:] for call in calls if call[0] == "streamdump"]
    assert len(mine) == 7
    for call in mine:
        assert "-Y" not in call or not compile_filter(call[call.index("-Y") + 1]).hints
        names = [part for part in call if part.endswith((".pcap", ".pcapng"))]
        wrong = [part if part not in names else "none/such" for part in call]
        assert main(wrong) in (2, 3)


def test_the_filters_it_shows_are_filters() -> None:
    shown = re.search(r"<!-- filters -->\n```sh\n(.*?)```", README, re.S)
    assert shown is not None
    calls = [shlex.split(line) for line in shown[1].splitlines()]
    assert len(calls) == 8
    for call in calls:
        assert not compile_filter(call[call.index("-Y") + 1]).hints


def test_the_wrong_filter_it_shows_is_refused_so(capsys: pytest.CaptureFixture[str]) -> None:
    shown = re.search(r"```\n(streamdump: -Y: .*?)```", README, re.S)
    assert shown is not None
    expression = shown[1].splitlines()[1].removeprefix("streamdump:").strip()
    assert main(["-Y", expression, "x.pcap"]) == 2
    assert capsys.readouterr().err == shown[1]


def port_in_use(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


WORKFLOW = re.search(r"<!-- workflow -->\n```yaml\n(.*?)```", README, re.S)
STEP = re.compile(r"^ {6}- run: (?:\|\n((?: {10}.*\n)+)|(.*)\n)", re.M)

CLIENT = """
import os, sys
sys.path.insert(0, {root!r})
from pathlib import Path
from tests.support.peers import Pair, said
with Pair(5552) as pair:
    pair.replay(said(Path(os.environ["SAYS"])))
"""


def steps() -> list[str]:
    """The shell steps of the workflow."""
    assert WORKFLOW is not None
    return [textwrap.dedent(many) if many else one for many, one in STEP.findall(WORKFLOW[1])]


@needs_capture
@pytest.mark.skipif(shutil.which("tcpdump") is None or os.geteuid() != 0, reason="needs tcpdump and root")
@pytest.mark.skipif(port_in_use(5552), reason="port 5552 is in use")
def test_the_steps_of_the_workflow_find_a_changed_handshake(tmp_path: Path) -> None:
    """As written, but that the container's server is a replay, and root needs no sudo."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name, text in (("sudo", 'exec "$@"'), ("docker", '[ "$*" = "compose up --detach --wait" ]')):
        (tools / name).write_text(f"#!/bin/sh\n{text}\n")
        (tools / name).chmod(0o755)
    (tmp_path / "requirements.txt").write_text("")
    (tmp_path / "tests").mkdir()
    # The real one would take the place of what is tested: pip looks at it, and no more.
    with zipfile.ZipFile(tmp_path / "tests" / "streamdump-0.1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("streamdump-0.1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: streamdump\nVersion: 0.1.0\n")
        wheel.writestr("streamdump-0.1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("streamdump-0.1.0.dist-info/RECORD", "")
    (tmp_path / "tests" / "login.py").write_text(CLIENT.format(root=str(ROOT)))
    environment = {**os.environ, "PATH": f"{tools}:{Path(sys.executable).parent}:{os.environ['PATH']}", "USER": "root"}
    environment |= {"PIP_NO_INDEX": "1", "PIP_DRY_RUN": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "GITHUB_WORKSPACE": str(tmp_path)}
    environment.pop("CI", None)

    def run(step: str, capture: str) -> subprocess.CompletedProcess[str]:
        info = {"SAYS": str(ROOT / "captures" / "golden" / "rabbitmq-stream" / f"{capture}.pcap")}
        bash = ["bash", "-e", "-c", step]
        return subprocess.run(bash, cwd=tmp_path, env=environment | info, capture_output=True, text=True, timeout=120, check=False)

    install, serve, record, check = steps()
    for step in (install, serve, record, f"{check.strip()} --update"):
        done = run(step, "handshake_close_405")
        assert done.returncode == 0, (step, done.stderr)
    assert (tmp_path / "tests" / "golden" / "login.pcap.golden").exists()
    environment["CI"] = "true"
    for step in (record, check):
        done = run(step, "handshake_close_405")
        assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr
    run(record, "wrong_password_405")
    done = run(check, "wrong_password_405")
    assert done.returncode == 1
    assert "SaslAuthenticate answered `authentication failure`, golden `OK` (packet " in done.stdout
    assert re.search(
        r"^::error file=tests/golden/login.pcap.golden,line=[0-9]+,title=login.pcap::conversation client1: ", done.stdout, re.M
    )
    assert (tmp_path / "report.xml").read_text().count("<failure") == 1


def test_the_settings_it_shows_are_settings(tmp_path: Path) -> None:
    from streamdump.golden.settings import read_settings

    shown = re.search(r"```toml\n(.*?)```", README, re.S)
    assert shown is not None
    (tmp_path / "pyproject.toml").write_text(shown[1])
    settings = read_settings(tmp_path / "pyproject.toml")
    assert settings is not None
    assert settings.protocols["rabbitmq-stream"]["Open"].max_latency == {"Open": 20_000_000}
    assert settings.always.mask.pattern == {"fields.stream": "orders-[0-9]+"}


def test_the_difference_it_shows_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    shown = re.search(r"```\n(tests/login.pcap: 1 difference.*?)```", README, re.S)
    assert shown is not None
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CI", raising=False)
    Path("tests").mkdir()
    shutil.copy(ROOT / "captures" / "golden" / "rabbitmq-stream" / "create_delete_310.pcap", "tests/login.pcap")
    assert main(["check", "tests", "--update"]) == 0
    golden = Path("tests/login.pcap.golden")
    refused = '< Create refused  version=1  response_code=5:"stream already exists"'
    assert refused in golden.read_text()
    golden.write_text(golden.read_text().replace(refused, '< Create answered  version=1  response_code=1:"OK"'))
    capsys.readouterr()
    assert main(["check", "tests"]) == 1
    assert capsys.readouterr().out == shown[1]
