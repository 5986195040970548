"""The zstd codec where several threads need it."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from threading import Event, Thread

import pytest

from streamdump import zstd


def test_no_thread_gets_a_codec_that_another_is_importing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    signs = types.ModuleType("codec_signs")
    signs.started, signs.go = Event(), Event()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "codec_signs", signs)
    (tmp_path / "slow_codec.py").write_text("from codec_signs import started, go\nstarted.set()\ngo.wait()\ncomplete = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(zstd, "ZSTD_CODEC", "slow_codec")
    zstd.codec.cache_clear()
    found: list[bool] = []
    threads = [Thread(target=lambda: found.append(hasattr(zstd.codec(), "complete"))) for _ in range(2)]
    try:
        threads[0].start()
        assert signs.started.wait(60)
        threads[1].start()
        threads[1].join(0.3)
    finally:
        signs.go.set()
        for one in threads:
            one.join()
        zstd.codec.cache_clear()
        sys.modules.pop("slow_codec", None)
    assert found == [True, True]
