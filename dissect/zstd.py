"""The zstd codec: of the standard library from Python 3.14 on, else of its backport."""

from __future__ import annotations

import importlib
import sys
from functools import cache
from typing import Any

ZSTD_CODEC = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"


@cache
def codec() -> Any:
    """Return the module."""
    # Importing what was imported takes as long as unpacking a small message
    return importlib.import_module(ZSTD_CODEC)
