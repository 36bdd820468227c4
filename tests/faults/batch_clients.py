"""Clients of batches: each has one, from the upload of its file to the bytes of its results."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Sequence
from random import Random
from typing import Any

import httpx
import orjson

from app.protocol.requests.bodies.batch import CHAT, RESPONSES, WINDOWS
from app.protocol.status import BatchStatus
from tests.faults.clients import CONNECTION_ERRORS, RETRY_SECONDS, Refused, limit_seconds
from tests.faults.questions import line
from tests.faults.records import BatchStory, Json

SIZES = ((5, 30), (5, 30), (5, 30), (30, 200))
"""Lines of a batch."""
TIGHT = (3, 10)
"""The same of a project with tight limits: lines leave its other clients a quarter of them."""
CANCELLED = 0.2
FOLLOWED = 0.6
RESTLESS = 0.5
"""The chance that a reader drops a connection in the middle, each time."""
RETRIED = 0.5
"""Share that is retried of batches with lines that have no answer."""
WAIT_SECONDS = 3
"""Length of a long poll: less than clients take for a dead API process."""
FILES = ("output", "error")


def batch_story(random: Random, key: str, tenant: int) -> BatchStory:
    """A random batch."""
    endpoint, window = random.choice((RESPONSES, CHAT)), random.choice(sorted(WINDOWS))
    fewest, most = TIGHT if tenant else random.choice(SIZES)
    lines = {f"{key}-line-{number}": line(random) for number in range(1, random.randint(fewest, most) + 1)}
    return BatchStory(key, endpoint, window, lines, tenant)


def file_of(story: BatchStory) -> bytes:
    """The batch's file: a line for each question."""
    sent = {"method": "POST", "url": story.endpoint}
    lines = ({"custom_id": name, **sent, "body": each.line(story.endpoint)} for name, each in story.lines.items())
    return b"\n".join(map(orjson.dumps, lines))


class BatchClient:
    """One user's batch. Every request goes to a random one of `urls`, the API processes, until one answers."""

    def __init__(self, http: httpx.AsyncClient, urls: Sequence[str], story: BatchStory, random: Random) -> None:
        self._http = http
        self._urls = list(urls)
        self._story = story
        self._random = random

    async def run(self) -> BatchStory | None:
        """Stays until the client has its files. Returns the story of the batch that retries what failed, if one does.

        Cancelling this ends its readers, too.
        """
        story, random = self._story, self._random
        try:
            if story.batch_id is None:
                await self.create()
            async with asyncio.TaskGroup() as group:
                if random.random() < FOLLOWED:
                    group.create_task(self._noted(self.follow(RESTLESS)))
                if random.random() < CANCELLED:
                    group.create_task(self._noted(self.cancel(random.uniform(0, 5))))
                await self._noted(self.end())
            return await self._retried() if random.random() < RETRIED else None
        except Refused as refused:
            story.problems.append(str(refused))
        except asyncio.CancelledError:
            story.gave_up = True
        finally:
            story.ended = time.monotonic()
        return None

    async def create(self) -> None:
        """Uploads the file and creates the batch."""
        story = self._story
        sent: dict[str, Any] = {"data": {"purpose": "batch"}, "files": {"file": ("batch.jsonl", file_of(story))}}
        file = (await self._answer("POST", "/v1/files", **sent)).json()["id"]
        body = {"input_file_id": file, "endpoint": story.endpoint, "completion_window": story.window}
        made = await self._answer("POST", "/v1/batches", json=body | {"metadata": {"key": story.key}})
        story.batch_id = made.json()["id"]

    async def end(self) -> None:
        """Polls the batch to its end, and reads its files."""
        batch = await self._poll()
        while not BatchStatus(batch["status"]).final:
            await self._pause()
            batch = await self._poll()
        for kind in FILES:
            if (name := batch[f"{kind}_file_id"]) is not None:
                self._story.files[kind] = (await self._answer("GET", f"/v1/files/{name}/content")).content

    async def _poll(self) -> Json:
        query = {"wait": WAIT_SECONDS} if self._random.random() < 0.5 else {}
        batch: Json = (await self._answer("GET", self._path, params=query)).json()
        self._story.polls.append(batch)
        return batch

    async def follow(self, restless: float = 0.0) -> None:
        """Reads the results as they end. Wherever the connection is cut, the next one begins behind the last result.

        `restless` is the probability that a connection is dropped at a random result.
        """
        seen = self._story.seen
        while not seen or "batch" not in seen[-1]:
            most = self._random.randint(1, 40) if self._random.random() < restless else None
            url = f"{self._random.choice(self._urls)}{self._path}/results"
            try:
                async with self._http.stream("GET", url, params={"after": len(seen)}) as answer:
                    if answer.status_code == httpx.codes.OK:
                        await self._take(answer, most)
                    else:
                        await answer.aread()
                        limit_seconds("GET of the results", answer)
            except CONNECTION_ERRORS:
                pass
            await self._pause()

    async def _take(self, answer: httpx.Response, most: int | None) -> None:
        """Reads `most` results, or all. A line that is cut is no line."""
        self._story.connections += 1
        begun = b""
        async for piece in answer.aiter_raw():
            *lines, begun = (begun + piece).split(b"\n")
            for each in filter(bytes.strip, lines):
                self._story.seen.append(orjson.loads(each))
                if most is not None and (most := most - 1) <= 0:
                    return

    async def cancel(self, delay: float = 0.0) -> None:
        await asyncio.sleep(delay)
        self._story.cancel_sent = True
        answer = await self._answer("POST", f"{self._path}/cancel", expected=httpx.codes.BAD_REQUEST)
        if answer.status_code == httpx.codes.BAD_REQUEST and answer.json()["error"]["code"] != "batch_not_cancellable":
            self._story.problems.append(str(Refused("POST /cancel", answer)))

    async def _retried(self) -> BatchStory | None:
        """The story of a new batch of the lines without an answer."""
        story = self._story
        names = [orjson.loads(each)["custom_id"] for each in story.files.get("error", b"").splitlines()]
        if not names:
            return None
        made = await self._answer("POST", f"{self._path}/retry_failed")
        lines = {name: story.lines[name] for name in names}
        again = BatchStory(f"{story.key}-again", story.endpoint, story.window, lines, tenant=story.tenant)
        again.batch_id = made.json()["id"]
        return again

    async def _noted(self, doing: Awaitable[None]) -> None:
        try:
            await doing
        except Refused as refused:
            self._story.problems.append(str(refused))

    async def _answer(self, method: str, path: str, *, expected: int = httpx.codes.OK, **sent: Any) -> httpx.Response:
        """The first answer with 200, or the status that is `expected`. Raises Refused for what no fault explains."""
        while True:
            seconds = 0.0
            try:
                answer = await self._http.request(method, f"{self._random.choice(self._urls)}{path}", **sent)
            except CONNECTION_ERRORS:
                pass
            else:
                if answer.status_code in (httpx.codes.OK, expected):
                    return answer
                seconds = limit_seconds(f"{method} {path}", answer)
            await self._pause(seconds)

    @property
    def _path(self) -> str:
        return f"/v1/batches/{self._story.batch_id}"

    async def _pause(self, seconds: float = 0.0) -> None:
        await asyncio.sleep(seconds + self._random.uniform(*RETRY_SECONDS))
