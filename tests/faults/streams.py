"""Long streams of known text, each with a reader that stays connected, for measurements and scenarios."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from random import Random

import httpx

from app.protocol.events import frames
from tests.faults.questions import counting
from tests.faults.readers import frames_of, resume
from tests.faults.records import Form, ReaderRecord, Story
from tests.support.waiting import until

SECONDS = 90.0
OPENING_EVENTS = 5
"""A stream with more events than this has its first token."""


class Streams:
    """`count` streams that count to `numbers`. Each story has one reader, which ends with the context."""

    def __init__(self, http: httpx.AsyncClient, urls: Sequence[str], random: Random, count: int, numbers: int) -> None:
        self._http = http
        self._urls = list(urls)
        self._random = random
        self._count = count
        self._question = counting(numbers)
        self._readers: list[asyncio.Task[None]] = []
        self.stories: list[Story] = []

    @property
    def seen(self) -> dict[str, ReaderRecord]:
        """Response id -> what its reader was sent."""
        return {story.response_id: story.readers[0] for story in self.stories if story.response_id is not None}

    async def begin(self, name: str) -> None:
        """Starts all streams; returns when each has its first token."""
        self.stories = [
            Story(f"{name} {index}", False, Form.BACKGROUND_STREAM, self._question, time.monotonic())
            for index in range(self._count)
        ]
        for story in self.stories:
            await self._ask(story)
        await until(
            lambda: all(len(seen.frames) > OPENING_EVENTS for seen in self.seen.values()), SECONDS, "all streams run"
        )

    async def _ask(self, story: Story) -> None:
        body = self._question.body(story.key) | {"background": True, "stream": True}
        async with self._http.stream("POST", f"{self._urls[0]}/v1/responses", json=body) as answer:
            assert answer.status_code == httpx.codes.OK, await answer.aread()
            first = await anext(frames_of(answer.aiter_raw()))
        story.response_id = frames.decode(first)[0]["response"]["id"]
        story.readers.append(ReaderRecord())
        reading = resume(self._http, self._urls, story.response_id, story.readers[0], self._random, restless=0)
        self._readers.append(asyncio.create_task(reading))

    async def end(self) -> None:
        """Waits until all streams were read to their end."""
        await asyncio.gather(*self._readers)
        self._readers = []

    async def __aenter__(self) -> Streams:
        return self

    async def __aexit__(self, *_: object) -> None:
        for reader in self._readers:
            reader.cancel()
        await asyncio.gather(*self._readers, return_exceptions=True)

    async def cancel(self) -> None:
        """Cancels all responses and waits for the end of their streams."""
        for response_id in self.seen:
            await self._http.post(f"{self._urls[0]}/v1/responses/{response_id}/cancel")
        await self.end()
        self.stories = []
