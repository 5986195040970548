"""`streamdump check`: which golden file belongs to which capture, what is told, reports, exit codes, and recording a command."""

from __future__ import annotations

import json
import os
import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from streamdump.cli.app import main
from streamdump.cli.exits import ExitCode
from tests.cli import test_hostile as hostile
from tests.cli.test_hostile import HOSTILE
from tests.support.peers import GOLDEN, free_port, needs_capture, said
from tests.tls.peers import Wire, talk

HANDSHAKE = GOLDEN / "rabbitmq-stream" / "handshake_close_405.pcap"
REFUSED = GOLDEN / "rabbitmq-stream" / "vhost_failure_405.pcap"
OTHER = GOLDEN / "iggy" / "py080-errors.pcap"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two captures, one of them in a folder of its own, with their golden files."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "captures" / "iggy").mkdir(parents=True)
    shutil.copy(HANDSHAKE, tmp_path / "captures" / "login.pcap")
    shutil.copy(OTHER, tmp_path / "captures" / "iggy" / "errors.pcap")
    assert main(["check", "captures", "--update"]) == ExitCode.DONE
    return tmp_path / "captures"


def checked(capsys: pytest.CaptureFixture[str], *argv: str, code: ExitCode = ExitCode.DONE) -> tuple[str, str]:
    capsys.readouterr()
    assert main(["check", *argv]) == code
    out, err = capsys.readouterr()
    return out, err


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def test_golden_files_stand_beside_their_captures(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (folder / "login.pcap.golden").exists()
    assert (folder / "iggy" / "errors.pcap.golden").exists()
    assert checked(capsys, "captures") == ("", "streamdump: 2 captures: 2 match their golden files\n")
    assert checked(capsys, "captures/login.pcap") == ("", "streamdump: 1 capture: 1 matches its golden file\n")
    assert checked(capsys, "captures", "--update") == ("", "streamdump: 2 captures: 2 with an unchanged golden file\n")


def test_golden_files_in_a_folder_of_their_own(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checked(capsys, "captures", "--golden", "expected", "--update")
    assert sorted(str(path) for path in Path("expected").rglob("*.golden")) == [
        "expected/iggy/errors.pcap.golden",
        "expected/login.pcap.golden",
    ]
    checked(capsys, "captures", "--golden", "expected")
    checked(capsys, "captures/login.pcap", "--golden", "expected")
    _, err = checked(capsys, "captures/login.pcap", "captures/iggy/errors.pcap", "--golden", "nowhere", code=ExitCode.FOUND)
    assert err == "streamdump: 2 captures: 2 without a golden file\n"
    shutil.copy(HANDSHAKE, folder / "iggy" / "login.pcap")
    _, err = checked(capsys, "captures/login.pcap", "captures/iggy/login.pcap", "--golden", "expected", code=ExitCode.USAGE)
    assert "would both have the golden file expected/login.pcap.golden" in err


def test_a_missing_golden_file_fails_and_one_of_no_use_is_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "login.pcap.golden").rename(folder / "gone.pcap.golden")
    out, err = checked(capsys, "captures", code=ExitCode.FOUND)
    assert out.splitlines() == [
        "captures/login.pcap: there is no golden file captures/login.pcap.golden; check --update writes it",
        "captures/gone.pcap.golden: no capture for this golden file; restore the capture or delete the file",
    ]
    assert err == "streamdump: 2 captures: 1 matches its golden file, 1 without a golden file\n"
    (folder / "login.pcap").rename(folder / "gone.pcap")
    (folder / "old.pcap.golden").write_text("")
    out, _ = checked(capsys, "captures")
    assert out == "captures/old.pcap.golden: no capture for this golden file; restore the capture or delete the file\n"


def test_a_difference_is_told_on_standard_output(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change(folder / "login.pcap.golden", 'closing_reason="done – bye"', 'closing_reason="bye"')
    out, err = checked(capsys, "captures", code=ExitCode.FOUND)
    lines = out.splitlines()
    assert lines[:2] == [
        "captures/login.pcap: 1 difference from captures/login.pcap.golden",
        '  conversation client1: Close request: closing_reason is "done – bye", golden "bye" (packet 18)',
    ]
    assert '      - > Close  closing_reason="bye"' in lines
    assert '      + > Close  closing_reason="done – bye"' in lines
    assert err == "streamdump: 2 captures: 1 matches its golden file, 1 different\n"
    assert checked(capsys, "captures", "--ignore", "closing_reason")[0] == ""
    assert checked(capsys, "captures", "--ignore", "fields.closing_reason")[0] == ""
    assert checked(capsys, "captures", "--only", "handshake")[0] == ""
    assert checked(capsys, "captures", code=ExitCode.FOUND)[0] == out


def test_an_answer_is_told_by_what_it_means(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change(folder / "iggy" / "errors.pcap.golden", '2013:"topic_name_already_exists"', '0:"ok"')
    out, _ = checked(capsys, "captures", code=ExitCode.FOUND)
    assert "  conversation client1: create_topic answered `topic_name_already_exists`, golden `ok` (packet " in out


def test_a_damaged_golden_file_fails_and_update_writes_it_anew(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (folder / "login.pcap.golden").read_text()
    (folder / "login.pcap.golden").write_text(f"<<<<<<< HEAD\n{text}")
    out, _ = checked(capsys, "captures", code=ExitCode.FOUND)
    assert out.startswith("captures/login.pcap: captures/login.pcap.golden:1: a golden file begins with 'streamdump golden'")
    checked(capsys, "captures", "--update")
    assert (folder / "login.pcap.golden").read_text() == text


@pytest.mark.parametrize("kind", ["device", "fifo", "loop", "folder", "large"])
def test_a_golden_file_is_a_regular_one_of_a_bounded_size(kind: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """CI takes them from branches of strangers."""
    golden = folder / "login.pcap.golden"
    kept = golden.read_bytes()
    golden.unlink()
    if kind == "device":
        golden.symlink_to("/dev/zero")
    elif kind == "loop":
        golden.symlink_to(golden)
    elif kind == "fifo":
        os.mkfifo(golden)
    elif kind == "folder":
        golden.mkdir()
    else:
        golden.write_bytes(kept + b"#" * (8 << 20))
    reason = {"loop": "cannot be read: ", "large": "is larger than 8,192 KiB"}.get(kind, "is not a regular file")
    out, err = checked(capsys, "captures", code=ExitCode.FOUND)
    assert f"captures/login.pcap.golden:1: {reason}" in out
    assert err.endswith("2 captures: 1 matches its golden file, 1 different\n")
    if kind != "folder":
        checked(capsys, "captures", "--update")
        assert golden.read_bytes() == kept
        assert not golden.is_symlink()


def test_a_capture_that_is_no_regular_file_is_not_waited_for(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(folder / "x.pcap")
    _, err = checked(capsys, "captures/x.pcap", code=ExitCode.UNREADABLE)
    assert "captures/x.pcap: is not a regular file" in err


@pytest.mark.parametrize("kind", ["device", "fifo", "deep"])
def test_settings_that_mean_harm_are_one_error(kind: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder / "streamdump.toml"
    if kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path.write_text(f"[check]\nignore = {'[' * 20_000}\n")
    out, err = checked(capsys, "captures", "--config", str(path), code=ExitCode.USAGE)
    reason = "too many tables or lists in each other" if kind == "deep" else "is not a regular file"
    assert (out, err) == ("", f"streamdump: {path}: {reason}\n")
    # What is found on the way up is a regular file, or none
    code = ExitCode.USAGE if kind == "deep" else ExitCode.DONE
    checked(capsys, "captures", code=code)


def test_files_of_a_folder_that_are_no_captures_are_counted(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "notes.cap").write_text("words")
    (folder / "more.pcap").write_text("words")
    (folder / "README.md").write_text("words")
    _, err = checked(capsys, "captures")
    assert err == (
        "streamdump: 2 files skipped: named as captures, but not in a capture format\nstreamdump: 2 captures: 2 match their golden files\n"
    )
    # What is named, has a golden file or is empty should have been one
    checked(capsys, "captures/more.pcap", code=ExitCode.UNREADABLE)
    (folder / "more.pcap.golden").write_text("streamdump golden 1\n")
    assert "more.pcap: is not a capture" in checked(capsys, "captures", code=ExitCode.UNREADABLE)[1]
    (folder / "more.pcap.golden").unlink()
    (folder / "more.pcap").write_text("")
    assert "more.pcap: is empty" in checked(capsys, "captures", code=ExitCode.UNREADABLE)[1]


def test_an_unreadable_capture_wins(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change(folder / "login.pcap.golden", "PeerProperties", "PeerThings")
    data = (folder / "iggy" / "errors.pcap").read_bytes()
    (folder / "iggy" / "errors.pcap").write_bytes(data[:-10])
    out, err = checked(capsys, "captures", code=ExitCode.UNREADABLE)
    assert "1 difference" in out or "2 differences" in out
    assert "captures/iggy/errors.pcap: cut off in packet" in err
    golden = (folder / "iggy" / "errors.pcap.golden").read_text()
    _, err = checked(capsys, "captures", "--update", code=ExitCode.UNREADABLE)
    assert (folder / "iggy" / "errors.pcap.golden").read_text() == golden
    _, err = checked(capsys, "nothing.pcap", code=ExitCode.UNREADABLE)
    assert err.startswith("streamdump: nothing.pcap: no such file\n")


def test_update_is_refused_where_ci_is_set(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "login.pcap.golden").unlink()
    monkeypatch.setenv("CI", "true")
    _, err = checked(capsys, "captures", "--update", code=ExitCode.USAGE)
    assert err.startswith("streamdump: --update does not write golden files where CI is set")
    assert not (folder / "login.pcap.golden").exists()
    checked(capsys, "captures", "--update", "--force")
    assert (folder / "login.pcap.golden").exists()


@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        ([], "no capture given"),
        (["-"], "standard input has no file name for a golden file"),
        (["captures/login.pcap.golden"], "is a golden file; name the capture, captures/login.pcap"),
        (["empty"], "no captures in this folder"),
        (["captures", "--only", "handshakes"], "--only handshakes: must be all, handshake or names; did you mean handshake?"),
        (["captures", "--ignore", "chunk.timestamp"], "--ignore 'chunk.timestamp' is not a field; write it from fields. on"),
        (["captures", "--force"], "--force needs --update"),
        (["captures", "--json", "--github"], "choose one"),
        (["captures", "-i", "lo"], "-i needs --run COMMAND"),
        (["captures", "--run", "true"], "--run COMMAND needs -i INTERFACE"),
        (["captures", "--config", "pyproject.toml"], "no [tool.streamdump.check] section; add one, or name another file"),
        (["captures", "--junit", "nowhere/x.xml"], "--junit nowhere/x.xml: cannot be written: no such file or directory"),
    ],
)
def test_wrong_calls(folder: Path, argv: list[str], reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("empty").mkdir()
    Path("pyproject.toml").write_text("[tool.other]\n")
    _, err = checked(capsys, *argv, code=ExitCode.USAGE)
    assert reason in err


def test_a_capture_named_like_the_command(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy(HANDSHAKE, "check")
    assert main(["-r", "check", "-q"]) == ExitCode.DONE
    checked(capsys, "-r", "check", "--update")
    assert Path("check.golden").exists()
    checked(capsys, "check")


def test_settings_that_do_nothing_are_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("streamdump.toml").write_text('[check]\nignore = ["fields.closing_raeson", "closing_code"]\n')
    _, err = checked(capsys, "captures")
    assert err.splitlines()[1:] == ["streamdump: fields.closing_raeson: no message has this field, so its settings have no effect"]


def test_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change(folder / "login.pcap.golden", 'closing_reason="done – bye"', 'closing_reason="bye"')
    out, _ = checked(capsys, "captures", "--json", code=ExitCode.FOUND)
    made = [json.loads(line) for line in out.splitlines()]
    assert [(one["record"], one["v"], one["capture"], one["outcome"]) for one in made] == [
        ("check", 1, "captures/iggy/errors.pcap", "same"),
        ("check", 1, "captures/login.pcap", "different"),
    ]
    (difference,) = made[1]["differences"]
    assert {key: difference[key] for key in ("kind", "conversation", "message", "packet")} == {
        "kind": "field",
        "conversation": "client1",
        "message": "Close",
        "packet": 18,
    }
    assert difference["changes"] == [{"field": "closing_reason", "golden": '"bye"', "got": '"done – bye"'}]
    assert (folder / "login.pcap.golden").read_text().splitlines()[difference["line"] - 1].startswith("  > Close")


def test_a_name_in_no_encoding(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = os.fsdecode(b"captures/\xff.pcap")
    shutil.copy(HANDSHAKE, name)
    out, _ = checked(capsys, name, "--json", code=ExitCode.FOUND)
    assert json.loads(out)["capture"] == r"captures/\xff.pcap"


def test_annotations_for_github(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    golden = folder / "login.pcap.golden"
    change(golden, 'closing_reason="done – bye"', 'closing_reason="100%, ##[error]\\n::stop-commands::x"')
    (folder / "iggy" / "errors.pcap.golden").rename(folder / "gone,1.pcap.golden")
    monkeypatch.chdir(folder.parent.parent)
    monkeypatch.setenv("GITHUB_WORKSPACE", str(folder.parent))
    out, _ = checked(capsys, str(folder), "--github", code=ExitCode.FOUND)
    lines = out.splitlines()
    commands = [line for line in lines if line.lstrip().startswith("::") or "##[" in line]
    number = next(at for at, line in enumerate(golden.read_text().splitlines(), 1) if "##[error]" in line)
    assert [line.partition("::")[2].partition("::")[0].replace(str(folder), "captures") for line in commands] == [
        "error file=captures/iggy/errors.pcap,title=captures/iggy/errors.pcap",
        f"error file=captures/login.pcap.golden,line={number},title=captures/login.pcap",
        "warning file=captures/gone%2C1.pcap.golden,line=1,title=captures/gone%2C1.pcap.golden",
    ]
    assert 'golden "100%25, #\\u0023[error]\\n::stop-commands::x" (packet 18)%0A' in commands[1]


def test_no_report_in_place_of_a_capture_or_a_golden_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = {one: one.read_bytes() for one in folder.rglob("*") if one.is_file()}
    for one in kept:
        if one.suffix in (".pcap", ".golden"):
            _, err = checked(capsys, "captures", "--junit", str(one), code=ExitCode.USAGE)
            assert err.endswith(f"--junit {one}: is an input; inputs are never overwritten\n")
    assert {one: one.read_bytes() for one in folder.rglob("*") if one.is_file()} == kept


# JUnit: what the schema of the Ant task and that of Jenkins' xUnit plugin (junit-10) both ask for.

WHOLE, TEXT, SECONDS, STAMP = r"[0-9]+", r".*", r"[0-9]+\.[0-9]+", r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}"
JUNIT: dict[str, tuple[dict[str, str], list[str]]] = {
    "testsuites": ({"name": TEXT, "tests": WHOLE, "failures": WHOLE, "errors": WHOLE, "time": SECONDS}, ["testsuite*"]),
    "testsuite": (
        {
            "name": r".+",
            "tests": WHOLE,
            "failures": WHOLE,
            "errors": WHOLE,
            "time": SECONDS,
            "skipped": WHOLE,
            "timestamp": STAMP,
            "hostname": r".+",
            "package": TEXT,
            "id": WHOLE,
        },
        ["properties", "testcase*", "system-out", "system-err"],
    ),
    "properties": ({}, []),
    "testcase": ({"name": r".+", "classname": r".+", "time": SECONDS}, ["error?", "failure?"]),
    "error": ({"message": TEXT, "type": r".+"}, []),
    "failure": ({"message": TEXT, "type": r".+"}, []),
    "system-out": ({}, []),
    "system-err": ({}, []),
}
"""By element: its attributes, all of which must be there, and its children in order: one, `?` at most one, `*` any number."""


def valid(element: ElementTree.Element) -> None:
    attributes, children = JUNIT[element.tag]
    assert set(element.attrib) == set(attributes), element.tag
    for name, pattern in attributes.items():
        assert re.fullmatch(pattern, element.attrib[name], re.S), (element.tag, name)
    pattern = "".join(f"(?:{re.escape(child.rstrip('?*'))} ){child[-1] if child[-1] in '?*' else ''}" for child in children)
    assert re.fullmatch(pattern, "".join(f"{child.tag} " for child in element)), element.tag
    for child in element:
        valid(child)


def test_junit(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change(folder / "login.pcap.golden", 'closing_reason="done – bye"', 'closing_reason="<&>\\u0001 \\ufffe]]>"')
    shutil.copy(REFUSED, folder / "new.pcap")
    (folder / "cut.pcap").write_bytes(HANDSHAKE.read_bytes()[:-1])
    checked(capsys, "captures", "--junit", "report.xml", code=ExitCode.UNREADABLE)
    root = ElementTree.parse("report.xml").getroot()
    valid(root)
    suite = root[0]
    assert (suite.attrib["tests"], suite.attrib["failures"], suite.attrib["errors"]) == ("4", "2", "1")
    cases = {case.attrib["name"]: case for case in suite.iter("testcase")}
    assert [case.attrib["classname"] for case in cases.values()] == ["captures", "captures/iggy", "captures", "captures"]
    assert cases["cut.pcap"][0].tag == "error"
    assert not len(cases["errors.pcap"])
    assert cases["new.pcap"][0].attrib["type"] == "no-golden"
    message = cases["login.pcap"][0].attrib["message"]
    assert message.startswith("conversation client1: Close request: closing_reason is ")
    assert message in (cases["login.pcap"][0].text or "")


# TLS


@pytest.fixture
def sealed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A capture of TLS beside its key log."""
    monkeypatch.delenv("SSLKEYLOGFILE", raising=False)
    monkeypatch.chdir(tmp_path)
    one = talk(said(HANDSHAKE))
    Path("tls.pcap").write_bytes(Wire().send(one.sent).end().capture())
    Path("keys.log").write_bytes(one.keys)
    return tmp_path


def test_what_is_said_inside_of_tls(sealed: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    checked(capsys, "tls.pcap", "--keylog", "keys.log", "--update")
    golden = Path("tls.pcap.golden").read_text()
    assert "  > PeerProperties" in golden
    assert "TLS" not in golden
    assert checked(capsys, "tls.pcap", "--keylog", "keys.log") == ("", "streamdump: 1 capture: 1 matches its golden file\n")
    monkeypatch.setenv("SSLKEYLOGFILE", "keys.log")
    _, err = checked(capsys, "tls.pcap")
    assert err.startswith("streamdump: TLS keys are read from keys.log, which SSLKEYLOGFILE names\n")
    # it is what the same says without TLS
    shutil.copy(HANDSHAKE, "plain.pcap")
    shutil.copy("tls.pcap.golden", "plain.pcap.golden")
    checked(capsys, "plain.pcap")


def test_tls_that_is_not_read_is_told(sealed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = "; 1 conversation not decoded and not compared (TLS); --keylog FILE decrypts TLS\n"
    assert checked(capsys, "tls.pcap", code=ExitCode.FOUND)[1] == f"streamdump: 1 capture: 1 without a golden file{told}"
    _, err = checked(capsys, "tls.pcap", "--update")
    empty = "streamdump: tls.pcap.golden: contains no conversations, because nothing in tls.pcap could be compared\n"
    assert err == f"{empty}streamdump: 1 capture: 1 golden file written{told}"
    assert Path("tls.pcap.golden").read_text() == "streamdump golden 1\n"
    assert checked(capsys, "tls.pcap")[1] == f"streamdump: 1 capture: 1 matches its golden file{told}"
    Path("other.log").write_bytes(talk([]).keys)
    _, err = checked(capsys, "tls.pcap", "--keylog", "other.log")
    assert err.endswith("; 1 conversation not decoded and not compared (TLS, keys missing)\n")
    out, _ = checked(capsys, "tls.pcap", "--json")
    assert json.loads(out)["unread"] == ["TLS"]
    _, err = checked(capsys, "tls.pcap", "--keylog", "none.log", code=ExitCode.USAGE)
    assert err == "streamdump: key log none.log: no such file\n"


@needs_capture
def test_what_is_said_inside_of_tls_while_a_command_runs(sealed: Path) -> None:
    """Its keys are logged when all of it was sent."""
    shutil.copy(HANDSHAKE, "plain.pcap")
    assert main(["check", "plain.pcap", "--update"]) == ExitCode.DONE
    port, root = free_port(), str(Path(__file__).parents[2])
    client = CLIENT.replace("pair.replay(", "one = talk(").replace("print(", "    pair.replay(one.sent)\nprint(")
    client = client.replace("with Pair", "from tests.tls.peers import talk\nwith Pair")
    Path("client.py").write_text(f"{client.format(root=root, port=port, name=HANDSHAKE.name)}\nopen('live.log', 'wb').write(one.keys)\n")
    run = ["--run", f"{sys.executable} client.py", "-i", "lo", "-f", f"tcp port {port}", "--keylog", "live.log"]
    done = subprocess.run(
        [sys.executable, "-m", "streamdump", "check", "plain.pcap", *run],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=sealed,
        env={"PATH": "/usr/bin:/bin"},
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert "--keylog live.log: does not exist yet" in done.stderr


# --run

CLIENT = """
import sys
sys.path.insert(0, {root!r})
from tests.support.peers import GOLDEN, Pair, said
with Pair({port}) as pair:
    pair.replay(said(GOLDEN / "rabbitmq-stream" / {name!r}))
print("this is no result")
"""


@needs_capture
def test_what_is_said_while_a_command_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    port = free_port()
    shutil.copy(HANDSHAKE, "login.pcap")
    assert main(["check", "login.pcap", "--update"]) == ExitCode.DONE
    root = str(Path(__file__).parents[2])

    def run(name: str, *more: str) -> subprocess.CompletedProcess[str]:
        Path("client.py").write_text(CLIENT.format(root=root, port=port, name=name))
        argv = ["login.pcap", "--run", f"{sys.executable} client.py", "-i", "lo", "-f", f"tcp port {port}", *more]
        environment: dict[str, Any] = {"cwd": tmp_path, "env": {"PATH": "/usr/bin:/bin"}}
        return subprocess.run(
            [sys.executable, "-m", "streamdump", "check", *argv], capture_output=True, text=True, timeout=60, check=False, **environment
        )

    done = run(HANDSHAKE.name, "-w", "seen.pcapng")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert "this is no result" in done.stderr
    shutil.copy("login.pcap.golden", "seen.pcapng.golden")
    assert main(["check", "seen.pcapng"]) == ExitCode.DONE
    done = run(REFUSED.name)
    assert done.returncode == ExitCode.FOUND
    assert "Open answered `virtual host access failure`, golden `OK` (packet " in done.stdout
    Path("client.py").write_text("raise SystemExit(7)")
    argv = ["login.pcap", "--run", f"{sys.executable} client.py", "-i", "lo"]
    assert main(["check", *argv]) == ExitCode.FOUND


def test_without_privilege_it_says_how_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    import socket

    real = socket.socket

    class Refused(real):  # type: ignore[misc, valid-type]
        def __init__(self, family: int = -1, *more: Any, **named: Any) -> None:
            if family == socket.AF_PACKET:
                raise PermissionError(1, "Operation not permitted")
            super().__init__(family, *more, **named)

    monkeypatch.setattr(socket, "socket", Refused)
    monkeypatch.chdir(tmp_path)
    out, err = checked(capsys, "login.pcap", "--run", "make login", "-i", "lo", "-f", "port 5552", code=ExitCode.NO_INTERFACE)
    assert out == ""
    assert "capturing needs the capability CAP_NET_RAW" in err
    assert "sudo tcpdump -B 65536 -i lo -w run.pcap 'port 5552' &" in err
    assert "make login; sleep 2; sudo kill -INT $!" in err


# What could act on a terminal, and what the logs of CI servers take for commands.
INJECTED = f"{HOSTILE}\n::error::x%0A##[command]"


def test_what_a_capture_holds_acts_on_no_terminal_and_no_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capture, junit = tmp_path / "x.pcap", tmp_path / "junit.xml"
    golden = tmp_path / "x.pcap.golden"
    for reference in ("", INJECTED):
        publisher = struct.pack(">IB", 2, 0) + hostile.text(reference) + hostile.text("orders")
        capture.write_bytes(hostile.conversation(hostile.GREETING, hostile.frame(1, publisher)))
        if not reference:
            checked(capsys, str(capture), "--update")
    for form in ([], ["--github"], ["--json"], ["--junit", str(junit)]):
        out, err = checked(capsys, str(capture), *form, code=ExitCode.FOUND)
        assert "x1b[2J" in out or "u001b[2J" in out
        assert not hostile.active(out + err)
        commands = [line for line in (out + err).splitlines() if line.lstrip().startswith(("::", "##["))]
        assert len(commands) == (form == ["--github"])
        assert not any("::error::x%0A" in line for line in commands)
    ElementTree.parse(junit)
    assert not hostile.active(junit.read_text())
    checked(capsys, str(capture), "--update")
    assert not hostile.active(golden.read_text())
    checked(capsys, str(capture))
