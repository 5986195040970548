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
from importlib import import_module
from pathlib import Path

import pytest

from streamdump.cli.app import main
from streamdump.cli.exits import ExitCode
from streamdump.cli.run import COMMANDS
from streamdump.filter import compile_filter
from streamdump.render.schema import schema
from tests.support import manual
from tests.support.pages import CONSOLE, LEFT_OUT, PAGES, ROOT, everything, page, printed, shown
from tests.support.peers import needs_capture
from tests.support.picture import PICTURE, picture
from tests.support.picture import shown as pictured

README = everything()


def test_the_library_examples_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    section = page("dissect/README.md").partition("## Library\n")[2].partition("\n## ")[0]
    examples = re.findall(r"```python\n(.*?)```", section, re.S)
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        for example in examples:
            exec(compile(example, "dissect/README.md", "exec"), {})
    lines = said.getvalue().splitlines()
    assert [line.split()[0] for line in lines] == ["client", "server", "pe", "ping"]


def test_what_is_public_is_there() -> None:
    """The modules that the page of the library lists say what they offer, and have it."""
    table = page("dissect/README.md").partition("The public names")[2].partition("\n\n| error")[0]
    rows = re.findall(r"^\| `(streamdump[.a-z]*)` \| (.*) \|$", table, re.M)
    assert len(rows) == 8
    for name, text in rows:
        module = import_module(name)
        assert all(hasattr(module, one) for one in module.__all__), name
        named = [one for one in re.findall(r"`(\w+)`", text) if not one.islower()]
        assert set(named) <= set(module.__all__), name


def test_the_contract_has_the_keys_of_the_schema() -> None:
    kinds = schema()["$defs"]
    text = page("dissect/README.md").partition("## The JSON\n")[2]
    cells = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", text.partition("The other records")[0], re.M)
    assert re.findall(r"\w+", ",".join(cells)) == list(kinds["message"]["properties"])
    first = re.search(r"begin with `([^`]+)`", text)
    assert first is not None
    rows = re.findall(r"^\| `(\w+)` \| `([^`]+)` \|", text, re.M)
    assert [name for name, _ in rows] == ["exchange", "ending", "gap", "finding"]
    for name, keys in rows:
        assert f"{first[1]}, {keys}".split(", ") == list(kinds[name]["properties"])


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
    named = re.findall(r"captures/golden/[\w./-]+?\.pcap(?:ng)?(?:\.\w+)?\b", README)
    assert named
    assert all((ROOT / name).exists() for name in named)


CALLS = [pair for path in PAGES for block in CONSOLE.findall(path.read_text()) for pair in shown(block)]


@pytest.mark.parametrize(("call", "lines"), CALLS, ids=lambda one: one[:60] if isinstance(one, str) else "")
def test_the_lines_they_show_are_printed(call: str, lines: list[str]) -> None:
    said = printed(call)
    pieces = "\n".join(lines).split(f"\n{LEFT_OUT}\n")
    pattern = "\n(?:.*\n)*?".join(re.escape(piece) for piece in pieces)
    assert re.fullmatch(pattern, "\n".join(said)), "\n".join(said)


def test_the_picture_is_of_what_is_printed() -> None:
    words = [re.findall(r"<text [^>]*>(.*?)</text>", svg) for svg in (PICTURE.read_text(), picture(pictured()))]
    assert words[0] == words[1], "python -m tests.support draws it anew"


@pytest.mark.parametrize("path", manual.files())
def test_the_manual_and_completion_are_of_what_there_is(path: str) -> None:
    assert (manual.SHARE / path).read_text() == manual.files()[path], "python -m tests.support writes it anew"


def test_the_exit_codes_are_those_that_there_are() -> None:
    assert [int(code) for code in re.findall(r"^\| (\d+) \|", page("cli/README.md"), re.M)] == sorted(ExitCode)


def test_every_command_has_its_line() -> None:
    """A new command has a row in `cli/README.md`, with a link if it has a page."""
    rows = page("cli/README.md").partition("## All commands\n")[2].partition("\n\nThese options")[0]
    assert set(COMMANDS) <= set(re.findall(r"^\| \[?`([a-z]+)", rows, re.M))
    pages = [path.name for path in (ROOT / "cli" / "docs").glob("*.md")]
    linked = page("README.md") + page("cli/README.md") + page("cli/docs/cookbook.md")
    assert [name for name in pages if f"docs/{name}" not in linked] == []


def test_the_cookbook_has_what_it_shows() -> None:
    entries = re.split(r"^## ", page("cli/docs/cookbook.md"), flags=re.M)[1:]
    assert len([entry for entry in entries if "```console\n$ streamdump " in entry and "captures/golden/" in entry]) >= 15


def test_the_first_page_is_short() -> None:
    assert len(page("README.md").encode()) <= 8_192


SMALL = ROOT / "captures" / "golden" / "rabbitmq-stream" / "handshake_close_310.pcap"
WRITTEN = ("-w", "--html", "--junit", ">")
IS_CAPTURE = re.compile(r"(?!/|captures/).*\.(pcap|pcapng)(\.gz|\.zst)?")


def calls_of(path: Path) -> list[list[str]]:
    """Every call of streamdump in the `sh` blocks of a page, in their order."""
    found = []
    for block in re.findall(r"^```sh\n(.*?)^```", path.read_text(), re.S | re.M):
        for line in block.splitlines():
            lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;>")
            lexer.whitespace_split = True
            call: list[str] = []
            for word in [*lexer, ";"]:
                if word in ("|", "&&", ";", "&", "||"):
                    found += [call[1:]] if call and call[0].endswith("streamdump") else []
                    call = []
                else:
                    call.append(word)
    return found


@pytest.mark.parametrize("path", [path for path in PAGES if calls_of(path)], ids=lambda path: str(path.relative_to(ROOT)))
def test_their_commands_run(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """On a small capture under the names they use. A live one on an interface that is not there, what needs Spark, a terminal or another
    extra as far as its options."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "captures").symlink_to(ROOT / "captures")
    (tmp_path / "tests").mkdir()
    (tmp_path / "keys.log").write_text("# none yet\n")
    for name in ("tests/login.pcap", "a.pcap"):
        shutil.copy(SMALL, name)
    for call in calls_of(path):
        if "-Y" in call:
            assert not compile_filter(call[call.index("-Y") + 1]).hints
        if ">" in call:
            del call[call.index(">") :]
        for before, word in zip(["", *call], call, strict=False):
            name = word.replace("*", "many")
            if before not in WRITTEN and IS_CAPTURE.fullmatch(word):
                shutil.copy(SMALL, name)
        arguments = [str(SMALL) if word == "-" else word for word in call]
        arguments = [str(one) for word in arguments for one in (sorted(Path().glob(word)) if "*" in word and "=" not in word else [word])]
        optional = call[0] in ("pipeline", "browse", "mcp", "metrics")
        live = "-i" in arguments and not optional
        arguments = ["none0" if before == "-i" else word for before, word in zip(["", *arguments], arguments, strict=False)]
        if optional:
            arguments.append("--help")
        code = main(arguments)
        # A filter is compiled first, for which libpcap may be missing.
        assert code in ((4, 2) if "-f" in arguments else (4,) if live else (0, 1)), (call, code, capsys.readouterr().err)


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

    shown = re.search(r"```toml\n(\[tool.*?)```", README, re.S)
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
