"""Options that commands share are one value: `options: Annotated[Options, Members(*LIMITS)]`, `live: Wanted`, `shown: Shown`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial, wraps
from typing import Annotated, Any, get_args, get_type_hints

import typer

from streamdump.options import DEFAULTS, SETTINGS, Group, Options, Setting, members

from .options import LIMITS as LIMITS_PANEL
from .options import LIVE, READ, SHOWN, completion, decode_rules, nanoseconds, one_of, size, whole_number

PANELS: dict[Group, str] = {
    "shown": SHOWN,
    "reading": READ,
    "files": READ,
    "limits": LIMITS_PANEL,
    "totals": LIMITS_PANEL,
    "keys": LIMITS_PANEL,
    "live": LIVE,
}

READING = members("reading")
FILES = members("files")
LIMITS = members("limits", "totals", "keys")
TIMES = members("live")


class Members:
    """Which members of `Options` a command's `options` are set by its command line; all others have their defaults."""

    def __init__(self, *names: str) -> None:
        self.names = names


def gathers(command: Callable[..., int]) -> Callable[..., int]:
    """The command as typer may have it: each value that stands for many options is these options."""
    signature = inspect.signature(command, eval_str=True)
    found: list[inspect.Parameter] = []
    made: dict[str, Callable[[Mapping[str, Any]], Any]] = {}
    for parameter in signature.parameters.values():
        wanted = [one for one in get_args(parameter.annotation) if isinstance(one, Members)]
        if wanted:
            found += [_parameter(name, SETTINGS[name]) for name in wanted[0].names]
            made[parameter.name] = partial(_options, wanted[0].names)
        elif hasattr(kind := parameter.annotation, "_field_defaults"):
            hints = get_type_hints(kind, include_extras=True)
            found += [_keyword(name, hints[name], kind._field_defaults[name]) for name in kind._fields]
            made[parameter.name] = partial(_gathered, kind)
        else:
            found.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))

    @wraps(command)
    def call(**given: Any) -> int:
        values = {name: make(given) for name, make in made.items()}
        return command(**{name: given[name] for name in signature.parameters if name in given}, **values)

    vars(call).pop("__wrapped__")
    call.__annotations__ = {one.name: one.annotation for one in found}
    call.__signature__ = signature.replace(parameters=found)  # type: ignore[attr-defined]
    return call


def _keyword(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)


def _parameter(name: str, setting: Setting) -> inspect.Parameter:
    several = list[str] | None
    kinds: dict[str, Any] = {"flag": bool, "rules": several, "files": several, "contents": several, "list": str | None}
    default = None if setting.written in ("rules", "files", "contents", "list") else DEFAULTS[name]
    if default is not None and setting.written not in ("flag", "choice"):
        default = _text(setting.written, default)
    option = typer.Option(
        setting.option,
        help=setting.help,
        rich_help_panel=PANELS[setting.group],
        metavar=setting.metavar,
        show_default=default is not None,
        autocompletion=completion(setting.choices) if setting.choices else None,
    )
    return _keyword(name, Annotated[kinds.get(setting.written, str), option], default)


def _text(written: str, value: int) -> str:
    """A default as one would write it."""
    if written == "seconds":
        return f"{value / 1e9:g}"
    if written == "size":
        for unit, letter in ((1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K")):
            if not value % unit:
                return f"{value // unit}{letter}"
    return str(value)


def _options(names: tuple[str, ...], given: Mapping[str, Any]) -> Options:
    return Options(**{name: READ_AS[SETTINGS[name].written](SETTINGS[name], given[name]) for name in names})


def _verbs(name: str) -> Any:
    from streamdump.protocols.seastar.verbs import load_verbs

    return load_verbs(name)


def _dictionaries(paths: list[str]) -> tuple[bytes, ...]:
    from streamdump.protocols.seastar.dictionaries import load_dictionaries

    return load_dictionaries(paths)


READ_AS: dict[str, Callable[[Setting, Any], Any]] = {
    "size": lambda setting, given: size(setting.option, given),
    "count": lambda setting, given: whole_number(setting.option, given),
    "seconds": lambda setting, given: nanoseconds(setting.option, given),
    "choice": lambda setting, given: one_of(setting.option, given, setting.choices),
    "rules": lambda setting, given: decode_rules(given or ()),
    "files": lambda setting, given: tuple(given or ()),
    "contents": lambda setting, given: _dictionaries(given) if given else (),
    "list": lambda setting, given: None if given is None else _verbs(given),
    "flag": lambda setting, given: given,
}
"""Conversions from text to the library's values, by how an option is written."""


def _gathered(kind: Any, given: Mapping[str, Any]) -> Any:
    return kind(**{name: given[name] for name in kind._fields})
