"""Batches of rows as parameters of one statement: an array for each column.

This is for the three statements that every response or token passes through. They go to the driver itself
(`Database.dedicated`) with numbered parameters: insert (inserts.py), claim (claims.py) and append (journal.py).
A column's name, type and value are defined in one place, so that SQL and parameters cannot get out of step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Generic, TypeVar

import orjson

T = TypeVar("T")


def to_json(value: Any) -> str | None:
    return None if value is None else orjson.dumps(value).decode()


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a batch. Its value is the row's attribute of that name, converted by `convert`.

    `type` is Postgres' type. JSON travels as text (`to_json`), and the statement casts it.
    """

    name: str
    type: str
    convert: Callable[[Any], Any] | None = None

    @property
    def array(self) -> str:
        """The type of the parameter."""
        return "text[]" if self.type == "json" else f"{self.type}[]"

    def of(self, alias: str) -> str:
        """The column as an expression, where `alias` names the batch."""
        name = f"{alias}.{self.name}"
        return f"CAST({name} AS json)" if self.type == "json" else name


class Columns(Generic[T]):
    """Columns of a batch whose values come from the same kind of row; `first` numbers the first parameter."""

    def __init__(self, *columns: Column, first: int = 1) -> None:
        self._columns = columns
        # Made once: every committed token passes through `parameters`.
        self._get = [(attrgetter(column.name), column.convert) for column in columns]
        self.next = first + len(columns)
        """The number of the parameter after these."""
        self.names = ", ".join(column.name for column in columns)
        """For a column list."""
        self.arrays = ", ".join(f"${number}::{column.array}" for number, column in enumerate(columns, first))
        """For `unnest`."""

    def select(self, alias: str) -> str:
        """The columns as a select list, in the order of `names`, where `alias` names the batch."""
        return ", ".join(column.of(alias) for column in self._columns)

    def assign(self, alias: str) -> str:
        """The columns as the assignments of an UPDATE, where `alias` names the batch."""
        return ", ".join(f"{column.name} = {column.of(alias)}" for column in self._columns)

    def parameters(self, rows: Sequence[T]) -> list[list[Any]]:
        """The arrays, in the order of `names`."""
        return [list(map(get, rows) if convert is None else map(convert, map(get, rows))) for get, convert in self._get]


def batch_table(alias: str, *groups: Columns[Any]) -> str:
    """A batch as a table expression, called `alias`, with the columns of all groups."""
    arrays = ", ".join(group.arrays for group in groups)
    return f"unnest({arrays}) AS {alias}({', '.join(group.names for group in groups)})"
