"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from streamdump.capture.atomic_files import in_place_of


@pytest.fixture(params=["without a name", "beside"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """File systems that have files without a name, and others."""
    if request.param == "beside":
        monkeypatch.setattr(os, "O_TMPFILE", 0)
    return str(request.param)


def test_the_old_file_stays_until_all_is_written(way: str, tmp_path: Path) -> None:
    target = tmp_path / "x"
    target.write_bytes(b"old")
    with in_place_of(target) as file:
        file.write(b"new")
        file.flush()
        assert target.read_bytes() == b"old"
        assert len(list(tmp_path.iterdir())) == (1 if way == "without a name" else 2)
    assert target.read_bytes() == b"new"
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_what_ends_early_leaves_nothing(error: type[BaseException], tmp_path: Path) -> None:
    target = tmp_path / "x"
    target.write_bytes(b"old")
    with pytest.raises(error), in_place_of(target) as file:
        file.write(b"new")
        raise error
    assert target.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.usefixtures("way")
def test_a_link_is_replaced_and_where_it_leads_stays(tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(b"old")
    (tmp_path / "link").symlink_to("other")
    with in_place_of(tmp_path / "link", 0o644) as file:
        file.write(b"new")
    assert (tmp_path / "other").read_bytes() == b"old"
    assert (tmp_path / "link").read_bytes() == b"new"
    assert not (tmp_path / "link").is_symlink()


def test_devices_are_written_as_they_are_where_that_is_asked_for() -> None:
    with in_place_of(Path("/dev/null"), as_is=True) as file:
        file.write(b"new")
    assert Path("/dev/null").is_char_device()


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), in_place_of(tmp_path / "none" / "x"):
        pass
