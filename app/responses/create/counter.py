"""Counting the tokens of a prompt: a worker is asked, and replies. Nothing is stored.

accept -> seal -> Redis, and a command to a worker -> the worker takes it, counts, replies over pub/sub

Whatever dies or is lost meanwhile, the caller is told to ask again, after COUNT_SECONDS at the latest.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager
from functools import partial

import orjson

from app.aio import BackgroundTasks
from app.bounds import Bound
from app.heavy import off_loop
from app.protocol.errors import TimedOut, Unavailable
from app.protocol.failures import failure
from app.protocol.requests.bodies.request import ResponseRequest
from app.queue.publisher import COUNT_SECONDS, QueueUnavailable, TaskQueue
from app.responses.create.acceptor import RequestAcceptor
from app.store.database import Database
from app.store.keys import SharedSealer
from app.store.queue import workers
from app.store.responses.new_rows import NewResponse
from app.store.sealing import SealedKind, Sealer
from app.streaming.pubsub import PubSub
from app.streaming.subscription import Subscription
from config.settings import Settings
from config.version import VERSION

LOOK_SECONDS = 1.0
"""The pause between two looks for a worker, and before the first look whether one has taken the prompt."""
BODIES = 4
"""Prompts that wait in Redis have so many times the largest body together, as requests that are being accepted have."""

Answer = Callable[[], Awaitable[int]]
"""Waits for the count."""


class PromptCounter:
    """Asks workers for counts. `waiting` bounds the callers that wait, as it does those of responses."""

    def __init__(
        self,
        db: Database,
        acceptor: RequestAcceptor,
        sealer: SharedSealer,
        pubsub: PubSub,
        queue: TaskQueue,
        waiting: Bound,
        settings: Settings,
    ) -> None:
        self._db = db
        self._acceptor = acceptor
        self._sealer = sealer
        self._pubsub = pubsub
        self._queue = queue
        self._waiting = waiting
        total, shares = BODIES * settings.max_body_bytes, settings.asks_for_keys
        self.prompts = Bound("prompts that are counted", total, unit="bytes of ", shares=shares)
        self._background = BackgroundTasks()

    async def close(self) -> None:
        await self._background.close(0)

    @asynccontextmanager
    async def asked(self, project: str, request: ResponseRequest) -> AsyncIterator[Answer]:
        """Asks a worker for the tokens of the request's prompt, which this process then holds no longer.

        Raises what `RequestAcceptor.accept` raises, BoundReached, InvalidRequest for a bad prompt, and Unavailable and
        TimedOut if the caller is to ask again.
        """
        with self._waiting.take(project), ExitStack() as held:
            row = (await self._acceptor.accept(project, request, held)).row
            del request
            if not self._pubsub.connected:
                raise Unavailable("Redis cannot be reached at the moment; send the request again.")
            sealed = await off_loop(partial(_sealed, row, await self._sealer.get(project)), row.size)
            held.close()
            queue, count_id = row.queue, row.id
            del row
            key = f"{queue}#{count_id}"
            try:
                async with asyncio.timeout(COUNT_SECONDS), self._pubsub.subscribe(count_id) as subscription:
                    node = await self._node(queue)
                    await subscription.wait_until_confirmed()
                    with await self.prompts.wait(project, len(sealed)):
                        await self._queue.ask_to_count(node, key, project, sealed)
                        del sealed
                        yield partial(self._answer, project, key, subscription)
            except TimeoutError:
                message = f"No worker counted the tokens within {COUNT_SECONDS} s; send the request again."
                raise TimedOut(message, code="count_timeout") from None
            except QueueUnavailable as error:
                raise Unavailable(f"The request could not be sent ({error}); send it again.") from None
            finally:  # Nobody counts it any more. Of one that was counted, nothing is there.
                self._background.start(self._queue.take_prompt(key))

    async def _node(self, queue: str) -> str:
        while True:
            if (node := await workers.any_node(self._db, queue, VERSION)) is not None:
                return node
            await asyncio.sleep(LOOK_SECONDS)

    async def _answer(self, project: str, key: str, subscription: Subscription) -> int:
        """Asks again if no worker takes the prompt: one that has just registered does not hear commands yet."""
        pause = LOOK_SECONDS
        while not (received := subscription.take(-1)):
            if received is None:
                raise Unavailable("The connection to Redis broke; send the request again.")
            await subscription.wait(pause)
            pause *= 2
            if not subscription.has_received and await self._queue.has_prompt(key):
                await self._queue.tell_to_count(await self._node(key.partition("#")[0]), key, project)
        reply = orjson.loads(received[0].frames)
        if "error" in reply:
            raise failure(reply["error"])
        return int(reply["tokens"])


def _sealed(row: NewResponse, sealer: Sealer) -> str:
    prompt = {
        "request": orjson.Fragment(row.stored.json),
        "conversation_id": (row.request.get("conversation") or {}).get("id"),
        "context_bytes": row.context_bytes,
        "created_at": int(row.created_at.timestamp()),
    }
    return sealer.seal(SealedKind.PROMPT, orjson.dumps(prompt).decode())
