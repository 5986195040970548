"""The configuration file for people, and pages of conversations."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from streamdump.cli.app import main
from streamdump.cli.exits import ExitCode
from tests.support.terminal import on_terminal

ROOT = Path(__file__).parents[2]
REFUSED = str(ROOT / "captures" / "golden" / "mewbase" / "java-auth-bad.pcap")
VHOST = str(ROOT / "captures" / "golden" / "rabbitmq-stream" / "vhost_failure_405.pcap")


def configured(folder: Path, text: str) -> dict[str, str]:
    path = folder / "streamdump" / "config.toml"
    path.parent.mkdir()
    path.write_text(text)
    return {"XDG_CONFIG_HOME": str(folder)}


def test_it_tells_how_a_terminal_likes_lines(tmp_path: Path) -> None:
    liked = configured(tmp_path, 'color = "never"\ntime = "ud"\ncolumns = 70\n')
    _, text = on_terminal([REFUSED], 120, liked)
    assert "\x1b" not in text
    assert " 2026-11-21 06:22:44.943312 " in text
    assert max(len(line) for line in text.splitlines() if not line.startswith("streamdump:")) <= 70


def test_a_call_and_no_config_win(tmp_path: Path) -> None:
    liked = configured(tmp_path, 'color = "never"\ntime = "ud"\n')
    assert "2026-11-21" not in on_terminal(["-t", "r", REFUSED], 120, liked)[1]
    _, text = on_terminal(["--no-config", REFUSED], 120, liked)
    assert "2026-11-21" not in text
    assert "\x1b[" in text


@pytest.mark.parametrize("command", ["conversations", "latency", "diagnose", "follow"])
def test_it_holds_for_commands(command: str, tmp_path: Path) -> None:
    liked = configured(tmp_path, 'color = "never"\n')
    _, text = on_terminal([command, *(["0"] if command == "follow" else []), REFUSED], 120, liked)
    assert "\x1b[" not in text


@pytest.mark.parametrize("command", ["latency", "diagnose"])
def test_times_between_lines_are_for_views_with_lines(command: str, tmp_path: Path) -> None:
    code, text = on_terminal([command, REFUSED], 120, configured(tmp_path, 'time = "dd"\n'))
    assert (code, "-t dd" in text) == (ExitCode.DONE, False)
    assert on_terminal([command, "-t", "dd", REFUSED], 120, {"XDG_CONFIG_HOME": str(tmp_path)})[0] == ExitCode.USAGE


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("colour = 1", "colour: not a setting; the settings are color, time, columns"),
        ("columns = 'many'", "columns: must be a number, 1 or greater"),
        ("columns = -80", "columns: must be a number, 1 or greater"),
        ("time = [", "config.toml: "),
        ("a = " + "[" * 5_000, "config.toml: too many tables or lists in each other"),
        ("a." * 20_000 + "b = 1", "config.toml: a name of too many parts"),
        ("columns = " + "9" * 5_000, "config.toml: a number of too many digits"),
        ("#" * 200_000, "config.toml: is larger than 128 KiB"),
        ("time = 'x'", "config.toml: time = x: must be r, ad, ud"),
        ("color = 'allways'", "config.toml: color = allways: must be auto, always or never; did you mean always?"),
    ],
)
def test_what_is_wrong_in_it_is_told(text: str, told: str, tmp_path: Path) -> None:
    code, said = on_terminal([REFUSED], 120, configured(tmp_path, text))
    assert code == ExitCode.USAGE
    assert told in " ".join(said.split())


def test_a_pipe_in_its_place_is_left_out(tmp_path: Path) -> None:
    liked = configured(tmp_path, "")
    path = tmp_path / "streamdump" / "config.toml"
    path.unlink()
    os.mkfifo(path)
    assert on_terminal([REFUSED], 120, liked)[0] == ExitCode.DONE


def test_nothing_that_goes_elsewhere_reads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name, value in configured(tmp_path, "what = 'is this'").items():
        monkeypatch.setenv(name, value)
    assert main([REFUSED]) == ExitCode.DONE
    assert main(["--no-config", "-q", REFUSED]) == ExitCode.DONE
    assert "is this" not in capsys.readouterr().err


def test_commands_for_machines_do_not_read_it(tmp_path: Path) -> None:
    wrong = configured(tmp_path, "what = 'is this'")
    code, text = on_terminal(["scrub", REFUSED, str(tmp_path / "out.pcap")], 120, wrong)
    assert code == ExitCode.DONE, text
    code, text = on_terminal(["check", str(tmp_path / "out.pcap"), "--update", "--force"], 120, wrong)
    assert code == ExitCode.DONE, text


def test_pages_of_conversations_and_of_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.html"
    assert main(["conversations", "--html", str(page), VHOST]) == ExitCode.DONE
    assert f"--html {page}: written" in capsys.readouterr().err
    text = page.read_text()
    assert len(re.findall(r"<tr><td>", text)) == 2
    assert "FIN by server" in text
    assert main(["follow", "1", "--html", str(page), VHOST]) == ExitCode.DONE
    out = capsys.readouterr().out
    text = page.read_text()
    assert len(re.findall(r"<tr id=\"message-[0-9]+\"><td", text)) == len(out.splitlines()) - 1
    assert "virtual host access failure" in text
    assert main(["follow", "1", "--html", VHOST, VHOST]) == ExitCode.USAGE
    assert os.path.getsize(VHOST) > 1000  # noqa: PTH202


def test_a_page_escapes_what_was_captured(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert main(["follow", "0", "--html", str(page), VHOST]) == ExitCode.DONE
    assert "<script>" not in page.read_text().replace("<script>", "", 1)
