"""Options that are declared once: what commands take, what they make of it, and what the pages say of them."""

import re
from typing import Annotated, Any

import pytest

from streamdump.cli.live import LiveOptions
from streamdump.cli.parameters import Members, gathers
from streamdump.errors import UsageError
from streamdump.options import SETTINGS, Options
from tests.support.pages import everything


def made(**given: Any) -> tuple[Options, LiveOptions]:
    """What a command that takes everything is given for this command line."""
    seen = []

    @gathers
    def command(*, options: Annotated[Options, Members(*SETTINGS)], live: LiveOptions) -> int:
        seen.append((options, live))
        return 0

    signature = command.__signature__  # type: ignore[attr-defined]
    command(**{name: parameter.default for name, parameter in signature.parameters.items()} | given)
    return seen[0]


def test_what_nobody_sets_has_its_default() -> None:
    assert made() == (Options(), LiveOptions())


def test_what_was_written_is_what_the_library_takes() -> None:
    options, live = made(
        frame_limit="3K", answer_time_ns="0.5", open_total="7", show_secrets=True, decode_as=["tcp.port==9,mewbase"], interfaces=["lo"]
    )
    assert options == Options(
        frame_limit=3072, answer_time_ns=500_000_000, open_total=7, show_secrets=True, decode_as=((9, "mewbase", None),)
    )
    assert live == LiveOptions(interfaces=["lo"])


@pytest.mark.parametrize(("name", "text"), [("frame_limit", "3X"), ("open_total", "0"), ("waiting_time_ns", "soon"), ("bytes_as", "raw")])
def test_what_cannot_be_is_told_with_its_option(name: str, text: str) -> None:
    with pytest.raises(UsageError, match=rf"^{SETTINGS[name].option} {text}: "):
        made(**{name: text})


def test_the_pages_have_the_defaults() -> None:
    signature = gathers(_everything).__signature__  # type: ignore[attr-defined]
    rows = dict(re.findall(r"^\| `(--[a-z-]+) [A-Z]+` \| ([^ |]+) ?s? \|", everything(), re.M))
    told = {setting.option: signature.parameters[name].default for name, setting in SETTINGS.items() if setting.option in rows}
    assert {option: rows[option] for option in told} == told
    assert {"--timeout", "--tracked-limit", "--keys-limit", "--frame-limit", "--values-limit"} <= set(told)


def _everything(*, options: Annotated[Options, Members(*SETTINGS)]) -> int:
    raise AssertionError(options)
