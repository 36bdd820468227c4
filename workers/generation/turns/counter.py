"""Counting the tokens of prompts, for callers that wait for a reply. A count takes no slot, and leaves nothing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import orjson

from app.aio import run_to_completion
from app.bounds import Bound
from app.heavy import PROJECT
from app.protocol.events.chunk import Chunk
from app.protocol.response import error_object
from app.protocol.text import type_and_places
from app.protocol.types import Json
from app.queue.publisher import COUNT_SECONDS, QueueUnavailable, TaskQueue
from app.store.rows import HasContext, PromptSource
from app.streaming.pubsub import PubSub
from config.logging.context import about
from config.models import ServedModel
from workers.engine.base import Engine, EngineDead, EngineError, PromptTooLong
from workers.formats.builder import plan_turn
from workers.formats.turn import TurnPlan
from workers.generation.turns.inputs import Context, Inputs
from workers.generation.turns.mcp_setup import all_listings, listings_of
from workers.mcp.sessions import McpSessions

log = logging.getLogger("longhaul.counter")

PLACES = 5
"""The most counts that one worker runs at once: each may bring as long a prompt as there is. One project runs four."""
_STOPPED = error_object("queue_timeout", "The worker that counted the tokens stopped; send the request again.")


@dataclass(frozen=True, slots=True)
class Counter:
    """Counts on one engine, beside all that runs there."""

    inputs: Inputs
    engine: Engine
    model: ServedModel
    mcp_sessions: McpSessions
    queue: TaskQueue
    pubsub: PubSub
    places: Bound = field(default_factory=lambda: Bound("counts", PLACES))

    async def count(self, key: str, project: str) -> None:
        """Counts the prompt under this key of Redis, and replies to whoever left it. Does nothing if it is gone."""
        PROJECT.set(project)
        count_id = key.rpartition("#")[2]
        with about(count_id):
            try:
                async with asyncio.timeout(COUNT_SECONDS):
                    with await self.places.wait(project):
                        if (sealed := await self.queue.take_prompt(key)) is None:
                            return
                        reply = await self._reply(project, sealed)
            except (TimeoutError, QueueUnavailable):
                return  # its caller is told to ask again
            except asyncio.CancelledError:
                await run_to_completion(self._send(count_id, {"error": _STOPPED}))
                raise
            await self._send(count_id, reply)

    async def _send(self, count_id: str, reply: Json) -> None:
        await self.pubsub.publish([Chunk(count_id, 0, 0, 0, (), orjson.dumps(reply), final=True)])

    async def _reply(self, project: str, sealed: bytes) -> Json:
        try:
            return {"tokens": await self.tokens(await self.inputs.prompt(project, sealed))}
        except EngineDead:
            return {"error": _STOPPED}
        except EngineError as error:
            return {"error": error_object(error.code, str(error))}
        except Exception as error:
            log.error("the count went wrong: %s", type_and_places(error))
            return {"error": error_object("server_error", "the server had an error while it counted the tokens")}

    async def tokens(self, source: PromptSource) -> int:
        """Returns the tokens of the prompt, with the tools that its MCP servers list. Raises EngineError."""
        context = Context(self.inputs, source)
        secrets = await self.inputs.secrets(source.project, source.request)
        toolbox = self.mcp_sessions.toolbox(source.request, secrets, images=self.model.images)
        try:
            listed = None if toolbox is None else await all_listings(source.request, context, toolbox)
            return await prompt_tokens(self.engine, self.model, source, source.created_at, context, listed)
        finally:
            if toolbox is not None:
                toolbox.close()


async def prompt_tokens(
    engine: Engine,
    model: ServedModel,
    row: HasContext,
    created_at: int,
    context: Context,
    listed: Mapping[str, Sequence[Json]] | None,
) -> int:
    """Returns the tokens of the first prompt of the row's request; `listed` are the tools of its MCP servers, if it has
    any. Raises EngineError."""

    async def prepare(items: Sequence[Json]) -> Sequence[Json]:
        return items

    async def plan(items: Sequence[Json]) -> TurnPlan:
        listings = listings_of(items) if listed is None else listed
        return await plan_turn(engine, model, row.request, items, (), created_at, listings)

    try:
        return len((await context.turn(prepare, plan)).prompt)
    except PromptTooLong as error:
        if error.tokens is None:
            raise
        return error.tokens
