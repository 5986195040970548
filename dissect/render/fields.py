"""The `-T fields` view: a line a record, chosen values beside each other."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from ..filter import Columns
from ..model import Entry, Record
from .jsonl import encode_value
from .terminal import visible

Quote = Literal["", '"', "'"]


class FieldLines:
    """Makes lines of the values under chosen names.

    A missing value is empty; lists and objects are compact JSON; in texts tab, line end, backslash and what could act on a terminal
    are escaped. With a `quote`, which is doubled inside, and a comma as `separator` the lines are CSV.
    """

    def __init__(self, columns: Columns, separator: str = "\t", quote: Quote = "") -> None:
        self.columns = columns
        self.separator = separator
        self.quote = quote

    def header(self) -> str:
        """A line of the names, with units."""
        return f"{self.separator.join(map(self._cell, self.columns.headings))}\n"

    def lines(self, records: Iterable[Record | Entry]) -> str:
        """A line for each of these records, each ended."""
        values, cell, separator = self.columns.values, self._cell, self.separator
        return "".join([f"{separator.join(map(cell, values(record)))}\n" for record in records])

    def _cell(self, value: Any) -> str:
        if value is None:
            return ""
        if type(value) is str:
            text = visible(value.replace("\\", "\\\\"))
        elif type(value) is int:
            text = str(value)
        else:
            text = encode_value(value)
            text = "" if text in ("[]", "{}") else text
        if self.quote and text:
            return f"{self.quote}{text.replace(self.quote, self.quote * 2)}{self.quote}"
        return text
