"""A response's trace and its story: the engine gets the same trace at each attempt, and the row tells what happened."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import text

from app.operations.history import SAID, History, Moment, history_of
from app.store.database import Database
from app.store.guards import HandOver
from app.store.operations import known
from app.store.responses import claims
from app.store.responses.inserts import Inserter
from app.store.rows import Origin
from app.streaming.pubsub import PubSub
from tests.support.log_lines import logged
from tests.support.requests import message
from tests.support.rows import WORKER, claim, claimed, new_response, queued, release_all
from tests.support.waiting import until
from tests.support.worker import Worker, worker
from workers.engine.base import EngineDelta, EngineRequest
from workers.generation.outcome import Cancelled, Outcome
from workers.request_log import MAX_TEXT, RequestLog

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
TRACE = {"traceparent": PARENT, "tracestate": "congo=1"}
ORIGIN = Origin("key_1", "req_1", PARENT, "congo=1")


async def sent(db: Database, what: str, **request: Any) -> str:
    new = replace(new_response(input=[message(what)], **request), origin=ORIGIN)
    await Inserter(db).create(new)
    return new.id


def watch(at_work: Worker, monkeypatch: pytest.MonkeyPatch) -> list[Mapping[str, str] | None]:
    """The traces that the engine gets."""
    seen: list[Mapping[str, str] | None] = []
    generate = at_work.engine.generate

    def watched(request: EngineRequest) -> AsyncGenerator[EngineDelta]:
        seen.append(request.trace_headers)
        return generate(request)

    monkeypatch.setattr(at_work.engine, "generate", watched)
    return seen


async def told(db: Database, response_id: str) -> History:
    facts = await known.find(db, response_id)
    assert facts is not None
    return history_of(facts)


def claims_in(found: History) -> list[Moment]:
    return [each for each in found.moments if each.what == "claimed"]


async def test_the_engine_gets_the_same_trace_at_each_attempt(
    db: Database, pubsub: PubSub, monkeypatch: pytest.MonkeyPatch
) -> None:
    response_id = await sent(db, "/repeat 3 x")
    async with worker(db, pubsub) as first:
        seen = watch(first, monkeypatch)
        async with worker(db, pubsub, tokens_per_second=0.001) as dying:
            lost = watch(dying, monkeypatch)
            job = dying.start(response_id)
            await until(lambda: lost, what="the engine's request")
            await release_all(db, dying.lease.worker)  # as after a kill -9
            with logged() as lines:
                assert await first.run(response_id) is Outcome.COMPLETED
            await job.stop(Cancelled.SHUTDOWN)
    assert lost == seen == [TRACE]
    ours = lines.of("longhaul.runner")
    assert [(line["message"], line["attempt"]) for line in ours] == [("claimed", 2), ("completed", 2)]
    assert {(line["response_id"], line["request_id"]) for line in ours} == {(response_id, "req_1")}
    found = await told(db, response_id)
    assert [(moment.what, moment.attempt, moment.worker) for moment in found.moments] == [
        ("accepted", None, None),
        ("claimed", 1, dying.node),
        ("its worker died", 1, dying.node),
        ("claimed", 2, first.node),
        ("completed", None, None),
    ]
    assert (found.response.request_id, found.response.traceparent) == ("req_1", PARENT)


async def test_an_ordinary_response_has_no_history_and_tells_its_one_attempt(db: Database, pubsub: PubSub) -> None:
    response_id = await queued(db)
    before = await told(db, response_id)
    assert [moment.what for moment in before.moments][:1] == ["accepted"]
    async with worker(db, pubsub) as w:
        assert await w.run(response_id) is Outcome.COMPLETED
    (row,) = await db.execute(
        text("SELECT history, claimed_at = started_at AS same FROM responses WHERE id = :id"), {"id": response_id}
    )
    assert row.history is None and row.same
    (claim,) = claims_in(await told(db, response_id))
    assert (claim.attempt, claim.worker) == (1, w.node)


async def test_a_yield_and_a_drain_are_told(db: Database) -> None:
    row = await claimed(db)
    assert await claims.yield_(db, row.id, 1, WORKER)
    assert await claim(db, row.id, WORKER)
    assert await claims.release(db, row.id, 2, WORKER)
    assert [(each.what, each.attempt) for each in (await told(db, row.id)).moments] == [
        ("accepted", None),
        ("claimed", 1),
        (SAID[HandOver.YIELDED], 1),
        ("claimed", 2),
        (SAID[HandOver.DRAINED], 2),
    ]


async def test_a_row_notes_its_last_64_hand_overs(db: Database) -> None:
    row = await claimed(db)
    for attempt in range(1, 67):
        assert await claims.yield_(db, row.id, attempt, WORKER)
        assert await claim(db, row.id, WORKER)
    assert [each.attempt for each in claims_in(await told(db, row.id))] == list(range(3, 68))


async def test_the_request_log_has_figures_and_texts_only_if_asked(db: Database, pubsub: PubSub) -> None:
    secret = "a secret of mine"
    lines = {}
    for level in ("off", "summary", "full"):
        response_id = await sent(db, f"{secret} {'x' * MAX_TEXT}", temperature=0.5)
        async with worker(db, pubsub, tokens_per_delta=1000) as w:
            w.runner = replace(w.runner, requests=RequestLog(level))  # type: ignore[arg-type]
            with logged() as found:
                assert await w.run(response_id) is Outcome.COMPLETED
        lines[level] = found.of("longhaul.requests", response_id=response_id)
        assert (secret in str(found.all)) is (level == "full")
    assert lines["off"] == []
    (summary,), (full,) = lines["summary"], lines["full"]
    assert (summary["finish"], summary["temperature"], summary["request_id"]) == ("completed", 0.5, "req_1")
    assert summary["input_tokens"] > 0 and summary["output_tokens"] > 0 and summary["total_ms"] >= 0
    assert full["input"].endswith("...") and len(full["input"]) == MAX_TEXT + 3 and full["output"]
