"""Do doorbells still ring? Streams live without them, by looking into Postgres, so nothing else would show it.

Two proofs, neither of which looks at a clock. Each worker runs a response, and all of its chunks are heard in Redis, by
an ear of the suite's own. And through each API somebody reads a response that says nothing more; an event that was
never committed is published for it, and the reader has it: only the doorbell can have brought it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

import httpx
from redis.asyncio.client import PubSub as RedisPubSub

from app.aio import end_tasks
from app.protocol.events import frames
from app.protocol.events.chunk import Chunk
from app.store import journal
from app.streaming.pubsub import CHANNEL, PubSub, PubSubUnavailable, unpack_message
from tests.faults import audit
from tests.faults.fleet import Fleet
from tests.faults.member import Member, Role
from tests.faults.questions import counting
from tests.faults.readers import frames_of
from tests.faults.records import Json, Seen
from tests.faults.seldom import seldom
from tests.support.waiting import until

SECONDS = 30.0
"""How long to try, before something is silent; less where the plan has less patience."""
EACH = 3
"""Responses at once, for each worker."""
KNOCK_SECONDS = 0.1
KNOCK = "response.knock"

Span = tuple[int, int]
"""First and last event of a chunk."""


async def silent(fleet: Fleet) -> list[str]:
    """What does not ring or does not hear, in a fleet of scripted workers that is whole and at rest."""
    deaf = [api.name for api in fleet.of(Role.API) if not await _hears(fleet, api)]
    return [f"{name} does not hear" for name in deaf] + await _mute(fleet)


def _patience(fleet: Fleet) -> float:
    return min(SECONDS, fleet.plan.settle_seconds)


# -- workers ---------------------------------------------------------------------------------------------------


async def _mute(fleet: Fleet) -> list[str]:
    """Workers that did not ring for all that they said, or took nothing to say."""
    pids = {worker: pid for pid, worker in (await fleet.ready_workers()).items()}
    names = {worker: m.name for worker, pid in pids.items() for m in fleet.of(Role.WORKER) if m.pid == pid}
    rang: dict[str, bool] = {}
    async with _ear(fleet) as heard:
        with suppress(TimeoutError):
            async with asyncio.timeout(_patience(fleet)):
                while not names.keys() <= rang.keys():
                    for worker, said in (await _say_something(fleet, EACH * len(names))).items():
                        rang[worker] = rang.get(worker, True) and await _were_heard(said, heard, _patience(fleet) / 3)
    mute = [f"{names.get(worker, worker)} does not ring" for worker, all_of_it in rang.items() if not all_of_it]
    return mute + [f"{names[worker]} takes nothing" for worker in names.keys() - rang.keys()]


async def _say_something(fleet: Fleet, count: int) -> dict[str, dict[str, set[Span]]]:
    """Runs some responses to their end, through all APIs: worker -> response -> what it wrote."""
    bodies = [counting(20).body("doorbell") | {"background": True} for _ in range(count)]
    ids = await asyncio.gather(*(_post(fleet, number, body) for number, body in enumerate(bodies)))
    await until(seldom(lambda: _ended(fleet, ids)), SECONDS, "they end")
    lives, writes = await audit.lives(fleet.db, ids), await audit.writes(fleet.db, ids)
    said: dict[str, dict[str, set[Span]]] = {}
    for response_id, life in lives.items():
        worker = next(step.worker for step in reversed(life) if step.worker is not None)
        spans = {(write.first, write.last) for write in writes[response_id] if write.attempt > 0}
        said.setdefault(worker, {})[response_id] = spans
    return said


async def _post(fleet: Fleet, number: int, body: Json) -> str:
    answer = await fleet.http.post(f"{fleet.urls[number % len(fleet.urls)]}/v1/responses", json=body)
    found: str = answer.raise_for_status().json()["id"]
    return found


async def _ended(fleet: Fleet, ids: Sequence[str]) -> bool:
    return all([(await journal.read(fleet.db, response_id)).ended for response_id in ids])


async def _were_heard(said: dict[str, set[Span]], heard: dict[str, set[Span]], seconds: float) -> bool:
    """Whether every chunk was published. Rings come beside the next commit: the last ones get a while."""
    with suppress(AssertionError):
        return await until(lambda: all(said[name] <= heard.get(name, set()) for name in said), seconds)
    return False


@asynccontextmanager
async def _ear(fleet: Fleet) -> AsyncIterator[dict[str, set[Span]]]:
    """Hears all that is published: response -> what came."""
    heard: dict[str, set[Span]] = {}
    async with fleet.valkey as client, client.pubsub() as pubsub:
        await pubsub.psubscribe(f"{CHANNEL}*")
        listening = asyncio.create_task(_listen(pubsub, heard))
        try:
            yield heard
        finally:
            await end_tasks(listening)


async def _listen(pubsub: RedisPubSub, heard: dict[str, set[Span]]) -> None:
    async for message in pubsub.listen():
        if message["type"] == "pmessage":
            response_id = message["channel"].decode().removeprefix(CHANNEL)
            chunk = unpack_message(response_id, message["data"])
            heard.setdefault(response_id, set()).add((chunk.first, chunk.last))


# -- APIs ------------------------------------------------------------------------------------------------------


async def _hears(fleet: Fleet, api: Member) -> bool:
    """Whether a reader at this API is given an event that is in no log."""
    url, body = f"{api.address}/v1/responses", counting(0).body("knock")
    body |= {"input": "/hang 5", "background": True, "stream": True}
    pubsub = PubSub(fleet.services.redis_url)
    try:
        async with asyncio.timeout(_patience(fleet)), fleet.http.stream("POST", url, json=body) as answer:
            answer.raise_for_status()
            response_id = await _knocked_at(pubsub, frames_of(answer.aiter_raw()))
        await fleet.http.post(f"{url}/{response_id}/cancel")
        return response_id is not None
    except (httpx.HTTPError, TimeoutError):
        return False
    finally:
        await pubsub.close()


async def _knocked_at(pubsub: PubSub, stream: AsyncIterator[bytes]) -> str | None:
    """Publishes the event until the stream brings it; the response's id, or None where the stream ends without."""
    seen = Seen(frames=[await anext(stream)])
    response_id: str = frames.decode(seen.frames[0])[0]["response"]["id"]
    knocking = asyncio.create_task(_knock(pubsub, response_id, seen))
    try:
        async for frame in stream:
            if frame.startswith(b"event: "):
                seen.frames.append(frame)
            if KNOCK.encode() in frame:
                return response_id
        return None
    finally:
        await end_tasks(knocking)


async def _knock(pubsub: PubSub, response_id: str, seen: Seen) -> None:
    """The event that is due next, over and over: the worker may be quicker with one of its own."""
    while True:
        event = {"type": KNOCK, "sequence_number": seen.next}
        with suppress(PubSubUnavailable):
            await pubsub.publish([Chunk(response_id, seen.next, seen.next, 1, (), frames.encode(event))])
        await asyncio.sleep(KNOCK_SECONDS)
