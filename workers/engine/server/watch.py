"""Follows one server: whether it is there, and what others want of it.

A server that went away comes back by itself, perhaps in another version. So it is introduced again, as at the start.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress

from app.aio import end_tasks
from workers.engine.base import EngineAway
from workers.engine.server.client import Client, ServerFull, Unfit
from workers.engine.server.introduction import NOBODY, Load, Server, read_load

log = logging.getLogger("longhaul.engine")

LOOK_SECONDS = 1.0
"""Pause between two looks at a server that is there."""
RETURN_SECONDS = 0.1
"""Pause between two tries of a server that is away: a try costs both sides less than a millisecond."""


def slots_left(slots: int, ours: int, load: Load) -> int:
    """`slots` less what others have waiting there, at least 1. `ours`: the requests of ours that the server has."""
    others = max(load.running + load.waiting - ours, 0)
    return max(slots - min(load.waiting, others), 1)


class Watch:
    """`server` is what the server was when it was there last. Requests to it take the `client` from `reaching`."""

    def __init__(
        self, client: Client, introduce: Callable[[Client], Awaitable[Server]], ours: Callable[[], int]
    ) -> None:
        self._client = client
        self._introduce = introduce
        self._ours = ours
        self._look = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._load = Load()
        self._said = ""
        self.is_away = True
        self.server = NOBODY

    async def start(self) -> None:
        """Waits for the server. Raises Unfit if it cannot serve the model."""
        while self.is_away:
            try:
                self._come_back(await self._introduce(self._client))
            except Unfit:
                raise
            except EngineAway as error:
                await self._pause(error)
        self._say("")
        self._task = asyncio.create_task(self._follow(), name="server-watch")

    async def stop(self) -> None:
        if self._task is not None:
            await end_tasks(self._task)
        await self._client.close()

    def check(self) -> None:
        """Raises whatever ended the watch: a bug."""
        if self._task is not None and self._task.done():
            self._task.result()

    @contextmanager
    def reaching(self) -> Iterator[Client]:
        """Around one request. If it cannot reach the server, or is cut, nothing is sent there until the server has
        answered: then, too, EngineAway. A server that is full (ServerFull) has lost nothing."""
        if self.is_away:
            raise EngineAway("its server is away")
        try:
            yield self._client
        except EngineAway as error:
            if not self.is_away and not isinstance(error, ServerFull):
                self.is_away = True
                self._say(str(error))
                self._look.set()
            raise

    def slots(self, slots: int) -> int:
        return 0 if self.is_away or self._client.full_seconds else slots_left(slots, self._ours(), self._load)

    async def _follow(self) -> None:
        while True:
            try:
                if self.is_away:
                    self._come_back(await self._introduce(self._client))
                await self._health()
                self._load = await read_load(self._client)
            except EngineAway as error:
                if not isinstance(error, ServerFull):
                    self.is_away = True
                    if not isinstance(error, Unfit):
                        self._client.cut()  # what hangs, too
                await self._pause(error)
            else:
                if not self.is_away:  # else a request was lost meanwhile
                    self._say("")
                await self._wait(LOOK_SECONDS)

    async def _health(self) -> None:
        with suppress(Unfit):  # a gateway may not show it
            await self._client.get("/health")

    async def _wait(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._look.wait()
        self._look.clear()

    async def _pause(self, error: EngineAway) -> None:
        self._say(str(error))
        await asyncio.sleep(max(self._client.full_seconds, RETURN_SECONDS))

    def _say(self, reason: str) -> None:
        """Why the server takes nothing; empty: it does."""
        if reason and reason != self._said:
            log.warning("the server %s is away: %s", self._client.url, reason)
        elif self._said and not reason:
            log.info("the server %s is there", self._client.url)
        self._said = reason

    def _come_back(self, server: Server) -> None:
        """Raises Unfit for a smaller context than prompts were made for."""
        if server.context_length < self.server.context_length:
            raise Unfit(f"its context is {server.context_length} tokens now; start this worker again")
        self.server, self.is_away = server, False
