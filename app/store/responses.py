"""Reading the rows of responses. Functions for the API are scoped by project.

Who writes them: inserts.py makes rows, claims.py gives them to workers, journal.py ends them with the last chunk,
endings.py cancels, fails and deletes them, redelivery.py marks them as sent, and retention.py deletes what is old.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Select, bindparam, func, select

from app.store.database import Database
from app.store.rows import ResponseRow, response_row
from app.store.tables import responses

_READ_AT = func.now().label("read_at")
RESPONSE_COLUMNS = [_READ_AT if name == "read_at" else responses.c[name] for name in ResponseRow.__slots__]

# Built once, because they come often: SQLAlchemy takes 0.1 ms of CPU to build one.
_BY_ID = select(*RESPONSE_COLUMNS).where(responses.c.id == bindparam("id"))
_OF_PROJECT = _BY_ID.where(responses.c.project == bindparam("project"))
_BY_KEY = select(*RESPONSE_COLUMNS).where(
    responses.c.project == bindparam("project"), responses.c.idempotency_key == bindparam("key")
)


async def get(db: Database, project: str, response_id: str) -> ResponseRow | None:
    """The response, or None if the project has none with that id."""
    return await _one(db, _OF_PROJECT, id=response_id, project=project)


async def get_by_key(db: Database, project: str, key: str) -> ResponseRow | None:
    """The response of the project's request with this Idempotency-Key, or None."""
    return await _one(db, _BY_KEY, key=key, project=project)


async def find(db: Database, response_id: str) -> ResponseRow | None:
    """`get` for workers and maintenance, which serve every project."""
    return await _one(db, _BY_ID, id=response_id)


async def _one(db: Database, statement: Select[Any], **values: str) -> ResponseRow | None:
    async with db.autocommit() as connection:
        row = (await connection.execute(statement, values)).one_or_none()
    return None if row is None else response_row(row)
