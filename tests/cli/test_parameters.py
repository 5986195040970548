"""Options that are declared once: what commands take, what they make of it, and what the pages say of them."""

import re
from pathlib import Path
from typing import Annotated, Any

import pytest

from streamdump.cli.app import READ, command_of, main
from streamdump.cli.commands.latency import GROUPED
from streamdump.cli.commands.metrics import LABELS
from streamdump.cli.exits import ExitCode
from streamdump.cli.live import LiveOptions
from streamdump.cli.options import PROCESS
from streamdump.cli.parameters import Members, gathers
from streamdump.cli.run import COMMANDS
from streamdump.errors import UsageError
from streamdump.latency.groups import BY
from streamdump.model import PROCESS_KEYS
from streamdump.options import SETTINGS, Options
from streamdump.render.metrics import OPTIONAL
from tests.support.pages import everything

GOLDEN = Path(__file__).parents[2] / "captures" / "golden"
HANDSHAKE = GOLDEN / "rabbitmq-stream" / "handshake_close_405.pcap"


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


def test_names_to_choose_from_are_those_of_the_library() -> None:
    assert (PROCESS_KEYS, BY, tuple(OPTIONAL)) == (PROCESS, GROUPED, LABELS)


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


@pytest.mark.parametrize("name", (READ, *COMMANDS))
def test_an_option_that_has_one_value_is_given_once(name: str, subtests: pytest.Subtests, capsys: pytest.CaptureFixture[str]) -> None:
    parameters = command_of((READ, *COMMANDS)).commands[name].params
    options = [one.opts[0] for one in parameters if one.param_type_name == "option" and not one.is_flag and not one.multiple]
    files = ["no-such.pcap", *(["out.pcap"] if name == "scrub" else [])]
    files = files if any(one.param_type_name == "argument" for one in parameters) else []
    for option in options:
        with subtests.test(option):
            argv = [*([] if name == READ else [name]), option, "1", *files, option, "1"]
            assert main(argv) == ExitCode.USAGE
            assert capsys.readouterr().err == f"streamdump: {option} may be given only once\n"


def test_of_several_filters_all_hold(capsys: pytest.CaptureFixture[str]) -> None:
    path = str(GOLDEN / "rabbitmq-stream" / "vhost_failure_405.pcap")
    wanted = []
    for argv in (
        ["-Y", "(name == Open or name == Close) and (outcome == refused)"],
        ["-Y", "name == Open or name == Close", "-Y", "outcome == refused"],
    ):
        for command in ([], ["conversations"], ["follow", "0"], ["latency"], ["stats"], ["diagnose"]):
            assert main([*command, *argv, path]) == ExitCode.DONE
            wanted.append(capsys.readouterr())
    assert wanted[: len(wanted) // 2] == wanted[len(wanted) // 2 :]
    assert "2 records match -Y" in wanted[0].err


@pytest.mark.parametrize(
    "command", [[], ["diagnose"], pytest.param(["pipeline", "--out", "no-such"], marks=pytest.mark.spark)], ids=" ".join
)
@pytest.mark.parametrize("wrong", ["outcme == refused", "name == Open) or (name == Close", "name =="])
def test_the_place_of_a_mistake_is_in_its_own_filter(wrong: str, command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    said = []
    for before in ([], ["-Y", "name == Open"]):
        assert main([*command, *before, "-Y", wrong, str(HANDSHAKE)]) == ExitCode.USAGE
        said.append(capsys.readouterr().err)
    assert said[0] == said[1]
    assert said[0].splitlines()[1:2] == [f"streamdump:   {wrong}"]


def test_how_columns_look_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-T", "csv", "-E", "header=y", "-E", "header=n", str(HANDSHAKE)]) == ExitCode.USAGE
    assert capsys.readouterr().err == "streamdump: -E: each of header, separator and quote may be given only once\n"
    assert main(["-T", "csv", "-E", "header=n", str(HANDSHAKE)]) == ExitCode.DONE
