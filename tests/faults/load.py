"""Load: clients start one after the other, each with a request and habits drawn from the seed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from random import Random

import httpx

from tests.faults.clients import TIMEOUT, Client
from tests.faults.plan import Plan
from tests.faults.questions import Ask
from tests.faults.records import Form, Story

FORMS = {Form.BACKGROUND_STREAM: 5, Form.BACKGROUND: 2, Form.STREAM: 2, Form.SYNC: 1}


class Load:
    """Starts clients. `stories` has the record of each."""

    def __init__(self, plan: Plan, urls: list[str], ask: Ask, damaged: Mapping[str, str]) -> None:
        """Responses in `damaged` are not continued."""
        self._plan = plan
        self._ask = ask
        self._urls = urls
        self._damaged = damaged
        self._random = Random(f"load {plan.seed}")
        self._clients: set[asyncio.Task[None]] = set()
        self.stories: list[Story] = []

    async def run(self, seconds: float, enough: asyncio.Event) -> None:
        """Starts the plan's number of clients over about `seconds`, and more at that rate until `enough` is set.

        Then waits for the clients that still run.
        """
        gap = seconds / self._plan.responses
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=40)
        async with httpx.AsyncClient(timeout=TIMEOUT, limits=limits, verify=False) as http:
            try:
                while len(self.stories) < self._plan.responses or not enough.is_set():
                    await asyncio.sleep(self._random.expovariate(1 / gap))
                    while len(self._clients) >= self._plan.at_once:
                        await asyncio.wait(self._clients, return_when=asyncio.FIRST_COMPLETED)
                    self._send(http)
                await self._wait(self._plan.settle_seconds)
            finally:
                await self._wait(0)

    def _send(self, http: httpx.AsyncClient) -> None:
        number = len(self.stories)
        random = Random(f"client {self._plan.seed} {number}")
        form = random.choices(list(FORMS), list(FORMS.values()))[0]
        question = self._ask(random)
        if random.random() < self._plan.chained and (earlier := self._continuable()):
            story = random.choice(earlier)
            question = question.continuing(story.finals[-1]["id"], story.question)
        story = Story(f"{self._plan.seed}-{number}", random.random() < 0.5, form, question, time.monotonic())
        self.stories.append(story)
        task = asyncio.create_task(Client(http, self._urls, story, random).run(), name=story.key)
        self._clients.add(task)
        task.add_done_callback(self._clients.discard)

    def _continuable(self) -> list[Story]:
        """Stories whose response can be continued (`previous_response_id`)."""
        done = (story for story in self.stories if story.ended and story.finals and not story.delete_sent)
        whole = (story for story in done if story.finals[-1]["id"] not in self._damaged)
        return [story for story in whole if story.finals[-1]["status"] in ("completed", "incomplete")]

    async def _wait(self, seconds: float) -> None:
        """Waits `seconds` for the clients that run, then cancels the rest."""
        clients = set(self._clients)
        if clients:
            _, late = await asyncio.wait(clients, timeout=seconds)
            for client in late:
                client.cancel()
            await asyncio.gather(*clients)
