"""The database of a test as one kind of process has it: with that role's rights alone."""

from __future__ import annotations

from urllib.parse import quote
from weakref import WeakKeyDictionary

from app.store.database import Database

_opened: WeakKeyDictionary[Database, dict[str, Database]] = WeakKeyDictionary()


def as_role(db: Database, role: str) -> Database:
    """A pool of its own; `close_roles` closes it. The role of `db` may take every other one."""
    known = _opened.setdefault(db, {})
    if role not in known:
        known[role] = Database(f"{db._url}&options={quote(f'-c role={role}', safe='')}", 10)
    return known[role]


async def close_roles(db: Database) -> None:
    for each in _opened.pop(db, {}).values():
        await each.close()
