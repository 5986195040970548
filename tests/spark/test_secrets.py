"""A planted secret is in no table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.spark.comparing import tables_of
from tests.spark.here import go
from tests.support.logins import SECRET, login_captures
from tests.support.secrets import found


def test_tables(tmp_path: Path) -> None:
    def plain(value: Any) -> str:
        return value.hex() if isinstance(value, bytes) else str(value)

    # All have the same addresses, so that each is read alone
    for path in login_captures(tmp_path)[::2]:
        go([path], tmp_path / path.stem, findings=True)
        tables = tables_of(tmp_path / path.stem)
        assert tables["conversations"]
        said = {name: "\n".join(json.dumps(row, default=plain) for row in rows) for name, rows in tables.items()}
        assert found(SECRET, said) == [], path
