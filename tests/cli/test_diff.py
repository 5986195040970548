"""`streamdump diff`: two captures compared as one is with its golden file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from streamdump.cli.app import main
from streamdump.cli.exits import ExitCode
from tests.support.captures import GOLDEN, capture_name, every_family

OLD, NEW = (GOLDEN / "rabbitmq-stream" / f"handshake_close_{version}.pcap" for version in ("310", "405"))
SMALL = sorted(path for path in GOLDEN.glob("*/*.pcap") if path.stat().st_size < 20_000)


def run(capsys: pytest.CaptureFixture[str], *argv: object) -> tuple[int, str, str]:
    code = main(["diff", *map(str, argv)])
    out, err = capsys.readouterr()
    return code, out, err


@every_family(SMALL, short=3)
def test_a_capture_differs_from_itself_in_nothing(paths: list[Path], subtests: pytest.Subtests, capsys: pytest.CaptureFixture[str]) -> None:
    for path in paths:
        with subtests.test(capture_name(path)):
            code, out, err = run(capsys, path, path)
            assert not out
            assert (code == ExitCode.DONE and "0 differences" in err) or (code == ExitCode.UNREADABLE and "cut off" in err)


def test_what_it_finds_is_what_check_finds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = tmp_path / NEW.name
    copy.write_bytes(NEW.read_bytes())
    (tmp_path / OLD.name).write_bytes(OLD.read_bytes())
    assert main(["check", "--update", "--force", str(tmp_path / OLD.name)]) == ExitCode.DONE
    (tmp_path / f"{OLD.name}.golden").rename(tmp_path / f"{NEW.name}.golden")
    capsys.readouterr()
    assert main(["check", "--json", str(copy)]) == ExitCode.FOUND
    checked = json.loads(capsys.readouterr().out)["differences"]
    code, out, _ = run(capsys, "--json", OLD, NEW)
    (line,) = out.splitlines()
    found = json.loads(line)
    assert code == ExitCode.FOUND and found["outcome"] == "different"
    assert (found["capture"], found["golden"]) == (str(NEW), str(OLD))
    assert len(found["differences"]) == len(checked) > 2
    for one, other in zip(found["differences"], checked, strict=True):
        assert one["line"] is None
        assert one["text"] == other["text"].replace("the golden file", "the old capture").replace("golden", "old")
        assert {**one, "line": 0, "text": ""} == {**other, "line": 0, "text": ""}


def test_it_says_what_changed_in_the_words_of_two_captures(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, OLD, NEW)
    assert code == ExitCode.FOUND
    assert out.startswith(f"{NEW}: ") and f"differences from {OLD}\n" in out
    assert 'is "probe", old "streamdump test client"' in out and "golden" not in out.replace(str(GOLDEN), "")
    assert err.endswith("differences\n")


def test_what_only_one_of_both_has_is_not_there_in_the_other(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, OLD, NEW)
    assert 'peer_properties["connection_name"]: not there, old "raw-client"' in out
    assert 'peer_properties["copyright"]: <version>, old not there' in out


def test_a_layout_says_which_servers_have_it(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, *(GOLDEN / "iggy" / f"py{version}-basic.pcap" for version in ("060", "080")))
    assert "layout is L9 (server 0.7.0 to 0.8.x), old L8 (server 0.6.x)\n" in out


def test_the_settings_are_those_of_check(capsys: pytest.CaptureFixture[str]) -> None:
    _, plain, _ = run(capsys, OLD, NEW)
    _, less, _ = run(capsys, "--ignore", "peer_properties", OLD, NEW)
    assert len(less) < len(plain)
    _, _, err = run(capsys, "--ignore", "no_such_field", OLD, OLD)
    assert "no message has this field" in err


def test_wrong_calls_and_unreadable_captures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, OLD)[0] == run(capsys, OLD, NEW, NEW)[0] == ExitCode.USAGE
    code, _, err = run(capsys, OLD, tmp_path / "none.pcap")
    assert code == ExitCode.UNREADABLE and "no such file" in err
    cut = tmp_path / "cut.pcap"
    cut.write_bytes(NEW.read_bytes()[:-5])
    assert run(capsys, cut, NEW)[0] == ExitCode.UNREADABLE
    assert run(capsys, "--only", "some", OLD, NEW)[0] == ExitCode.USAGE


def test_one_of_both_may_be_standard_input(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    found = []
    for path, argv in ((OLD, ("-", NEW)), (NEW, (OLD, "-"))):
        with path.open() as stream:
            monkeypatch.setattr("sys.stdin", stream)
            found.append(run(capsys, *argv)[1].partition("\n")[2])
    assert found[0] and found[0] == found[1] == run(capsys, OLD, NEW)[1].partition("\n")[2]
    code, out, err = run(capsys, "-", "-")
    assert (code, out) == (ExitCode.USAGE, "") and "standard input and may be given only once" in err
