"""A PubSub whose connections to Redis pass a proxy, which may break them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from urllib.parse import urlsplit

from app.streaming.pubsub import PubSub
from tests.faults.proxy import HOST, Connect, Proxy
from tests.support.rows import a_key


@asynccontextmanager
async def proxied_pubsub(redis_url: str, connect: Connect | None = None) -> AsyncIterator[tuple[PubSub, Proxy]]:
    """A PubSub that has started, and its proxy. `connect` opens the proxy's connections; by default to this Redis."""
    parts = urlsplit(redis_url)
    proxy = Proxy(connect or partial(asyncio.open_connection, HOST, parts.port))
    await proxy.start()
    pubsub = PubSub(f"redis://:{parts.password}@{HOST}:{proxy.port}/0", a_key)
    try:
        await pubsub.start()
        yield pubsub, proxy
    finally:
        await pubsub.close()
        await proxy.close()
