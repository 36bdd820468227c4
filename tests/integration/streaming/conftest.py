"""A PubSub on each of its two ways to publish, and one that has no Redis."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

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


@pytest.fixture(params=[True, False], ids=["fast", "plain"])
async def pubsub(request: pytest.FixtureRequest, services: Any) -> AsyncIterator[PubSub]:
    """Overrides the one of all integration tests."""
    started = PubSub(services.redis_url, a_key, fast_paths=request.param)
    await started.start()
    yield started
    await started.close()
