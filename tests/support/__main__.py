"""Writes anew all that is made from code and captures: `python -m tests.support`; `git diff` shows what changed."""

from tests.support import columns, manual, pages, picture, rules

manual.write()
rules.write()
columns.write()
pages.write()
picture.write()
