"""Whether doorbells (messages in Redis) still arrive. Streams continue without them, so no other check would notice.

Two proofs, and neither measures time. A subscriber of the suite must receive all chunks of responses that each worker
runs. And a reader at each API process reads a response that has no more events; the suite publishes an event that was
never committed, and only a doorbell can have brought it to the reader.
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
from app.store.keys import pubsub_key
from app.store.responses import logs
from app.streaming.message import Messages
from app.streaming.pubsub import CHANNEL, PubSub
from tests.faults import audit
from tests.faults.fleet import Fleet
from tests.faults.member import Member, Role
from tests.faults.polling import with_pause
from tests.faults.questions import counting
from tests.faults.readers import frames_of
from tests.faults.records import Json, ReaderRecord
from tests.support.waiting import until

SECONDS = 30.0
"""Maximum of each proof; less if the plan settles sooner."""
PER_WORKER = 3
"""Responses in each try."""
PROBE_SECONDS = 0.1
PROBE = "response.probe"

Span = tuple[int, int]
"""First and last event of a chunk."""


async def failures(fleet: Fleet) -> list[str]:
    """Workers that do not publish and API processes that do not receive, in a whole, idle fleet of scripted workers."""
    not_receiving = [api.name for api in fleet.of(Role.API) if not await _receives(fleet, api)]
    return [f"{name} does not receive" for name in not_receiving] + await _not_publishing(fleet)


def _limit(fleet: Fleet) -> float:
    return min(SECONDS, fleet.plan.settle_seconds)


# -- workers ---------------------------------------------------------------------------------------------------


async def _not_publishing(fleet: Fleet) -> list[str]:
    """Workers that did not publish all that they committed, or took no response."""
    pids = {worker: pid for pid, worker in (await fleet.ready_workers()).items()}
    names = {worker: m.name for worker, pid in pids.items() for m in fleet.of(Role.WORKER) if m.pid == pid}
    complete: dict[str, bool] = {}
    async with _subscriber(fleet) as received:
        with suppress(TimeoutError):
            async with asyncio.timeout(_limit(fleet)):
                while not names.keys() <= complete.keys():
                    for worker, written in (await _run_responses(fleet, PER_WORKER * len(names))).items():
                        arrived = await _all_received(written, received, _limit(fleet) / 3)
                        complete[worker] = complete.get(worker, True) and arrived
    found = [f"{names.get(worker, worker)} does not publish" for worker, all_of_it in complete.items() if not all_of_it]
    return found + [f"{names[worker]} takes no response" for worker in names.keys() - complete.keys()]


async def _run_responses(fleet: Fleet, count: int) -> dict[str, dict[str, set[Span]]]:
    """Runs responses to their end, through all API processes: worker -> response id -> the chunks that it wrote."""
    bodies = [counting(20).body("doorbell") | {"background": True, "stream": True} for _ in range(count)]
    ids = await asyncio.gather(*(_post(fleet, number, body) for number, body in enumerate(bodies)))
    await until(with_pause(lambda: _ended(fleet, ids)), SECONDS, "they end")
    transitions, writes = await audit.transitions(fleet.db, ids), await audit.writes(fleet.db, ids)
    written: dict[str, dict[str, set[Span]]] = {}
    for response_id, steps in transitions.items():
        worker = next(step.worker for step in reversed(steps) if step.worker is not None)
        spans = {(write.first, write.last) for write in writes[response_id] if write.attempt > 0}
        written.setdefault(worker, {})[response_id] = spans
    return written


async def _post(fleet: Fleet, number: int, body: Json) -> str:
    url = f"{fleet.urls[number % len(fleet.urls)]}/v1/responses"
    async with fleet.http.stream("POST", url, json=body) as answer:
        return _id_in(await anext(frames_of(answer.raise_for_status().aiter_raw())))


def _id_in(frame: bytes) -> str:
    """The id of the response in a stream's first event."""
    found: str = frames.decode(frame)[0]["response"]["id"]
    return found


async def _ended(fleet: Fleet, ids: Sequence[str]) -> bool:
    return all([(await logs.read(fleet.db, response_id)).ended for response_id in ids])


async def _all_received(written: dict[str, set[Span]], received: dict[str, set[Span]], seconds: float) -> bool:
    """Whether every chunk arrives within `seconds`: a worker publishes beside its next commit."""
    with suppress(AssertionError):
        return await until(lambda: all(written[id_] <= received.get(id_, set()) for id_ in written), seconds)
    return False


@asynccontextmanager
async def _subscriber(fleet: Fleet) -> AsyncIterator[dict[str, set[Span]]]:
    """Receives everything that is published: response id -> chunks."""
    received: dict[str, set[Span]] = {}
    async with fleet.valkey as client, client.pubsub() as pubsub:
        await pubsub.psubscribe(f"{CHANNEL}*")
        messages = Messages(await pubsub_key(fleet.db)())
        listening = asyncio.create_task(_listen(pubsub, messages, received))
        try:
            yield received
        finally:
            await end_tasks(listening)


async def _listen(pubsub: RedisPubSub, messages: Messages, received: dict[str, set[Span]]) -> None:
    async for message in pubsub.listen():
        if message["type"] == "pmessage":
            response_id = message["channel"].decode().removeprefix(CHANNEL)
            chunk = messages.unpack(response_id, message["data"])
            if chunk is not None:  # A large chunk is in the log only.
                received.setdefault(response_id, set()).add((chunk.first, chunk.last))


# -- API processes ---------------------------------------------------------------------------------------------


async def _receives(fleet: Fleet, api: Member) -> bool:
    """Whether a reader at this API process gets an event that is in no log."""
    url, body = f"{api.address}/v1/responses", counting(0).body("probe")
    body |= {"input": "/hang 5", "background": True, "stream": True}
    pubsub = PubSub(fleet.services.redis_url, pubsub_key(fleet.db))
    try:
        async with asyncio.timeout(_limit(fleet)), fleet.http.stream("POST", url, json=body) as answer:
            answer.raise_for_status()
            response_id = await _read_until_probe(pubsub, frames_of(answer.aiter_raw()))
        await fleet.http.post(f"{url}/{response_id}/cancel")
        return response_id is not None
    except (httpx.HTTPError, TimeoutError):
        return False
    finally:
        await pubsub.close()


async def _read_until_probe(pubsub: PubSub, stream: AsyncIterator[bytes]) -> str | None:
    """Publishes probes until the stream has one. Returns the response's id, or None if the stream ends without one."""
    seen = ReaderRecord(frames=[await anext(stream)])
    response_id = _id_in(seen.frames[0])
    probing = asyncio.create_task(_probe(pubsub, response_id, seen))
    try:
        async for frame in stream:
            if frame.startswith(b"event: "):
                seen.frames.append(frame)
            if PROBE.encode() in frame:
                return response_id
        return None
    finally:
        await end_tasks(probing)


async def _probe(pubsub: PubSub, response_id: str, seen: ReaderRecord) -> None:
    """Publishes an event with the next sequence number, repeatedly: the worker may publish one of its own first."""
    while True:
        event = {"type": PROBE, "sequence_number": seen.next}
        await pubsub.publish([Chunk(response_id, seen.next, seen.next, 1, (), frames.encode(event))])
        await asyncio.sleep(PROBE_SECONDS)
