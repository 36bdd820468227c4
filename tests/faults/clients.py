"""Clients: each asks one question in one form, tries again as the openai SDK does, and writes down what it saw."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from random import Random
from typing import Any

import httpx
import orjson

from app.protocol.status import Status
from tests.faults.readers import Gone, resume, take
from tests.faults.records import Form, Json, Poll, Seen, Story

TIMEOUT = httpx.Timeout(5.0, connect=2.0)
"""Streams say something at least every 1.5 s (keep-alives): silence means that the API is gone."""
SYNC_TIMEOUT = httpx.Timeout(45.0, connect=2.0)
RETRY_SECONDS = (0.1, 0.8)
_LOST = (httpx.TransportError, httpx.StreamError)
_FINAL = frozenset(status.value for status in Status if status.final)


class Refused(Exception):
    """An answer that no fault explains; asking again is no use."""

    def __init__(self, asked: str, answer: httpx.Response) -> None:
        super().__init__(f"{asked} was answered with {answer.status_code}: {answer.text[:200]}")


class Client:
    """One user. `urls` are the APIs; a broken one is simply the next try's luck."""

    def __init__(self, http: httpx.AsyncClient, urls: Sequence[str], story: Story, random: Random) -> None:
        self._http = http
        self._urls = list(urls)
        self._story = story
        self._random = random

    async def live(self) -> None:
        """Asks, and stays until the answer is final, or gone. What it began and did not end is cancelled with it."""
        story = self._story
        try:
            async with asyncio.TaskGroup() as group:
                try:
                    await self._ask(group)
                except Refused as refused:
                    story.wrong.append(str(refused))
        except asyncio.CancelledError:
            story.gave_up = True
        finally:
            story.ended = time.monotonic()

    async def _ask(self, group: asyncio.TaskGroup) -> None:
        match self._story.form:
            case Form.SYNC:
                await self._sync()
            case Form.STREAM:
                await self._stream()
            case Form.BACKGROUND:
                await self._background()
                await self._follow(group)
            case Form.BACKGROUND_STREAM:
                await self._background_stream(group)
                await self._follow(group)

    # -- asking ----------------------------------------------------------------------------------------------

    async def _sync(self) -> None:
        story = self._story
        while True:
            try:
                answer = await self._http.post(
                    self._url(), json=self._body(), headers=self._key(), timeout=SYNC_TIMEOUT
                )
            except _LOST as error:
                story.left = not story.keyed
                story.posts.append(type(error).__name__)
            else:
                story.posts.append(str(answer.status_code))
                if self._take_answer(answer):
                    return
            await self._pause()

    def _take_answer(self, answer: httpx.Response) -> bool:
        """Whether that was the end of it."""
        story = self._story
        if answer.status_code == httpx.codes.OK:
            body = answer.json()
            story.response_id = body["id"]
            self._saw(body)
            return True
        if answer.status_code == httpx.codes.INTERNAL_SERVER_ERROR:
            if story.question.status is not Status.FAILED:
                story.wrong.append(f"POST was answered with 500: {answer.text[:200]}")
            return True
        _come_back("POST", answer)
        return False

    async def _stream(self) -> None:
        """In the foreground: what is lost on the way stays lost, but whoever has a key may ask again, from 0."""
        story = self._story
        most = self._random.randint(2, 30) if self._random.random() < 0.2 else None
        while True:
            seen = Seen()
            try:
                await self._post_stream(seen, most)
            except _LOST as error:
                story.posts.append(type(error).__name__)
            if seen.frames:
                story.response_id = _id_in(seen.frames[0])
            if seen.terminal or (seen.frames and not story.keyed):
                break
            most = None
            await self._pause()
        story.left = not seen.terminal

    async def _background(self) -> None:
        story = self._story
        while story.response_id is None:
            try:
                answer = await self._http.post(self._url(), json=self._body(), headers=self._key())
            except _LOST as error:
                story.posts.append(type(error).__name__)
            else:
                story.posts.append(str(answer.status_code))
                if answer.status_code == httpx.codes.OK:
                    story.response_id = answer.json()["id"]
                    self._saw(answer.json())
                else:
                    _come_back("POST", answer)
            if story.response_id is None:
                await self._pause()

    async def _background_stream(self, group: asyncio.TaskGroup) -> None:
        """The stream of the POST itself, as far as it goes; the rest by resuming."""
        story, seen = self._story, Seen()
        most = self._random.randint(1, 40) if self._random.random() < 0.5 else None
        while story.response_id is None:
            seen = Seen()
            try:
                await self._post_stream(seen, most)
            except _LOST as error:
                story.posts.append(type(error).__name__)
            if seen.frames:
                story.response_id = _id_in(seen.frames[0])
            else:
                await self._pause()
        group.create_task(self._read_on(seen))

    async def _post_stream(self, seen: Seen, most: int | None) -> None:
        story = self._story
        request = {"json": self._body(), "headers": self._key()}
        async with self._http.stream("POST", self._url(), **request) as answer:
            story.posts.append(str(answer.status_code))
            if answer.status_code == httpx.codes.OK:
                try:
                    await take(answer, seen, most)
                finally:
                    if seen.frames or seen.done:
                        story.readers.append(seen)
            else:
                await answer.aread()
                _come_back("POST", answer)

    # -- following -------------------------------------------------------------------------------------------

    async def _follow(self, group: asyncio.TaskGroup) -> None:
        """Reads and polls a background response to its end, and sometimes ends it early."""
        story, random = self._story, self._random
        if story.form.stream:
            for _ in range(random.choice((0, 1, 1, 2, 3))):
                seen = Seen(after=random.choice((-1, -1, -1, 0, 1, 7)))
                story.readers.append(seen)
                group.create_task(self._read_on(seen))
        chance = random.random()
        if chance < 0.15:
            group.create_task(self._cancel(random.uniform(0, 4)))
        elif chance < 0.20:
            group.create_task(self._delete(random.uniform(0, 4)))
        await self._poll()

    async def _read_on(self, seen: Seen) -> None:
        assert self._story.response_id is not None
        random = Random(f"{self._story.key} {self._story.readers.index(seen)}")
        try:
            await resume(self._http, self._urls, self._story.response_id, seen, random, restless=0.5)
        except Gone:
            if not self._story.delete_sent:
                seen.wrong.append("GET of the stream was answered with 404")

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
                if self._saw(body):
                    return
            elif answer.status_code == httpx.codes.NOT_FOUND:
                if not story.delete_sent:
                    story.wrong.append("GET was answered with 404")
                return
            await asyncio.sleep(self._random.uniform(0.2, 1.0))

    async def _cancel(self, delay: float) -> None:
        await asyncio.sleep(delay)
        while True:
            self._story.cancel_sent = True
            answer = await self._call("POST", "/cancel")
            if answer is not None and answer.status_code == httpx.codes.OK:
                self._story.cancel_answers.append(Status(answer.json()["status"]))
                self._saw(answer.json())
                return
            if answer is not None and answer.status_code == httpx.codes.NOT_FOUND:
                self._story.wrong.append("POST /cancel was answered with 404")
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

    # -- small ways ------------------------------------------------------------------------------------------

    async def _call(self, method: str, path: str = "") -> httpx.Response | None:
        """One call about the response; None where the answer was lost. Strange answers are noted."""
        url = f"{self._url()}/{self._story.response_id}{path}"
        try:
            answer = await self._http.request(method, url)
        except _LOST:
            return None
        if answer.status_code not in (httpx.codes.OK, httpx.codes.NOT_FOUND):
            try:
                _come_back(f"{method} {path}", answer)
            except Refused as refused:
                self._story.wrong.append(str(refused))
        return answer

    def _saw(self, body: Json) -> bool:
        final = body["status"] in _FINAL
        if final:
            self._story.finals.append(body)
        return final

    def _url(self) -> str:
        return f"{self._random.choice(self._urls)}/v1/responses"

    def _body(self) -> Json:
        form = self._story.form
        return self._story.question.body(self._story.key) | {"background": form.background, "stream": form.stream}

    def _key(self) -> dict[str, str]:
        return {"Idempotency-Key": self._story.key} if self._story.keyed else {}

    async def _pause(self) -> None:
        await asyncio.sleep(self._random.uniform(*RETRY_SECONDS))


def _come_back(asked: str, answer: httpx.Response) -> None:
    """Raises Refused unless the answer is: not now, but soon."""
    if answer.status_code != httpx.codes.SERVICE_UNAVAILABLE or "retry-after" not in answer.headers:
        raise Refused(asked, answer)


def text_of(body: Json) -> str:
    """All that a response object's output says: thoughts, text and arguments."""
    return "".join(map(_said_by, body["output"]))


def _said_by(item: Json) -> str:
    parts: list[Any] = item.get("content") or []
    return "".join(part["text"] for part in parts) + item.get("arguments", "")


def _id_in(frame: bytes) -> str:
    found: str = orjson.loads(frame.split(b"\ndata: ", 1)[1])["response"]["id"]
    return found
