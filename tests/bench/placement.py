"""What placement is worth: agents whose contexts grow, on workers that each remember what they have read.

Postgres, Valkey, inserts, dispatches and claims are real. The engines are arithmetic: a prompt takes the time to read
what this worker's cache lacks, one prompt after the other, and tokens come at a steady pace. So a fleet of eight GPUs
fits on two cores, and nothing but the placement differs.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, defaultdict
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from statistics import fmean, median, quantiles
from typing import Any

from app.aio import BackgroundTasks
from app.dispatcher import Dispatcher
from app.queue.message import Message
from app.scheduling.decisions import Sending
from app.store.context.size import find_previous
from app.store.responses.inserts import Inserter
from app.store.responses.new_rows import PREFIX_BYTES, NewResponse
from app.store.rows import ResponseRow
from tests.bench.fair.rig import Rig, Say, started_rig
from tests.bench.results import Results
from tests.support.rows import new_response
from tests.support.slot_worker import SlotWorker, at_work

NAME = "placement"
BLOCK = 16
"""Tokens of a block of the cache."""
LOOK_SECONDS = 0.02
"""How often a worker looks for messages: eight in one process must not be busy with that alone."""


@dataclass(frozen=True, slots=True)
class Load:
    """Agents of several tenants, each with turns one after the other, and the fleet that they meet."""

    workers: int = 8
    slots: int = 32
    agents: int = 200
    turns: int = 50
    tenants: int = 3
    system_tokens: int = 4_000
    """Of a prompt that all agents of a tenant share."""
    turn_tokens: int = 500
    """By which each turn is longer than the one before."""
    output_tokens: int = 120
    think_seconds: float = 1.0
    """Between a turn and the next one of an agent."""
    prefill: float = 10_000.0
    """Tokens a second that a worker reads."""
    pace_seconds: float = 0.025
    """Of each token of output."""
    cache_tokens: int = 1_000_000
    """What a worker remembers."""

    def input_of(self, turn: int) -> int:
        return self.system_tokens + turn * self.turn_tokens


@dataclass(slots=True)
class Cache:
    """The contexts that a worker has read, the one used longest ago first."""

    tokens: int
    read: OrderedDict[str, int] = field(default_factory=OrderedDict)

    def use(self, context: str, shared: str, shared_tokens: int, tokens: int) -> int:
        """Reads a context of so many tokens; returns how many of them were there."""
        known = max(self.read.get(context, 0), min(self.read.get(shared, 0), shared_tokens))
        for name, count in ((shared, shared_tokens), (context, tokens)):
            self.read[name] = count
            self.read.move_to_end(name)
        while sum(self.read.values()) > self.tokens:
            self.read.popitem(last=False)
        return min(known, tokens) // BLOCK * BLOCK


@dataclass(slots=True)
class Found:
    """What all agents have seen."""

    input: int = 0
    cached: int = 0
    first_tokens: list[float] = field(default_factory=list)
    """Seconds from the request."""
    took: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """By tenant, the seconds of each of its agents."""
    seconds: float = 0.0


class CachingWorker(SlotWorker):
    """A worker whose engine reads prompts one after the other, and remembers them."""

    def __init__(self, rig: Rig, load: Load, name: str) -> None:
        super().__init__(rig.db, rig.services.redis_url, load.slots, name)
        self.pause = LOOK_SECONDS
        self.found = Found()
        self.ends: dict[str, asyncio.Future[None]] = {}
        self._load = load
        self._cache = Cache(load.cache_tokens)
        self._reading = asyncio.Lock()

    async def generate(self, row: ResponseRow) -> None:
        load, about = self._load, row.request["metadata"]
        tokens = load.input_of(int(about["turn"]))
        async with self._reading:
            cached = self._cache.use(about["agent"], row.project, load.system_tokens, tokens)
            await asyncio.sleep((tokens - cached) / load.prefill)
        self.found.input += tokens
        self.found.cached += cached
        await asyncio.sleep(load.pace_seconds)
        self.found.first_tokens.append(time.monotonic() - float(about["asked"]))
        await asyncio.sleep(load.pace_seconds * (load.output_tokens - 1))

    async def run(self, row: ResponseRow) -> None:
        await super().run(row)
        self.ends.pop(row.id).set_result(None)


class Agents:
    """The clients, in place of an API process. Without `affinity` their requests do not say what they continue."""

    def __init__(self, rig: Rig, load: Load, workers: Sequence[CachingWorker], *, affinity: bool) -> None:
        self._load = load
        self._affinity = affinity
        self._queue = workers[0].queue
        self._db = rig.db
        self._dispatcher = Dispatcher(rig.db, self._queue)
        self._inserter = Inserter(rig.db, self._send)
        self._sending = BackgroundTasks()
        self._found = Found()
        self._ends: dict[str, asyncio.Future[None]] = {}
        for worker in workers:
            worker.found, worker.ends = self._found, self._ends

    async def run(self) -> Found:
        begun = time.monotonic()
        async with asyncio.TaskGroup() as agents:
            for number in range(self._load.agents):
                agents.create_task(self._work(number))
        self._found.seconds = time.monotonic() - begun
        await self._inserter.close()
        await self._dispatcher.close()
        return self._found

    async def _work(self, number: int) -> None:
        load, tenant, previous = self._load, f"t{number % self._load.tenants}", None
        await asyncio.sleep(load.think_seconds * number / load.agents)
        begun = time.monotonic()
        for turn in range(1, load.turns + 1):
            previous = await self._ask(tenant, f"agent-{number}", turn, previous)
            await asyncio.sleep(load.think_seconds)
        self._found.took[tenant].append(time.monotonic() - begun)

    async def _ask(self, tenant: str, agent: str, turn: int, previous: str | None) -> str:
        about = {"agent": agent, "turn": str(turn), "asked": str(time.monotonic())}
        said: dict[str, Any] = {"metadata": about}
        if self._affinity:
            said |= {"instructions": "x" * PREFIX_BYTES} if previous is None else {"previous_response_id": previous}
        before = await find_previous(self._db, tenant, previous) if previous and self._affinity else None
        new = replace(new_response(project=tenant, **said), ran_on=before and before.node)
        self._ends[new.id] = ended = asyncio.get_running_loop().create_future()
        await self._inserter.create(new)
        await ended
        return new.id

    def _send(self, new: NewResponse, sending: Sending) -> None:
        if sending.at_once:
            self._sending.start(self._queue.enqueue(replace(Message.of(new), sent_to=sending.sent_to)))


async def measure(say: Say, load: Load) -> Results:
    """A row with affinity and one without, on the same services."""
    results = Results.begin(NAME, workers=load.workers, agents=load.agents, turns=load.turns)
    async with started_rig(results, say, 1.0) as rig:
        for affinity in (True, False):
            await rig.empty()
            workers = [CachingWorker(rig, load, f"w{number}") for number in range(load.workers)]
            async with AsyncExitStack() as stack:
                for worker in workers:
                    await stack.enter_async_context(at_work(worker))
                found = await Agents(rig, load, workers, affinity=affinity).run()
            row = {"placement": "with affinity" if affinity else "by load alone", **_row(load, found)}
            results.rows.append(row)
            say("  " + ", ".join(f"{key}: {value}" for key, value in row.items()))
    return results


def _row(load: Load, found: Found) -> dict[str, Any]:
    means = [fmean(seconds) for seconds in found.took.values()]
    off = max(abs(mean / fmean(means) - 1) for mean in means)
    return {
        "of the input from the cache": f"{found.cached / found.input:.1%}",
        "first token s (median)": f"{median(found.first_tokens):.2f}",
        "p95": f"{quantiles(found.first_tokens, n=20)[-1]:.2f}",
        "tokens/s": f"{load.output_tokens * load.agents * load.turns / found.seconds:,.0f}",
        "a tenant's share off by": f"{off:.1%}",
    }
