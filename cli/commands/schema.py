"""`streamdump schema`: the JSON Schema of what `--json` prints."""

from __future__ import annotations

from ..exits import ExitCode
from ..output import write_page


def schema() -> int:
    """Print the JSON Schema of --json."""
    from json import dumps

    from streamdump.render import schema as contract

    write_page(dumps(contract.schema(), indent=2) + "\n")
    return ExitCode.DONE
