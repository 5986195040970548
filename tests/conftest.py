"""Shared settings: random tests are repeatable by default; `HYPOTHESIS_PROFILE=full`, as in CI, and `large` spend more.

A bug ends a test loudly instead of costing one conversation: the barrier is off, in other processes too, unless a test asks for it.
A wrong table ends it when it is made.
"""

import gc
import os
import signal
import sys

import pytest
from hypothesis import HealthCheck, settings

from streamdump.errors import BARRIER
from tests.support.layout_checks import check_all_from_now_on

# Thousands of tests, and the modules that they import, stay: the garbage collector need not look through them again and again
gc.disable()

check_all_from_now_on()
os.environ[BARRIER] = "off"
for name in ("COLUMNS", "LINES"):
    # readline, which pytest loads, sets them for the processes that tests start, and `os.environ` does not know; lines would be made for
    # such a terminal
    os.environ.pop(name, None)
    os.unsetenv(name)

for name in ("CI", "GITHUB_WORKSPACE"):
    # Commands refuse more there; tests of that set them
    os.environ.pop(name, None)

# Nobody is there to leave a pager; tests of pagers name one
os.environ["PAGER"] = "cat"

# Where containers set it, each of the very many processes that tests start would compile all modules anew, three times its own work
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # As under nohup or behind a shell's &; the processes that tests interrupt would inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)

for profile, examples in (("default", 20), ("full", 60)):
    settings.register_profile(profile, derandomize=True, deadline=None, max_examples=examples, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("large", deadline=None, max_examples=5000, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="rewrite captures/golden/**/*.jsonl and captures/check from what the tool says now"
    )


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.fixture
def barrier(monkeypatch: pytest.MonkeyPatch) -> None:
    """What nobody expected costs one conversation, as for a user."""
    monkeypatch.delenv(BARRIER)
