"""The pages. jinja2 escapes everything that is put in; the page's own policy lets it load nothing and run its one script only."""

from __future__ import annotations

import os
from base64 import b64encode
from collections.abc import Iterable, Mapping
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from ...capture.atomic_files import in_place_of
from ...capture.blocks import explain
from ...capture.write import is_input
from ...errors import UsageError, refuse
from ..terminal import visible

FOLDER = Path(__file__).parent

ROWS = 2_000
"""The most rows of a table; a page states how many it leaves out."""


def check_page(path: str, names: Iterable[str] = ()) -> None:
    """Raises `UsageError` for a file that could not be written, or is an input: that should show before the first packet."""
    target = Path(path)
    refuse(
        (path == "-", "--html - : a page is written to a file; standard output has the text"),
        (target.is_symlink(), f"--html {path}: a symbolic link, which is not followed; name the file itself"),
        (target.exists() and not target.is_file(), f"--html {path}: cannot be written: is not a regular file"),
        (is_input(path, names), f"--html {path}: is an input; inputs are never overwritten"),
        (
            not os.access(target.parent, os.W_OK | os.X_OK),
            f"--html {path}: {target.parent} is not a writable directory",
        ),
    )


def write_page(path: str, text: str) -> None:
    """Replace a file with a page, completely or not at all; raise `UsageError` if that is not possible."""
    try:
        with in_place_of(Path(path)) as file:
            file.write(text.encode("utf-8"))
    except OSError as error:
        raise UsageError(f"--html {path}: cannot be written: {explain(error)}") from error


def load() -> None:
    """Read what pages are made of, for who may not read it later."""
    environment = _environment()
    for name in environment.list_templates(["html"]):
        environment.get_template(name)


def render(name: str, values: Mapping[str, Any]) -> str:
    """The page that the template `name` makes of these."""
    made: str = _environment().get_template(name).render(**values)
    return made


@cache
def _environment() -> Any:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(FOLDER),
        auto_reload=False,
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_harmless,
    )
    script, style = ((FOLDER / name).read_text(encoding="utf-8") for name in ("page.js", "page.css"))
    environment.globals.update(script=script, style=style, policy=_policy(script, style), rows_shown=ROWS)
    return environment


def _harmless(value: Any) -> Any:
    """Return a page with control and bidirectional characters escaped; our own markup stays."""
    return visible(value) if type(value) is str else value


def _policy(script: str, style: str) -> str:
    """A Content-Security-Policy by which the page loads nothing, and uses the script and the style that are in it alone."""
    run, look = (b64encode(sha256(text.encode()).digest()).decode() for text in (script, style))
    return f"default-src 'none'; script-src 'sha256-{run}'; style-src 'sha256-{look}'; base-uri 'none'; form-action 'none'"
