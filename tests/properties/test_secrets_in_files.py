"""A planted secret is in nothing that a command writes or prints: statistics, differences, golden files, pages, exports."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from streamdump.cli.app import main
from streamdump.cli.browse import saving
from streamdump.cli.browse.places import Conversations, Fields, Findings, Messages, Place
from streamdump.cli.exits import ExitCode
from streamdump.cli.indexed.reading import Reader
from streamdump.cli.run import FileRun
from streamdump.model import Options
from streamdump.render.clock import Clock
from tests.support.logins import SECRET, login_captures
from tests.support.secrets import found
from tests.support.waiting import until


@pytest.fixture(scope="module")
def captures(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return login_captures(tmp_path_factory.mktemp("logins"))


Told = Callable[..., str]


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str]) -> Told:
    """All that a command prints."""

    def call(*argv: Any) -> str:
        code = main([str(one) for one in argv])
        assert code in (ExitCode.DONE, ExitCode.FOUND), capsys.readouterr()
        return "".join(capsys.readouterr())

    return call


def test_a_secret_that_is_shown_would_be_found(captures: list[Path], told: Told) -> None:
    assert found(SECRET, {"json": told("--json", "--show-secrets", captures[0]).rpartition("streamdump:")[0]})


@pytest.mark.parametrize("command", ["stats", "conversations", "latency", "diagnose"])
def test_of_all_captures(command: str, captures: list[Path], told: Told, tmp_path: Path) -> None:
    said = {"text": told(command, "--separate", *captures), "lines": told(command, "--separate", "--json", *captures)}
    if command in ("latency", "diagnose"):
        said["html"] = told(command, "--separate", "--html", tmp_path / "page.html", *captures) + (tmp_path / "page.html").read_text()
        assert "<html" in said["html"]
    assert all(said.values())
    assert found(SECRET, said) == []


def test_of_a_conversation(captures: list[Path], told: Told, tmp_path: Path) -> None:
    for path in captures:
        ways = ([], ["--ladder"], ["--mermaid"], ["--html", tmp_path / "page.html"])
        said = {" ".join(map(str, way)): told("follow", "0", *way, path) for way in ways}
        said["html"] = (tmp_path / "page.html").read_text()
        assert found(SECRET, said) == [], path


@pytest.mark.sweep
def test_golden_files_and_differences(captures: list[Path], told: Told, tmp_path: Path) -> None:
    told("check", "--golden", tmp_path, "--update", "--force", *captures)
    goldens = sorted(tmp_path.iterdir())
    assert len(goldens) == len(captures)
    assert found(SECRET, {path.name: path.read_text() for path in goldens}) == []
    for path, other in zip(captures, [*captures[1:], captures[0]], strict=True):
        said = {"text": told("diff", path, other), "lines": told("diff", "--json", path, other)}
        assert found(SECRET, said) == [], (path, other)
    # All of them against those of another one
    for path, other in zip(goldens, [*goldens[1:], goldens[0]], strict=True):
        path.with_suffix(".swapped").write_bytes(other.read_bytes())
    for path in goldens:
        path.with_suffix(".swapped").replace(path)
    page = tmp_path / "report.xml"
    said = {f"{at}": told("check", "--golden", tmp_path, how, *captures) for at, how in enumerate(("--heartbeats", "--json", "--github"))}
    told("check", "--golden", tmp_path, "--junit", page, *captures)
    assert found(SECRET, {**said, "junit": page.read_text()}) == []


@pytest.mark.sweep
def test_exports_of_browse(captures: list[Path], tmp_path: Path) -> None:
    for path in captures[::2]:
        run = FileRun([str(path)], Options(findings=True))
        reader = Reader(run, run.inspector.options, Clock("r"))
        reader.start()
        until(lambda reader=reader: reader.done)  # type: ignore[misc]
        places: list[Place] = [Findings(reader), Conversations(reader), Messages(reader)]
        places += [Fields(reader, reader.full(at)) for at in range(len(reader.records))]
        said = {}
        for at, place in enumerate(places):
            place.update()
            for suffix in ("txt", "jsonl"):
                target = tmp_path / f"{path.stem}-{at}.{suffix}"
                saving.export(place, str(target), reader)
                said["json" if suffix == "jsonl" and isinstance(place, Messages) else f"{at} {suffix[0]}"] = target.read_text()
            # What the lower part of the screen shows, and what f asks for
            for line in range(len(place)):
                said[f"{path.stem}-{at} below {line}"] = "\n".join([place.value(line, 400), *place.asks(line)])
        reader.stop()
        assert found(SECRET, said) == [], path
