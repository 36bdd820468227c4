"""What Postgres would do for the statements that the product made."""

from __future__ import annotations

import re
from collections.abc import Iterator
from types import TracebackType
from typing import Any

import asyncpg
import orjson
from sqlalchemy import event

from app.store.database import Database

TABLES = frozenset({"responses", "chunks", "conversation_items"})
"""Those that grow."""
_EXPLAINABLE = re.compile(r"\s*(SELECT|INSERT|UPDATE|DELETE|WITH)\b", re.IGNORECASE)


class Explainer:
    """Notes the statements of a database while it is entered; `scans` explains them afterwards."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._made: dict[str, Any] = {}
        """Statement -> parameters of its last call."""

    async def __aenter__(self) -> Explainer:
        event.listen(self._db.engine.sync_engine, "before_cursor_execute", self._note)
        async with self._db.driver_connection() as connection:
            connection.add_query_logger(self._note_driver)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        event.remove(self._db.engine.sync_engine, "before_cursor_execute", self._note)
        async with self._db.driver_connection() as connection:
            connection.remove_query_logger(self._note_driver)

    def _note(self, _connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        if _EXPLAINABLE.match(statement):
            self._made[statement] = parameters

    def _note_driver(self, made: asyncpg.connection.LoggedQuery) -> None:
        if _EXPLAINABLE.match(made.query):
            self._made[made.query] = tuple(made.args)

    async def scans(self) -> list[str]:
        """The tables that would be read as a whole."""
        found = set[str]()
        async with self._db.autocommit() as connection:
            for statement, parameters in self._made.items():
                explained = await connection.exec_driver_sql(f"EXPLAIN (FORMAT JSON) {statement}", parameters)
                plan = explained.scalar_one()
                found |= set(_whole(plan if isinstance(plan, list) else orjson.loads(plan)))
        return sorted(found)


def _whole(node: Any) -> Iterator[str]:
    """The relations of sequential scans anywhere in a plan."""
    if isinstance(node, list):
        for each in node:
            yield from _whole(each)
    elif isinstance(node, dict):
        if node.get("Node Type") == "Seq Scan" and node.get("Relation Name") in TABLES:
            yield node["Relation Name"]
        for each in node.values():
            yield from _whole(each)
