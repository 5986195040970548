"""The 32 bytes that bind a session of Apache Iggy V5, and the key of a stream: in no output of any command."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from streamdump.capture.files import open_capture
from streamdump.cli.app import main
from streamdump.inspector import Inspector
from streamdump.model import Message, Options
from tests.support.browsing import Browsing
from tests.support.frames import Packet
from tests.support.rewrite import packets
from tests.support.secrets import found, texts

GOLDEN = Path(__file__).parents[2] / "captures" / "golden" / "iggy"


def secrets_of(path: Path) -> list[bytes]:
    """What a run shows that is asked for secrets: those that are no text."""
    records = Inspector([open_capture(str(path))], Options(show_secrets=True, bytes_as="hex")).records()
    fields = [one.fields for one in records if type(one) is Message]
    values = [one["bind_secret"] for one in fields if "bind_secret" in one]
    values += [one["value"] for each in fields for one in each.get("options", ()) if one.get("key") == "encryption_key"]
    return [bytes.fromhex(value) for value in values]


CASES = {"made-session-bind.pcap": 1, "py091d5-admin.pcap": 2}
CASES_IN_TURN = ["made-session-bind.pcap", pytest.param("py091d5-admin.pcap", marks=pytest.mark.sweep)]

VIEWS: list[list[str]] = [
    [],
    ["-V"],
    ["-x"],
    ["-V", "-x", "--bytes", "base64"],
    ["--json"],
    ["--json", "--bytes", "base64"],
    ["--json", "--bytes", "text"],
    ["--json", "-V", "--exchanges"],
    ["-T", "fields", "-e", "name", "-e", "fields.bind_secret", "-e", "fields"],
    ["conversations"],
    ["conversations", "--json"],
    ["diagnose"],
    ["diagnose", "--json"],
    ["stats"],
    ["stats", "--json"],
    ["latency", "--json"],
    ["entries"],
    ["follow"],
    ["follow", "-V", "-x"],
]
PAGES: list[list[str]] = [["conversations"], ["diagnose"], ["latency"], ["stats"]]


@pytest.mark.parametrize("name", CASES_IN_TURN)
def test_no_command_prints_the_secret(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = GOLDEN / name
    secrets = secrets_of(path)
    assert [len(secret) for secret in secrets] == [32] * CASES[name]
    said = texts([Packet(one.raw, one.time_ns) for one in packets(path)], full=True)
    shown = ""
    for view in VIEWS:
        main([*view, str(path)])
        out, err = capsys.readouterr()
        said[f"output of {view}"] = out
        said["errors"] = said.get("errors", "") + err
        shown += out
    assert shown.count("<redacted 32 bytes>") > 5
    for view in PAGES:
        page = tmp_path / f"{view[0]}.html"
        main([*view, "--html", str(page), str(path)])
        capsys.readouterr()
        said[f"{view[0]} page"] = page.read_text()
    copy = tmp_path / name
    shutil.copy(path, copy)
    main(["check", str(copy), "--update"])
    capsys.readouterr()
    goldens = [one for one in tmp_path.iterdir() if one.suffix == ".golden"]
    assert goldens
    said |= {"golden file": "".join(one.read_text() for one in goldens)}
    for secret in secrets:
        assert found(secret, said) == []


@pytest.mark.parametrize("name", CASES)
def test_scrub_overwrites_the_secret(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, target = GOLDEN / name, tmp_path / "out.pcap"
    assert main(["scrub", str(path), str(target)]) == 0
    capsys.readouterr()
    data = target.read_bytes()
    secrets = secrets_of(path)
    assert secrets and all(secret in path.read_bytes() for secret in secrets)
    assert not any(secret[at : at + 6] in data for secret in secrets for at in range(27))


@pytest.mark.sweep
@pytest.mark.parametrize("name", CASES_IN_TURN)
def test_browse_shows_no_secret(name: str) -> None:
    secrets = secrets_of(GOLDEN / name)
    said: dict[str, str] = {}

    async def steps(here: Browsing) -> None:
        await here.press("m")
        for number in range(12):
            await here.press("enter")
            said[f"message {number}"] = here.text + "\n".join(here.lines())
            await here.press("escape")
            await here.press("down")

    Browsing(GOLDEN / name).drive(steps, (200, 60))
    assert any("redacted 32 bytes" in text for text in said.values())
    for secret in secrets:
        assert found(secret, said) == []


def test_written_packets_are_those_of_the_capture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """-w copies packets, secrets too."""
    path, target = GOLDEN / "made-session-bind.pcap", tmp_path / "out.pcapng"
    assert main(["-w", str(target), str(path)]) == 0
    capsys.readouterr()
    assert all(secret in target.read_bytes() for secret in secrets_of(path))
