"""Selects records and values: `compile_filter('name == Open and latency > 20ms')` returns a predicate, `compile_columns` a list of values.

grammar.py   text       -> Node        a lark grammar
names.py     a name     -> Meaning     the keys of records and the fields of protocols that it refers to
literals.py  a value    -> Test        what it is, held against the types that the name has
build.py     Node       -> Filter      one Python predicate for each kind of record
columns.py   names      -> Columns     the values of a record under these names
"""

from .build import Filter, compile_filter
from .columns import Columns, compile_columns
from .names import NameTable, names_of

__all__ = ["Columns", "Filter", "NameTable", "compile_columns", "compile_filter", "names_of"]
