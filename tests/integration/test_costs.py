"""What one response costs, in each mode, and each further flush: docs/internals/performance.md has the table.

One response at a time, on warm connections. The engine is in lock-step: it makes the next delta once the one before
is committed, published and read. So each flush has one delta, and the counts are the same in every run.

    WRITE_COSTS=1 .venv/bin/python -m pytest tests/integration/test_costs.py    # writes the table
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import astuple
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import orjson
import pytest
import redis
from sqlalchemy import text

from app.batches.progress import BatchProgress
from app.dispatcher import Dispatcher
from app.protocol.events.chunk import Chunk
from app.queue.message import Kind, worker_list
from app.queue.publisher import TaskQueue
from app.responses.read import reader
from app.store.database import Database
from app.store.keys import pubsub_key
from app.store.responses import logs
from app.store.responses.logs import Entry, append
from app.streaming.pubsub import PubSub
from tests.bench.page import DOCS, PAGE, filled
from tests.support.api import MODEL, Api, serving, settings_for
from tests.support.batches import carrying
from tests.support.costs import Costs, Meters, meters
from tests.support.roles import close_roles
from tests.support.waiting import until
from tests.support.waiting_rows import QUEUE
from tests.support.worker import Worker, worker
from workers.engine.base import EngineDelta
from workers.generation.turns.turn_generator import UNSTREAMED_TOKENS
from workers.generation.writing import chunk_writer

MODES = {
    "background": {"background": True},
    "background, stream": {"background": True, "stream": True},
    "foreground": {},
    "foreground, stream": {"stream": True},
}
FLUSH = "{}: each further flush"
LINE = "a line of a batch"
LINES = 100
"""Lines of the batch; each has a part of the batch's own costs."""
FLUSHES = 5
"""Further flushes of the longer response."""
ROUNDS = 5
"""The least of them counts: what happens beside a response can only add to it."""
WARM_UP = 3
HOURS = 3600.0
"""Nothing that goes by a clock happens during a measurement."""
TITLES = ("", "SQL statements", "commits", "WAL bytes", "Redis round trips", "messages", "tasks", "hops")
WAL = 2
"""Its index among the costs."""
WAL_SHARE, WAL_BYTES = 0.05, 50.0
"""WAL bytes may differ by such a share of them, or so many: they depend on where rows find room in their pages."""
LINE_COUNTS = 0.1
"""Other costs of a line may differ by so much: some of the batch's steps open a connection, or wait for one."""
READ = "response.output_text.delta"
soon = partial(until, pause=0.001)
"""Most of what is waited for here takes a millisecond, and there are three thousand such waits."""


class WatchedPubSub(PubSub):
    """Counts the chunks that it has published."""

    published = 0

    async def publish(self, chunks: Any) -> None:
        made: list[Chunk] = list(chunks)
        await super().publish(made)
        self.published += len(made)


class WatchedLogs:
    """Counts the chunks that were committed."""

    committed = 0

    async def append(self, db: Database, entries: Sequence[Entry]) -> set[str]:
        appended = await append(db, entries)
        self.committed += len(appended)
        return appended


class WatchedDispatcher(Dispatcher):
    """Counts its dispatches."""

    dispatched = 0

    async def dispatch(self, queue: str) -> None:
        await super().dispatch(queue)
        self.dispatched += 1


class Stepper:
    """Holds each delta of the engine until it is let go."""

    def __init__(self, at_work: Worker) -> None:
        self._generate = at_work.engine.generate
        self._gate = asyncio.Semaphore(0)
        self.made = 0

    async def generate(self, *args: Any, **kwargs: Any) -> AsyncGenerator[EngineDelta]:
        async with aclosing(self._generate(*args, **kwargs)) as deltas:
            async for delta in deltas:
                self.made += 1
                await self._gate.acquire()
                yield delta

    def let_go(self) -> None:
        self._gate.release()


class System:
    """The API and a worker in this loop, and the client of both."""

    def __init__(
        self,
        api: Api,
        at_work: Worker,
        logs: WatchedLogs,
        pubsub: WatchedPubSub,
        dispatcher: WatchedDispatcher,
        valkey: redis.Redis,
        batches: BatchProgress,
    ) -> None:
        self._api = api
        self._batches = batches
        self._worker = at_work
        self._logs = logs
        self._pubsub = pubsub
        self._dispatcher = dispatcher
        self._valkey = valkey
        own = worker_list(QUEUE, at_work.node)
        self._lists = [f"{own}{kind}" for kind in Kind]
        self._read = 0
        """Chunks that the client has read of this response's stream."""

    def take(self) -> str | None:
        """Takes the next message from Redis, in place of Celery; returns the id of its response."""
        found = (self._valkey.rpop(name) for name in self._lists)
        return next((orjson.loads(message)["headers"]["id"] for message in found if message is not None), None)

    async def answer(self, flushes: int, **mode: Any) -> None:
        """One response with so many flushes of text, from the request to the answer."""
        self._read = self._logs.committed = self._pubsub.published = self._dispatcher.dispatched = 0
        words = 1 + (flushes - 1) * (1 if mode.get("stream") else UNSTREAMED_TOKENS)
        asking = asyncio.create_task(self._ask(f"/repeat {words} x", **mode))
        response_id = await soon(self.take, what="a message")
        await self._run(flushes, response_id, **mode)
        await asking
        if mode == MODES["background"]:
            assert (await self._api.get(response_id)).json()["status"] == "completed"

    async def answer_batch(self, count: int = LINES) -> None:
        """A batch of so many lines, from its file to its results; each as a background response with one flush."""
        asked = {"custom_id": "line", "method": "POST", "url": "/v1/responses"}
        body = {"model": MODEL, "input": "/repeat 1 x"}
        lines = [orjson.dumps({**asked, "custom_id": f"line-{number}", "body": body}) for number in range(count)]
        files = {"file": ("batch.jsonl", b"\n".join(lines))}
        file = (await self._api.client.post("/v1/files", data={"purpose": "batch"}, files=files)).json()
        asked = {"input_file_id": file["id"], "endpoint": "/v1/responses", "completion_window": "24h"}
        batch_id = (await self._api.client.post("/v1/batches", json=asked)).json()["id"]
        await self._carry_on()
        await self._dispatcher.dispatch(QUEUE)
        for _ in range(count):
            self._logs.committed = self._pubsub.published = self._dispatcher.dispatched = 0
            await self._run(1, await soon(self.take, what="a message"), **MODES["background"])
        await self._carry_on()
        batch = (await self._api.client.get(f"/v1/batches/{batch_id}")).json()
        assert batch["request_counts"]["completed"] == count
        await self._api.client.get(f"/v1/files/{batch['output_file_id']}/content")

    async def _carry_on(self) -> None:
        await self._batches.advance()
        await soon(lambda: all(task.done() for task in self._batches._tasks.values()), what="the batch's step")

    async def _run(self, flushes: int, response_id: str, **mode: Any) -> None:
        """Runs a response in lock-step."""
        stepper = Stepper(self._worker)
        with patch.object(self._worker.engine, "generate", stepper.generate):
            job = self._worker.start(response_id)
            for step in range(flushes + 1):
                await soon(partial(self._is_at, stepper, step, **mode), what=f"flush {step}")
                stepper.let_go()
            await job.task
            await soon(partial(self._has_written, flushes + 1, 1, **mode), what="the last chunk")
            await soon(lambda: self._dispatcher.dispatched == 1, what="the dispatch")

    def _is_at(self, stepper: Stepper, step: int, **mode: Any) -> bool:
        """Whether everything that this flush and those before it cause has happened."""
        has_read = not mode.get("stream") or self._read == step
        return stepper.made - 1 == step and self._has_written(step, **mode) and has_read

    def _has_written(self, chunks: int, ends: int = 0, **mode: Any) -> bool:
        """Whether so many chunks are committed, and published if anybody may follow them: else the end alone."""
        is_followed = mode != MODES["background"]
        return self._logs.committed == chunks and self._pubsub.published == (chunks if is_followed else ends)

    async def _ask(self, words: str, **mode: Any) -> None:
        if not mode.get("stream"):
            assert (await self._api.post(input=words, **mode)).is_success
            return
        async with self._api.streaming(input=words, **mode) as stream:
            while (event := await stream.event()) is not None:
                self._read += event["type"] == READ
            assert await stream.frame() is None  # Otherwise the client would open another connection the next time.


@asynccontextmanager
async def system(services: Any, url: str, home: Path, valkey: redis.Redis) -> AsyncIterator[System]:
    """A system whose clocks stand still, as far as that matters here."""
    settings = settings_for(services, home)
    db = Database(url)
    pubsub = WatchedPubSub(services.redis_url, pubsub_key(db))
    queue = TaskQueue(settings)
    dispatcher = WatchedDispatcher(db, queue)
    async with AsyncExitStack() as stack:
        for close in (db.close, partial(close_roles, db), pubsub.close, queue.close, dispatcher.close):
            stack.push_async_callback(close)  # the last one first
        api = await stack.enter_async_context(serving(settings))
        carried = await stack.enter_async_context(carrying(services, api, pubsub))
        at_work = await stack.enter_async_context(worker(db, pubsub, lease_seconds=HOURS, dispatcher=dispatcher))
        watched = WatchedLogs()
        with (
            patch.object(reader, "POLL_SECONDS", HOURS),
            patch.object(chunk_writer, "BEGIN_SECONDS", HOURS),
            patch.object(logs, "append", watched.append),
        ):
            yield System(api, at_work, watched, pubsub, dispatcher, valkey, carried.progress)


@asynccontextmanager
async def unvacuumed(services: Any) -> AsyncIterator[None]:
    """Keeps autovacuum away, which writes WAL when it likes, and what other tests have left in pages and indexes."""
    owner = Database(services.owner_url, 1)
    try:
        await owner.execute(text("TRUNCATE responses, conversations, files, file_parts, batches CASCADE"))
        await _alter_all(owner, "SET (autovacuum_enabled = off)")
        yield
    finally:
        await _alter_all(owner, "RESET (autovacuum_enabled)")
        await owner.close()


async def _alter_all(db: Database, change: str) -> None:
    async with db.begin() as connection:
        tables = await connection.execute(text("SELECT tablename FROM pg_tables WHERE schemaname = 'public'"))
        for (table,) in tables.all():
            await connection.execute(text(f"ALTER TABLE {table} {change}"))


async def cost_of(meters: Meters, work: Callable[[], Awaitable[None]]) -> tuple[Costs, Counter[str]]:
    """Returns what it cost, and what that was, by name."""
    idle = frozenset(meters.running)
    meters.notes.clear()
    before = await meters.read()
    await work()
    await soon(lambda: meters.running <= idle, what=lambda: f"the end of {meters.running - idle}")
    return await meters.read() - before, meters.notes.copy()


async def measured(system: System, meters: Meters) -> tuple[dict[str, Costs], dict[str, Counter[str]]]:
    """Returns the rows of the table, and the notes about each."""
    costs, notes = dict[str, Costs](), dict[str, Counter[str]]()
    for name, mode in MODES.items():
        for _ in range(WARM_UP):
            await system.answer(2, **mode)
        works = [partial(system.answer, flushes, **mode) for flushes in (1, 1 + FLUSHES)]
        runs = [[await cost_of(meters, work) for work in works] for _ in range(ROUNDS)]
        short, long = (least([run[which][0] for run in runs]) for which in range(2))
        costs |= {name: short, FLUSH.format(name): (long - short) / FLUSHES}
        notes |= {name: runs[-1][0][1], FLUSH.format(name): runs[-1][1][1] - runs[-1][0][1]}
    await system.answer_batch(WARM_UP)
    batches = [await cost_of(meters, system.answer_batch) for _ in range(2)]
    costs[LINE], notes[LINE] = least([cost for cost, _ in batches]) / LINES, batches[-1][1]
    return costs, notes


def least(found: list[Costs]) -> Costs:
    first, *others = found
    for other in others:
        first = first.least(other)
    return first


def table(costs: dict[str, Costs]) -> list[str]:
    """The lines of the page's table."""
    rows = [
        [name, *(f"{value:,g}" if index != WAL else f"{value:,.0f}" for index, value in enumerate(astuple(each)))]
        for name, each in costs.items()
    ]
    return [f"| {' | '.join(cells)} |" for cells in (TITLES, ["--", *["--:"] * (len(TITLES) - 1)], *rows)]


def parsed(page: str) -> dict[str, Costs]:
    """The rows of the page's table."""
    block = page.partition("<!-- bench:costs -->")[2].partition("<!-- /bench:costs -->")[0].strip()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in block.splitlines()[2:]]
    return {name: Costs(*(float(cell.replace(",", "")) for cell in cells)) for name, *cells in rows}


def differences(expected: dict[str, Costs], found: dict[str, Costs], notes: dict[str, Counter[str]]) -> list[str]:
    """A line for each cost that is another now, and below those of a row what was counted in its last run."""
    lines = []
    for name, costs in found.items():
        pairs = zip(TITLES[1:], astuple(expected[name]), astuple(costs), strict=True)
        if changed := [
            f"{name}: {title} {old:,g} -> {new:,g}" for title, old, new in pairs if differ(name, title, old, new)
        ]:
            lines += [*changed, *(f"    {count} x {note}" for note, count in sorted(notes[name].items()))]
    return lines


def differ(name: str, title: str, old: float, new: float) -> bool:
    allowed = LINE_COUNTS if name == LINE else 0.0
    if title == TITLES[1 + WAL]:
        allowed = max(WAL_SHARE * old, WAL_BYTES)
    return abs(new - old) > allowed


async def test_a_response_costs_what_the_page_says(services: Any, migrated: str, db: Database, tmp_path: Path) -> None:
    page = DOCS / PAGE
    valkey = redis.Redis.from_url(services.redis_url)
    quiet, running_system = unvacuumed(services), system(services, migrated, tmp_path, valkey)
    async with meters(services) as counting, quiet, running_system as running:
        while running.take() is not None:
            pass  # of another test
        found, notes = await measured(running, counting)
    valkey.close()
    if os.environ.get("WRITE_COSTS"):
        page.write_text(filled(page.read_text(encoding="utf-8"), "costs", table(found)), encoding="utf-8")
    expected = parsed(page.read_text(encoding="utf-8"))
    assert expected.keys() == found.keys()
    if different := differences(expected, found, notes):
        pytest.fail(
            "\n".join([f"docs/internals/{PAGE} (What one response costs) says something else:", *different]),
            pytrace=False,
        )
