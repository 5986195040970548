"""`streamdump`: argv in, exit code out."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from difflib import get_close_matches
from functools import cache, partial
from importlib import import_module
from io import StringIO
from threading import current_thread, main_thread
from types import FrameType
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

from streamdump.errors import FilterError, InterfaceError, Report, StreamdumpError, UsageError, crowded, describe_exception

from .config import preferences, strip_flag
from .exits import ENDING, ExitCode, code_of
from .help import SHORT_HELP, page, short
from .live import ways_out
from .output import PipeClosed, fill_in, say, write_page, write_text
from .pager import LEAVE_OUT, PAGER
from .run import COMMANDS

READ = "read"
"""The command that needs no name; typing it means a file of that name."""

HABITS = {
    "-R": "use -Y, such as -Y 'name == Open'",
    "-S": "output always has one line per message; there is no separator to set",
    "-U": "PDUs cannot be exported; -w FILE -Y EXPR writes the packets of matching conversations",
    "-O": "-V shows every field",
    "-A": "-x shows the bytes",
    "-X": "-x shows the bytes",
    "-F": "omit it: -w writes pcapng",
    "-P": "omit it: -V, -x, -T and --json also show messages while -w writes",
    "-o": "there are no preferences; --keylog FILE names the TLS key log",
    "-G": "streamdump protocols --fields lists the field names",
}
"""What to do instead of options that people know from tshark and tcpdump."""

_OF_THE_GROUP = ("--install-completion", "--show-completion")

# The base of everything that is wrong with an argv; where typer keeps it depends on its version.
_WrongCall: type[Exception] = typer.BadParameter.__mro__[2]


class _AsWritten:
    """Values as they were written: ours are strings and flags only, and typer would import pydantic to check that they are."""

    @staticmethod
    def coerce(value: Any, param: Any, ctx: Any) -> Any:
        return () if value is None and (param.multiple or param.nargs == -1) else value


def _as_written(parameters: list[Any]) -> list[Any]:
    for parameter in parameters:
        if hasattr(parameter, "get_runtime_param"):
            parameter.get_runtime_param = _AsWritten
    return parameters


def _show_help(ctx: Any, _: Any, wanted: bool) -> None:
    """Print the help as all output is printed: a closed pipe and a full disk end it as they end everything else."""
    if wanted and not ctx.resilient_parsing:
        write_page(f"{ctx.get_help()}\n")
        ctx.exit()


class _Command(TyperCommand):
    """A command whose help is ours."""

    def get_help_option(self, ctx: Any) -> Any:
        option = super().get_help_option(ctx)
        if option is not None:
            option.callback = _show_help
        return option

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._short = TyperOption(
            param_decls=["-h"], is_flag=True, is_eager=True, expose_value=False, callback=self._show_short, help=SHORT_HELP
        )

    def get_params(self, ctx: Any) -> list[Any]:
        return _as_written([*super().get_params(ctx), self._short])

    def _show_short(self, ctx: Any, _: Any, wanted: bool) -> None:
        if wanted and not ctx.resilient_parsing:
            write_text(f"{short(self, '' if self.name == READ else self.name or '')}\n")
            ctx.exit()

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Raise `UsageError` where several values were given for an option that has one."""
        given = [*args]
        rest = super().parse_args(ctx, args)
        order: list[Any] = self.make_parser(ctx).parse_args(args=given)[2]
        for one in () if ctx.resilient_parsing else order:
            if one.param_type_name == "option" and not one.multiple and not one.is_flag and order.count(one) > 1:
                raise UsageError(f"{one.opts[0]} may be given only once")
        return rest

    def get_help(self, ctx: Any) -> str:
        group = ctx.parent.command if ctx.parent is not None else None
        if self.name == READ and group is not None:
            others = [command for name, command in group.commands.items() if name != READ]
            return page(self, "", others, [one for one in group.params if set(one.opts) & set(_OF_THE_GROUP)])
        return page(self, self.name or "")


class _Group(TyperGroup):
    """The commands; an argv that does not begin with the name of one is a call of `read`."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _as_written(super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        first = args[0] if args else ""
        completes_first = ctx.resilient_parsing and not args
        if (first not in self.commands or first == READ) and first not in _OF_THE_GROUP and not completes_first:
            args = [READ, *args]
        return super().parse_args(ctx, args)

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        reading = self.commands[READ]
        return [*super().shell_complete(ctx, incomplete), *reading.shell_complete(ctx, incomplete)]


@cache
def command_of(names: tuple[str, ...]) -> Any:
    """Return these commands as typer builds them, once per process: it is slow for each."""
    app = typer.Typer(cls=_Group, add_completion=True, rich_markup_mode=None, pretty_exceptions_enable=False)
    for name in names:
        function = getattr(import_module(f"streamdump.cli.commands.{name}"), name)
        app.command(name, cls=_Command, hidden=name == READ)(function)
    return typer.main.get_command(app)


def _needed(arguments: Sequence[str]) -> tuple[str, ...]:
    """Return the commands that a call needs: all for complete help and completion, else the one it names."""
    telling = not {"--help", *_OF_THE_GROUP}.isdisjoint(arguments) or arguments[:1] == ["help"] or _completes()
    return (READ, *(COMMANDS if telling else [one for one in arguments[:1] if one in COMMANDS]))


def _completes() -> bool:
    """Return whether a shell asks how its line may go on."""
    return any(one.endswith("_COMPLETE") for one in os.environ)


class _Ended(BaseException):
    """A signal that ends the process, as soon as nothing is left behind that should not be."""


@contextmanager
def _orderly() -> Iterator[None]:
    """Lets SIGTERM and SIGHUP unwind open files as an error would, before they end the process as usual."""

    def end(number: int, frame: FrameType | None) -> None:
        raise _Ended(number)

    watched = [one for one in ENDING if signal.getsignal(one) is signal.SIG_DFL]
    if current_thread() is not main_thread():
        watched = []
    for one in watched:
        signal.signal(one, end)
    ended = None
    try:
        yield
    except _Ended as error:
        (ended,) = error.args
    finally:
        for one in watched:
            signal.signal(one, signal.SIG_DFL)
    if ended is not None:
        os.kill(os.getpid(), ended)


def main(argv: Sequence[str] | None = None) -> int:
    """Run `streamdump` with these arguments; the exit code."""
    with _orderly():
        try:
            return _run(list(sys.argv[1:] if argv is None else argv))
        finally:
            PAGER.end()
    return ExitCode.INTERRUPTED


def _run(arguments: list[str]) -> int:
    try:
        fill_in()
        # Nothing here multiplies matrices: numpy need not start a thread for each processor.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        PAGER.refused = strip_flag(arguments, LEAVE_OUT)
        if _completes():
            # typer breaks help at the width of the terminal, and fish would offer the second line as a word
            os.environ["COLUMNS"] = "10000"
        liked = preferences(arguments)
        if arguments[:1] == ["help"] and (arguments[1:] == [] or arguments[1] in COMMANDS):
            arguments = [*arguments[1:2], "--help"]
        # Of each command, and of the one alone that needs no name; of a group, `help` would be the default of `--help`
        defaults = {**dict.fromkeys({READ, *COMMANDS} - {"help"}, liked), **liked}
        command = command_of(_needed(arguments))
        call = partial(command.main, args=arguments, prog_name="streamdump", standalone_mode=False, default_map=defaults)
        return _about_completion(call, *arguments) if arguments[:1] and arguments[0] in _OF_THE_GROUP else int(call() or 0)
    except PipeClosed:
        return ExitCode.DONE
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except StreamdumpError as error:
        denied = isinstance(error, InterfaceError) and isinstance(error.__cause__, PermissionError)
        for line in (*sentences(error), *(ways_out() if denied else ())):
            say(line)
        return code_of(error)
    except _WrongCall as error:
        say(_wrong(error))
        return ExitCode.USAGE
    except Exception as error:
        if crowded(error):
            say("too many open files; raise the limit with ulimit -n")
            return ExitCode.USAGE
        # One line instead of a traceback
        say(Report(describe_exception(error), "the run ended").text(None))
        return ExitCode.INTERNAL


def _about_completion(call: Callable[[], Any], option: str, *more: str) -> int:
    """Run an option that typer handles itself: it ends the process, and does not report a full disk."""
    if more:
        raise UsageError(f"{option} takes no {more[0]}: it is for the shell that it is called from")
    printed = StringIO()
    try:
        with redirect_stdout(printed):
            code = call()
    except SystemExit as end:
        code = end.code
    except OSError as error:
        raise UsageError(f"{option}: {error.filename}: {str(error.strerror).lower()}") from error
    write_page(printed.getvalue())
    return ExitCode.USAGE if code else ExitCode.DONE


def sentences(error: StreamdumpError) -> tuple[str, ...]:
    """Return the lines that report an error: of a filter also the place."""
    return (f"-Y: {error.reason}", *error.place()) if isinstance(error, FilterError) else (str(error),)


def _wrong(error: Any) -> str:
    """Return the error of a call, and what was probably meant."""
    path = getattr(error.ctx, "command_path", "streamdump").removesuffix(f" {READ}")
    if hasattr(error, "possibilities"):
        # The dashes, which all have, would make anything alike.
        known = {one.lstrip("-"): one for one in error.possibilities or ()}
        near = [known[one] for one in get_close_matches(error.option_name.lstrip("-"), known)]
        more = f"did you mean {' or '.join(near)}?" if near else HABITS.get(error.option_name, f"{path} --help lists the options")
        return f"no such option {error.option_name}; {more}"
    text = str(error.format_message()).rstrip(".").replace("Value error, ", "")
    return f"{text[:1].lower()}{text[1:]}; see {path} --help"
