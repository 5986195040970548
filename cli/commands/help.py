"""`streamdump help TOPIC`: the limits, or a page. `streamdump help COMMAND` is `streamdump COMMAND --help`."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Annotated, Any

import typer

from streamdump.errors import UsageError

from ..exits import ExitCode
from ..help import DOCS, LIMITS_TOPIC, limits, topics
from ..output import write_page
from ..run import COMMANDS


def topic_names(incomplete: str) -> list[str]:
    """What the topic can be completed to."""
    return [name for name in sorted({*COMMANDS, *topics()}) if name.startswith(incomplete)]


def help(
    context: typer.Context,
    topic: Annotated[
        str, typer.Argument(metavar="TOPIC", help="a command, limits, or a page", show_default=False, autocompletion=topic_names)
    ],
) -> int:
    """Show the help of a command, the options that are limits, or a page of the documentation."""
    if topic == LIMITS_TOPIC:
        group: Any = context.find_root().command
        write_page(f"{limits(group.commands.values())}\n")
        return ExitCode.DONE
    if topic not in topics():
        near = get_close_matches(topic, topic_names(""), 1)
        known = f"did you mean {near[0]}?" if near else f"the pages are {', '.join(topics())}"
        raise UsageError(f"no help on {topic}; {known}")
    write_page((DOCS / f"{topic}.md").read_text(encoding="utf-8"))
    return ExitCode.DONE
