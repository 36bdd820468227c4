"""Load: clients come one after the other, each with a question and habits of its own, all drawn from the seed."""

from __future__ import annotations

import asyncio
import time
from random import Random

import httpx

from tests.faults.clients import TIMEOUT, Client
from tests.faults.plan import Plan
from tests.faults.questions import Ask
from tests.faults.records import Form, Story

FORMS = {Form.BACKGROUND_STREAM: 5, Form.BACKGROUND: 2, Form.STREAM: 2, Form.SYNC: 1}


class Load:
    """`stories` is what all clients saw. Runs until it is told to stop; then waits for those that are there."""

    def __init__(self, plan: Plan, urls: list[str], ask: Ask) -> None:
        self._plan = plan
        self._ask = ask
        self._urls = urls
        self._random = Random(f"load {plan.seed}")
        self._clients: set[asyncio.Task[None]] = set()
        self.stories: list[Story] = []

    async def run(self, seconds: float, enough: asyncio.Event) -> None:
        """The plan's responses over about `seconds`, and more at that pace until `enough` is set."""
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
        asked = self._ask(random)
        if random.random() < self._plan.chained and (earlier := self._continuable()):
            story = random.choice(earlier)
            asked = asked.after(story.finals[-1]["id"], story.question)
        story = Story(f"{self._plan.seed}-{number}", random.random() < 0.5, form, asked, time.monotonic())
        self.stories.append(story)
        task = asyncio.create_task(Client(http, self._urls, story, random).live(), name=story.key)
        self._clients.add(task)
        task.add_done_callback(self._clients.discard)

    def _continuable(self) -> list[Story]:
        """Requests whose response is there to be continued."""
        done = (story for story in self.stories if story.ended and story.finals and not story.delete_sent)
        return [story for story in done if story.finals[-1]["status"] in ("completed", "incomplete")]

    async def _wait(self, seconds: float) -> None:
        """Lets clients end; those that have not by then give up."""
        clients = set(self._clients)
        if clients:
            _, late = await asyncio.wait(clients, timeout=seconds)
            for client in late:
                client.cancel()
            await asyncio.gather(*clients)
