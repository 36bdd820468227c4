"""A PubSub that has no Redis."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from app.streaming.pubsub import PubSub
from tests.support.rows import a_key


@pytest.fixture
async def unreachable() -> AsyncIterator[PubSub]:
    """A PubSub without Redis."""
    pubsub = PubSub("redis://127.0.0.1:9/0", a_key)
    await pubsub.start()
    yield pubsub
    await pubsub.close()
