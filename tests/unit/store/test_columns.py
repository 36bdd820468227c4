"""Rows as arrays of a statement."""

from __future__ import annotations

from dataclasses import dataclass

from app.store.columns import Column, Columns


@dataclass(frozen=True)
class Row:
    id: str
    note: str | None = None
    count: int | None = None


COLUMNS: Columns[Row] = Columns(Column("id", "text"), Column("note", "text"), Column("count", "int"))


def test_a_column_without_any_value_is_an_empty_array() -> None:
    assert COLUMNS.parameters([Row("a"), Row("b", count=0)]) == [["a", "b"], [], [None, 0]]
