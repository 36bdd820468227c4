"""Keys that seal: a new one takes over, and what the old ones sealed stays readable."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from sqlalchemy import text

from app.store import keys
from app.store.database import Database
from app.store.keys import SharedSealer, rotate
from app.store.sealing import BadSeal, SealedKind
from tests.support.services import AS_OWNER

KIND = SealedKind.REASONING


@pytest.fixture
async def db(db: Database) -> AsyncIterator[Database]:
    """With the keys of a new deployment, before the test and after it."""
    for _ in range(2):
        async with db.begin() as connection:
            await connection.execute(text(AS_OWNER))
            await connection.execute(text("DELETE FROM keys WHERE name LIKE 'seal%'"))
            await connection.run_sync(keys.make_missing)
        if _ == 0:
            yield db


async def test_a_new_key_is_known_before_it_seals_and_old_ones_still_unseal(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = SharedSealer(db)
    old = (await running.get("default")).seal(KIND, "a")
    monkeypatch.setattr(keys, "REFRESH_SECONDS", 0.0)
    seen = []

    async def look(_: float) -> None:
        seen.append((await running.get("default")).seal(KIND, "b"))

    monkeypatch.setattr(keys.asyncio, "sleep", look)
    assert await rotate(db) == 2
    assert seen[0].startswith("lh1_"), "nobody seals with a key that others may not know"
    newest = await running.get("default")
    assert (token := newest.seal(KIND, "c")).startswith("lh2_")
    assert [newest.unseal(KIND, each) for each in (old, seen[0], token)] == ["a", "b", "c"]
    await db.execute(text("DELETE FROM keys WHERE name = 'seal'"))
    with pytest.raises(BadSeal):
        (await running.get("default")).unseal(KIND, old)
    assert (await running.get("default")).unseal(KIND, token) == "c"
    assert await rotate(db) == 3
    started_later = await SharedSealer(db).get("default")
    assert started_later.unseal(KIND, token) == "c"


async def test_keys_are_read_again_only_after_a_while(db: Database) -> None:
    running = SharedSealer(db)
    await running.get("default")
    await rotate(db, pause=0)
    assert (await running.get("default")).seal(KIND, "a").startswith("lh1_")
    assert (await SharedSealer(db).get("default")).seal(KIND, "a").startswith("lh2_")
