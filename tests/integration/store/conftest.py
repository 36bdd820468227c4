"""What several tests of the store share."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from app.store.database import Database
from app.store.responses.inserts import Inserter


@pytest.fixture
async def inserter(db: Database) -> AsyncIterator[Inserter]:
    made = Inserter(db)
    yield made
    await made.close()
