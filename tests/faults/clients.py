"""Clients: each sends one request, retries as the openai SDK does, and records what it is sent."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from random import Random
from typing import Any

import httpx
import orjson

from app.protocol.status import Status
from tests.faults.readers import Gone, resume, take
from tests.faults.records import Form, Json, Poll, ReaderRecord, Story

TIMEOUT = httpx.Timeout(5.0, connect=2.0)
"""Streams have a keep-alive every 1.5 s: a client that reads nothing for 5 s takes the API process for dead."""
SYNC_TIMEOUT = httpx.Timeout(45.0, connect=2.0)
RETRY_SECONDS = (0.1, 0.8)
CONNECTION_ERRORS = (httpx.TransportError, httpx.StreamError)
MAX_LIMIT_SECONDS = 5.0
"""The longest wait after a 429, although the answer may say more: a run must come to its end."""
_FINAL = frozenset(status.value for status in Status if status.final)


class Refused(Exception):
    """An answer that no fault explains; the client does not retry."""

    def __init__(self, request: str, answer: httpx.Response) -> None:
        super().__init__(f"{request} was answered with {answer.status_code}: {answer.text[:200]}")


class Client:
    """One user. Every request goes to a random one of `urls`, the API processes."""

    def __init__(self, http: httpx.AsyncClient, urls: Sequence[str], story: Story, random: Random) -> None:
        self._http = http
        self._limit_seconds = 0.0
        """How long the last refusal by a limit asks to wait."""
        self._urls = list(urls)
        self._story = story
        self._random = random

    async def run(self) -> None:
        """Sends the request and stays until the response is final or deleted. Cancelling this ends its readers, too."""
        story = self._story
        try:
            async with asyncio.TaskGroup() as group:
                try:
                    await self._ask(group)
                except Refused as refused:
                    story.problems.append(str(refused))
        except asyncio.CancelledError:
            story.gave_up = True
        finally:
            story.ended = time.monotonic()

    async def _ask(self, group: asyncio.TaskGroup) -> None:
        match self._story.form:
            case Form.SYNC:
                await self._repeat(self._post)
            case Form.STREAM:
                await self._stream()
            case Form.BACKGROUND:
                await self._repeat(self._post)
                await self._follow(group)
            case Form.BACKGROUND_STREAM:
                await self._background_stream(group)
                await self._follow(group)

    # -- the request -----------------------------------------------------------------------------------------

    async def _repeat(self, send: Callable[[], Awaitable[bool]]) -> None:
        """Sends the POST until it is answered for good."""
        story, is_answered = self._story, False
        while not is_answered:
            try:
                is_answered = await send()
            except CONNECTION_ERRORS as error:
                story.posts.append(type(error).__name__)
                story.left = story.form is Form.SYNC and not story.keyed
            if not is_answered:
                await self._pause()

    async def _post(self) -> bool:
        """The POST of a response that is not streamed. Returns whether it was answered for good."""
        story, timeout = self._story, TIMEOUT if self._story.form.background else SYNC_TIMEOUT
        answer = await self._http.post(self._url(), json=self._body(), headers=self._headers(), timeout=timeout)
        story.posts.append(str(answer.status_code))
        if answer.status_code == httpx.codes.OK:
            story.response_id = answer.json()["id"]
            self._record_if_final(answer.json())
        elif answer.status_code == httpx.codes.INTERNAL_SERVER_ERROR and story.form is Form.SYNC:
            if story.question.status is not Status.FAILED:
                story.problems.append(f"POST was answered with 500: {answer.text[:200]}")
        else:
            self._expect_retry_of_post(answer)
            return False
        return True

    async def _stream(self) -> None:
        """A foreground stream cannot be resumed. With a key the client repeats the POST and reads from event 0."""
        story, seen = self._story, ReaderRecord()
        max_events = self._random.randint(2, 30) if self._random.random() < 0.2 else None

        async def post() -> bool:
            nonlocal seen, max_events
            seen, most, max_events = ReaderRecord(), max_events, None
            with suppress(*CONNECTION_ERRORS):
                await self._post_stream(seen, most)
            if seen.frames:
                story.response_id = _id_in(seen.frames[0])
            return seen.terminal or (bool(seen.frames) and not story.keyed)

        await self._repeat(post)
        story.left = not seen.terminal

    async def _background_stream(self, group: asyncio.TaskGroup) -> None:
        """Reads the stream of the POST until it breaks or is dropped, then resumes it."""
        story, seen = self._story, ReaderRecord()
        max_events = self._random.randint(1, 40) if self._random.random() < 0.5 else None

        async def post() -> bool:
            nonlocal seen
            seen = ReaderRecord()
            with suppress(*CONNECTION_ERRORS):
                await self._post_stream(seen, max_events)
            if seen.frames:
                story.response_id = _id_in(seen.frames[0])
            return bool(seen.frames)

        await self._repeat(post)
        group.create_task(self._resume(seen))

    async def _post_stream(self, seen: ReaderRecord, max_events: int | None) -> None:
        story = self._story
        request = {"json": self._body(), "headers": self._headers()}
        async with self._http.stream("POST", self._url(), **request) as answer:
            story.posts.append(str(answer.status_code))
            if answer.status_code == httpx.codes.OK:
                try:
                    await take(answer, seen, max_events)
                finally:
                    if seen.frames or seen.done:
                        story.readers.append(seen)
            else:
                await answer.aread()
                self._expect_retry_of_post(answer)

    # -- a background response -------------------------------------------------------------------------------

    async def _follow(self, group: asyncio.TaskGroup) -> None:
        """Reads and polls a background response to its end; some are cancelled or deleted early."""
        story, random = self._story, self._random
        if story.form.stream:
            for _ in range(random.choice((0, 1, 1, 2, 3))):
                seen = ReaderRecord(after=random.choice((-1, -1, -1, 0, 1, 7)))
                story.readers.append(seen)
                group.create_task(self._resume(seen))
        chance = random.random()
        if chance < 0.15:
            group.create_task(self._cancel(random.uniform(0, 4)))
        elif chance < 0.20:
            group.create_task(self._delete(random.uniform(0, 4)))
        await self._poll()

    async def _resume(self, seen: ReaderRecord) -> None:
        assert self._story.response_id is not None
        random = Random(f"{self._story.key} {self._story.readers.index(seen)}")
        try:
            await resume(self._http, self._urls, self._story.response_id, seen, random, restless=0.5)
        except Gone:
            if not self._story.delete_sent:
                seen.problems.append("GET of the stream was answered with 404")

    async def _poll(self) -> None:
        story = self._story
        while True:
            began = time.monotonic()
            answer = await self._call("GET")
            if answer is None:
                pass
            elif answer.status_code == httpx.codes.OK:
                body = answer.json()
                story.polls.append(Poll(Status(body["status"]), text_of(body), began, time.monotonic()))
                if self._record_if_final(body):
                    return
            elif answer.status_code == httpx.codes.NOT_FOUND:
                if not story.delete_sent:
                    story.problems.append("GET was answered with 404")
                return
            await asyncio.sleep(self._random.uniform(0.2, 1.0))

    async def _cancel(self, delay: float) -> None:
        await asyncio.sleep(delay)
        while True:
            self._story.cancel_sent = True
            answer = await self._call("POST", "/cancel")
            if answer is not None and answer.status_code == httpx.codes.OK:
                self._story.cancel_answers.append(Status(answer.json()["status"]))
                self._record_if_final(answer.json())
                return
            if answer is not None and answer.status_code == httpx.codes.NOT_FOUND:
                self._story.problems.append("POST /cancel was answered with 404")
                return
            await self._pause()

    async def _delete(self, delay: float) -> None:
        await asyncio.sleep(delay)
        while True:
            self._story.delete_sent = True
            answer = await self._call("DELETE")
            if answer is not None and answer.status_code in (httpx.codes.OK, httpx.codes.NOT_FOUND):
                self._story.deleted = True
                return
            await self._pause()

    # -- helpers ---------------------------------------------------------------------------------------------

    async def _call(self, method: str, path: str = "") -> httpx.Response | None:
        """One request about the response; None if the connection broke. Records answers that no fault explains."""
        url = f"{self._url()}/{self._story.response_id}{path}"
        try:
            answer = await self._http.request(method, url)
        except CONNECTION_ERRORS:
            return None
        expected = answer.status_code in (httpx.codes.OK, httpx.codes.NOT_FOUND) or is_unavailable(answer)
        if not expected:
            self._story.problems.append(str(Refused(f"{method} {path}", answer)))
        return answer

    def _expect_retry_of_post(self, answer: httpx.Response) -> None:
        """Raises Refused unless the request may be repeated."""
        self._limit_seconds = limit_seconds("POST", answer)

    def _record_if_final(self, body: Json) -> bool:
        final = body["status"] in _FINAL
        if final:
            self._story.finals.append(body)
        return final

    def _url(self) -> str:
        return f"{self._random.choice(self._urls)}/v1/responses"

    def _body(self) -> Json:
        form = self._story.form
        return self._story.question.body(self._story.key) | {"background": form.background, "stream": form.stream}

    def _headers(self) -> dict[str, str]:
        return {"Idempotency-Key": self._story.key} if self._story.keyed else {}

    async def _pause(self) -> None:
        seconds, self._limit_seconds = self._limit_seconds, 0.0
        await asyncio.sleep(seconds + self._random.uniform(*RETRY_SECONDS))


def limit_seconds(request: str, answer: httpx.Response) -> float:
    """How long to wait, at least, until the request may be repeated: the service is away, or a limit is reached.

    Raises Refused unless it may be repeated.
    """
    if answer.status_code == httpx.codes.TOO_MANY_REQUESTS and "retry-after-ms" in answer.headers:
        return min(int(answer.headers["retry-after-ms"]) / 1000, MAX_LIMIT_SECONDS)
    if not is_unavailable(answer):
        raise Refused(request, answer)
    return 0.0


def is_unavailable(answer: httpx.Response) -> bool:
    return answer.status_code == httpx.codes.SERVICE_UNAVAILABLE and "retry-after" in answer.headers


def text_of(body: Json) -> str:
    """All text of a response object's output: reasoning, messages and arguments."""
    return "".join(map(_text_of_item, body["output"]))


def _text_of_item(item: Json) -> str:
    parts: list[Any] = item.get("content") or []
    return "".join(part["text"] for part in parts) + item.get("arguments", "")


def _id_in(frame: bytes) -> str:
    found: str = orjson.loads(frame.split(b"\ndata: ", 1)[1])["response"]["id"]
    return found
