"""Batches of rows as parameters of one statement: an array for each column.

A column's name, type and value are defined in one place, so that SQL and parameters cannot get out of step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, count
from operator import attrgetter
from typing import Any, Generic, TypeVar

import orjson

T = TypeVar("T")


def to_json(value: Any) -> str | None:
    return None if value is None else orjson.dumps(value).decode()


def to_array(values: Sequence[str]) -> str | None:
    """An array of texts as Postgres writes one, which the statement casts (TEXTS); None of no texts."""
    if not values:
        return None
    escaped = (value.replace("\\", "\\\\").replace('"', '\\"') for value in values)
    return "{" + ",".join(f'"{value}"' for value in escaped) + "}"


TEXTS = "CAST({} AS text[])"
"""What Postgres makes of `to_array`."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a batch. Its value is the row's attribute `of`, by default that of its name, converted by `convert`.

    `type` is Postgres' type. JSON travels as text (`to_json`), and the statement casts it.
    """

    name: str
    type: str
    convert: Callable[[Any], Any] | None = None
    sql: str = "{}"
    """What Postgres makes of the value, which is `{}`."""
    of: str | None = None
    """May be a path: `stored.json`."""

    @property
    def array(self) -> str:
        """The type of the parameter."""
        return "text[]" if self.type == "json" else f"{self.type}[]"

    def expression(self, alias: str) -> str:
        """The column as an expression, where `alias` names the batch."""
        name = f"{alias}.{self.name}"
        return f"CAST({name} AS json)" if self.type == "json" else self.sql.format(name)


class Columns(Generic[T]):
    """Columns of a batch whose values come from the same kind of row."""

    def __init__(self, *columns: Column) -> None:
        self._columns = columns
        # Built once: every committed token passes through `parameters`.
        self._get = [(attrgetter(column.of or column.name), column.convert) for column in columns]
        self.names = ", ".join(column.name for column in columns)
        """The names as a list of columns."""

    def __iter__(self) -> Iterator[Column]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    def select(self, alias: str) -> str:
        """The columns as a select list, in the order of `names`, where `alias` names the batch."""
        return ", ".join(column.expression(alias) for column in self._columns)

    def assign(self, alias: str) -> str:
        """The columns as the assignments of an UPDATE, where `alias` names the batch."""
        return ", ".join(f"{column.name} = {column.expression(alias)}" for column in self._columns)

    def parameters(self, rows: Sequence[T]) -> list[list[Any]]:
        """The arrays, in the order of `names`. `unnest` fills a shorter array with NULL: so one without any value is
        empty, because to encode a NULL takes the driver as long as a text."""
        arrays = (
            list(map(get, rows) if convert is None else map(convert, map(get, rows))) for get, convert in self._get
        )
        return [array if array.count(None) < len(rows) else [] for array in arrays]

    def named_parameters(self, rows: Sequence[T]) -> dict[str, list[Any]]:
        """The arrays by name."""
        return dict(zip((column.name for column in self._columns), self.parameters(rows), strict=True))


def named_arrays(*groups: Columns[Any]) -> str:
    """The arguments of `unnest` for SQLAlchemy: each parameter has the name of its column."""
    return _arguments(f"CAST(:{column.name} AS {column.array})" for column in chain.from_iterable(groups))


def numbered_arrays(*groups: Columns[Any], first: int = 1) -> str:
    """The arguments of `unnest` for the driver: parameters are numbered from `first`."""
    numbered = zip(count(first), chain.from_iterable(groups), strict=False)
    return _arguments(f"${number}::{column.array}" for number, column in numbered)


def _arguments(arrays: Iterable[str]) -> str:
    """The first is a query of its own, so that Postgres does not look how long the arrays are. Otherwise it may plan a
    statement anew for each batch, which can take as long as the statement itself."""
    first, *others = arrays
    return ", ".join((f"(SELECT {first})", *others))


def names(*groups: Columns[Any]) -> str:
    """The column names of several groups, for `AS alias(...)`."""
    return ", ".join(group.names for group in groups)
