"""The operators' commands as processes: one service behind both ways, what they print, and their exit statuses."""

from __future__ import annotations

from app.store.database import Database
from tests.support.commands import Shell
from tests.support.rows import alive, claimed


async def test_workers_are_listed_for_people_and_for_programs(db: Database, shell: Shell) -> None:
    await alive(db, "w1")
    await claimed(db, "w1")
    ran = await shell.run("workers")
    assert ran.status == 0, ran.err
    head, line = (each.split("\t") for each in ran.out.splitlines())
    shown = dict(zip(head, line, strict=True))
    assert {name: shown[name] for name in ("name", "state", "running")} == {
        "name": "w1",
        "state": "ready",
        "running": "1",
    }
    (entry,) = (await shell.run("workers", "--json")).lines
    assert (entry["name"], entry["running"], entry["sent"]) == ("w1", 1, 0)
