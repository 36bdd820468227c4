"""The keys and projects that this process serves, kept in memory: requests are let in without a query.

Postgres is the truth. A change rings a doorbell on Redis, and every process looks; without Redis it looks every
POLL_SECONDS. While Postgres is away, keys that are known stay as they were.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping, Sequence

from app.access.known_key import DELETED, KnownKey
from app.access.refused_keys import RefusedKeys, name_of
from app.access.secret import hash_of, is_well_formed
from app.aio import end_tasks
from app.batching import Batcher
from app.store.database import Database, StoreUnavailable
from app.store.tenants import api_keys, projects
from app.store.tenants.projects import ProjectRow
from app.streaming.pubsub import PubSub

log = logging.getLogger("longhaul.access")

DOORBELL = "access"
"""The name of the doorbell that says: keys or projects have changed."""

POLL_SECONDS = 4.0
PAUSE_SECONDS = 0.1
"""Pause between two looks, however often the doorbell rings."""
LOOKUP_PAUSE_SECONDS = 0.05
"""Pause between two queries for unknown keys: guessing keys makes the queries no more frequent."""
MAX_LOOKUPS = 1024
"""Keys of one such query."""
MAX_UNKNOWN = 10_000
"""Keys that do not exist and are remembered until the next look: they cost no query."""
IDLE_SECONDS = 3600.0
"""A key that was not used for so long is forgotten until it is used again; a project with the last of its keys."""
NOTE_SECONDS = 30.0
"""Interval at which the last use of keys is noted."""


class Directory:
    """Finds keys and projects. Knows of a revocation within a second, or within 5 without Redis."""

    def __init__(self, db: Database, pubsub: PubSub) -> None:
        self._db = db
        self._pubsub = pubsub
        self._refused = RefusedKeys()
        self._keys: dict[bytes, KnownKey] = {}
        self._unknown: dict[bytes, None] = {}
        self._projects: dict[str, ProjectRow | None] = {}
        self._lock = asyncio.Lock()
        """A key that is found while a look goes on must not miss what that look finds."""
        self._lookups = Batcher(self._look_up, max_items=MAX_LOOKUPS, shared_errors=(StoreUnavailable,))
        self._next_lookup_at = self._next_note_at = 0.0
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="access")

    async def close(self) -> None:
        """Notes when keys were used last, if Postgres answers."""
        if self._task is not None:
            await end_tasks(self._task)
        await self._lookups.close()
        with contextlib.suppress(StoreUnavailable):
            await self._note_uses()
        for key in self._keys.values():
            key.forget()
        self._refused.write()

    def count_refusal(self, secret: str | None, address: str | None, status: int) -> None:
        """Counts for the log that a request with this key was refused."""
        known = None if secret is None else self._keys.get(hash_of(secret))
        self._refused.count(name_of(secret, None if known is None else known.id), address, status)

    async def key(self, secret: str) -> KnownKey | None:
        """Returns the key, which may have ended, or None if it does not exist. Raises StoreUnavailable."""
        hashed = hash_of(secret)
        if (known := self._keys.get(hashed)) is not None:
            return known
        if hashed in self._unknown or not is_well_formed(secret):
            return None
        return await self._lookups.submit(hashed)

    async def project(self, project_id: str) -> ProjectRow | None:
        """Returns the project, or None if it does not exist. Raises StoreUnavailable."""
        if project_id not in self._projects:
            async with self._lock:
                if project_id not in self._projects:  # Else another request asked first.
                    self._projects[project_id] = (await projects.find(self._db, [project_id])).get(project_id)
        return self._projects[project_id]

    async def _look_up(self, hashes: Sequence[bytes]) -> list[KnownKey | None]:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(max(0.0, self._next_lookup_at - loop.time()))
        async with self._lock:
            found = await api_keys.find(self._db, set(hashes))
            for hashed, row in found.items():
                if hashed not in self._keys:
                    self._keys[hashed] = KnownKey(row)
        self._next_lookup_at = loop.time() + LOOKUP_PAUSE_SECONDS
        for hashed in hashes:
            if hashed not in found:
                self._unknown[hashed] = None
                if len(self._unknown) > MAX_UNKNOWN:
                    del self._unknown[next(iter(self._unknown))]
        return [self._keys.get(hashed) for hashed in hashes]

    async def _run(self) -> None:
        async with self._pubsub.listen(DOORBELL) as doorbell:
            while True:
                await doorbell.wait(POLL_SECONDS)
                doorbell.clear_missed()
                try:
                    await self.look()
                    if (now := asyncio.get_running_loop().time()) >= self._next_note_at:
                        self._next_note_at = now + NOTE_SECONDS
                        await self._note_uses()
                except StoreUnavailable:
                    pass
                except Exception as error:  # For instance, the schema does not exist yet.
                    log.warning("keys and projects cannot be read: %s", type(error).__name__)
                await asyncio.sleep(PAUSE_SECONDS)

    async def look(self) -> None:
        """Reads again everything that is known, and forgets what is idle. Raises StoreUnavailable."""
        async with self._lock:
            self._unknown.clear()
            if self._keys:
                self._update_keys(await api_keys.find(self._db, self._keys))
            in_use = self._projects.keys() & {key.caller.project for key in self._keys.values()}
            found = await projects.find(self._db, in_use) if in_use else {}
            self._projects = {project_id: found.get(project_id) for project_id in in_use}

    def _update_keys(self, found: Mapping[bytes, api_keys.KeyRow]) -> None:
        for hashed, key in list(self._keys.items()):
            if (row := found.get(hashed)) is None:
                key.end(DELETED)
            elif key.refusal is not None and row.state == "works":  # It was prolonged after its end was noticed.
                self._keys[hashed] = KnownKey(row)
            else:
                key.update(row)
            if row is None or (key.used_at is None and key.idle_seconds() > IDLE_SECONDS):
                key.forget()
                del self._keys[hashed]

    async def _note_uses(self) -> None:
        """A note that is lost because Postgres is away is made at the key's next use."""
        used = {key.id: seconds for key in self._keys.values() if (seconds := key.take_use()) is not None}
        if used:
            await api_keys.mark_used(self._db, used)
