"""How a client sends requests: one coroutine for each mode, and the loop that runs many of them at once."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterable
from random import Random
from typing import Any
from urllib.parse import urlsplit

import orjson

from tests.bench.client.scan import Scan
from tests.bench.client.tally import Tally
from tests.bench.client.wire import ConnectionBroken, Wire
from tests.bench.load import IN_BACKGROUND, STREAMING, Load, Mode, Time

UNFINISHED = frozenset({"queued", "in_progress"})
RESPONSES = "/v1/responses"
WARM_UP_SECONDS = 60.0
CLEAN_UP_SECONDS = 60.0
SHORTEST = 8
"""Tokens of the shortest stream of mixed lengths; the longest has LONGEST times the mean."""
LONGEST = 6
CLEANERS = 16
"""Connections that cancel what is left."""

One = Callable[[Wire, int], Awaitable[None]]


class Refused(Exception):
    """An answer other than 200."""


class LoadRunner:
    """Performs a load; `tally` has the counts."""

    def __init__(self, load: Load) -> None:
        self.load = load
        self.tally = Tally()
        self._posted: list[str] = []
        self._modes: dict[Mode, One] = {
            Mode.STREAM: self._stream,
            Mode.ARRIVE: self._stream_some,
            Mode.ENQUEUE: self._enqueue,
            Mode.FIRE: self._enqueue,
        }

    def wire(self) -> Wire:
        parts = urlsplit(self.load.url)
        assert parts.hostname and parts.port
        return Wire(parts.hostname, parts.port)

    async def prepare(self) -> None:
        """Warms the server up; for `ENQUEUE` gives its engine more to do than it will manage meanwhile."""
        mode = self.load.mode
        request = self._sync if mode in IN_BACKGROUND else self._modes[mode]
        await self._all(request, range(-self.load.warmup, 0), 1, WARM_UP_SECONDS)
        if mode is Mode.ENQUEUE and self.load.busy:
            await self._all(self._occupy, range(self.load.busy), CLEANERS)
            await self._all(self._sync, [0], 1)  # a turn of the engine: it has begun with what came before
        if self.tally.errors:
            raise Refused(f"the warm-up failed: {self.tally.complaints[0]}")

    async def measure(self) -> None:
        self.tally = Tally()
        if self.load.mode is Mode.ARRIVE:
            await self._at_random(self._stream_some, range(self.load.requests))
            return
        await self._all(self._modes[self.load.mode], range(self.load.requests), self.load.concurrency)
        if self.load.mode is Mode.FIRE:
            await self._until_ended()

    async def clean_up(self) -> None:
        """Cancels what was enqueued, and waits for its end."""
        if self.load.mode is not Mode.ENQUEUE:
            return
        left = self._posted
        await self._all(lambda wire, number: self._cancel(wire, left[number]), range(len(left)), CLEANERS)
        with contextlib.suppress(TimeoutError):  # vllm serve leaves some `queued` for ever
            async with asyncio.timeout(CLEAN_UP_SECONDS):
                await self._until_ended()

    async def _all(self, request: One, numbers: Iterable[int], concurrency: int, patience: float | None = None) -> None:
        """Each number once, `concurrency` of them at a time, each on a connection that is kept."""
        left = iter(numbers)

        async def ask() -> None:
            wire = self.wire()
            for number in left:
                await self._one(request, wire, number, patience)
            wire.close()

        await asyncio.gather(*(ask() for _ in range(concurrency)))

    async def _at_random(self, request: One, numbers: Iterable[int]) -> None:
        """Each number once, at the times of a Poisson process, each on a connection that nobody uses then."""
        random, loop, idle = Random(1), asyncio.get_running_loop(), list[Wire]()

        async def ask(number: int) -> None:
            wire = idle.pop() if idle else self.wire()
            await self._one(request, wire, number)
            idle.append(wire)

        due = loop.time()
        async with asyncio.TaskGroup() as asked:
            for number in numbers:
                due += random.expovariate(self.load.concurrency)
                await asyncio.sleep(due - loop.time())
                asked.create_task(ask(number))
        for wire in idle:
            wire.close()

    async def _one(self, request: One, wire: Wire, number: int, patience: float | None = None) -> None:
        try:
            async with asyncio.timeout(patience or self.load.patience):
                await request(wire, number)
            self.tally.ok += 1
        except (Refused, ConnectionBroken, OSError, ValueError, KeyError, TimeoutError) as error:
            self.tally.complain(error)
            wire.close()

    def body(self, **more: Any) -> bytes:
        mode = self.load.mode
        fields: dict[str, Any] = {"input": self.load.prompt, **self.load.body}
        if mode in STREAMING:
            fields["stream"] = True
        if mode in IN_BACKGROUND:
            fields["background"] = True
        return orjson.dumps({**fields, **more})

    async def _json(self, wire: Wire, method: str, path: str, body: bytes = b"") -> dict[str, Any]:
        status, answer = await wire.ask(method, path, body)
        if status != 200:
            raise Refused(f"{status} {answer[:200]!r}")
        decoded: dict[str, Any] = orjson.loads(answer)
        return decoded

    # -- one request of each mode ------------------------------------------------------------------------------

    async def _stream(self, wire: Wire, number: int) -> None:
        await self._watch(wire, self.body())

    async def _stream_some(self, wire: Wire, number: int) -> None:
        """A stream of another length than others, with the mean of the load."""
        mean = int(self.load.body["max_output_tokens"])
        length = min(max(SHORTEST, round(Random(number).expovariate(1 / mean))), LONGEST * mean)
        await self._watch(wire, self.body(max_output_tokens=length))

    async def _watch(self, wire: Wire, body: bytes) -> None:
        scan, begun = Scan(), time.perf_counter()
        status, _ = await wire.ask("POST", RESPONSES, body, scan.feed)
        if status != 200:
            raise Refused(f"{status} in answer to a stream")
        self.tally.streamed(scan, begun)

    async def _sync(self, wire: Wire, number: int) -> None:
        self.tally.ended(await self._json(wire, "POST", RESPONSES, self.body(background=False, stream=False)))

    async def _enqueue(self, wire: Wire, number: int) -> None:
        begun = time.perf_counter()
        response = await self._json(wire, "POST", RESPONSES, self.body())
        self.tally.times[Time.POST].append(time.perf_counter() - begun)
        self._posted.append(response["id"])

    async def _occupy(self, wire: Wire, number: int) -> None:
        body = self.body(max_output_tokens=self.load.busy_tokens, ignore_eos=True)
        self._posted.append((await self._json(wire, "POST", RESPONSES, body))["id"])

    async def _cancel(self, wire: Wire, response_id: str) -> None:
        await wire.ask("POST", f"{RESPONSES}/{response_id}/cancel")  # of one that has ended: whatever it says

    async def _ended(self, wire: Wire, response_id: str) -> dict[str, Any]:
        while True:
            got = await self._json(wire, "GET", f"{RESPONSES}/{response_id}")
            if got["status"] not in UNFINISHED:
                return got
            await asyncio.sleep(self.load.poll)

    async def _until_ended(self) -> None:
        """Waits for the last of what was posted; counts the tokens of what ended well."""
        wire = self.wire()
        async with asyncio.timeout(self.load.patience):
            for response_id in self._posted:
                got = await self._ended(wire, response_id)
                if self.load.mode is Mode.FIRE:
                    self.tally.ended(got)
        wire.close()
