"""Load: clients start one after the other, each with a request and habits drawn from the seed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from random import Random

import httpx

from tests.faults.batch_clients import BatchClient, batch_story
from tests.faults.clients import TIMEOUT, Client
from tests.faults.plan import CHAINED, WHOLE_SECONDS, Plan
from tests.faults.questions import Question
from tests.faults.questions import question as ask
from tests.faults.records import BatchStory, Form, Story

BURST = 0.06
"""The chance that several clients come at once."""
BURSTS = (6, 16)
BATCHES_AT_ONCE = 8
TIERS = {"auto": 5, "flex": 2, "priority": 2}
"""Service tier -> its share, where projects have keys. Who may not have `priority` gets the best that it may have."""
FORMS = {Form.BACKGROUND_STREAM: 5, Form.BACKGROUND: 2, Form.STREAM: 2, Form.SYNC: 1}


class Load:
    """Starts clients. `stories` and `batches` have the record of each."""

    def __init__(self, plan: Plan, urls: list[str], headers: Sequence[Mapping[str, str]] = ({},)) -> None:
        """`headers` are those of each project's clients."""
        self._plan = plan
        self._headers = headers
        self._urls = urls
        self._random = Random(f"load {plan.seed}")
        self._clients: set[asyncio.Task[None]] = set()
        self.stories: list[Story] = []
        self.batches: list[BatchStory] = []

    async def run(self, seconds: float, enough: asyncio.Event) -> None:
        """Starts the plan's clients over about `seconds`, and more of responses at that rate until `enough` is set.

        Then, or if none of them gets an answer any more, waits for the clients that still run.
        """
        gap = seconds / self._plan.responses * (1 + BURST * sum(BURSTS) / 2)
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=40)
        async with AsyncExitStack() as stack:
            clients = [
                await stack.enter_async_context(
                    httpx.AsyncClient(timeout=TIMEOUT, limits=limits, verify=False, headers=headers)
                )
                for headers in self._headers
            ]
            batches = asyncio.create_task(self._send_batches(clients, seconds))
            try:
                coming = 1
                while (len(self.stories) < self._plan.responses or not enough.is_set()) and await self._has_room():
                    self._send(clients)
                    if (coming := coming - 1) == 0:
                        await asyncio.sleep(self._random.expovariate(1 / gap))
                        coming = self._random.randint(*BURSTS) if self._random.random() < BURST else 1
                await self._wait(self._plan.settle_seconds, batches)
            finally:
                await self._wait(0, batches)

    async def _has_room(self) -> bool:
        """Waits until another client may start. False: all have waited for longer than faults explain."""
        while len(self._clients) >= self._plan.at_once:
            seconds = WHOLE_SECONDS + self._plan.settle_seconds
            ended, _ = await asyncio.wait(self._clients, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if not ended:
                return False
        return True

    def _send(self, clients: Sequence[httpx.AsyncClient]) -> None:
        number = len(self.stories)
        random = Random(f"client {self._plan.seed} {number}")
        tenant = random.randrange(len(clients))
        form = random.choices(list(FORMS), list(FORMS.values()))[0]
        story = Story(
            key=f"{self._plan.seed}-{number}",
            keyed=random.random() < 0.5,
            form=form,
            question=self._question(random, tenant),
            began=time.monotonic(),
            tenant=tenant,
        )
        self.stories.append(story)
        client = Client(clients[tenant], self._urls, story, random)
        task = asyncio.create_task(client.run(), name=story.key)
        self._clients.add(task)
        task.add_done_callback(self._clients.discard)

    async def _send_batches(self, clients: Sequence[httpx.AsyncClient], seconds: float) -> None:
        """Starts clients of batches one after the other, and waits for all of them."""
        slots = asyncio.Semaphore(BATCHES_AT_ONCE)
        async with asyncio.TaskGroup() as group:
            for number in range(self._plan.batches):
                random = Random(f"batch {self._plan.seed} {number}")
                tenant = random.randrange(len(clients))
                await slots.acquire()
                story = batch_story(random, f"{self._plan.seed}-batch-{number}", tenant)
                task = group.create_task(self._batch(clients[tenant], story, random), name=story.key)
                task.add_done_callback(lambda _: slots.release())
                await asyncio.sleep(random.expovariate(self._plan.batches / seconds))

    async def _batch(self, http: httpx.AsyncClient, story: BatchStory | None, random: Random) -> None:
        while story is not None:
            self.batches.append(story)
            story = await BatchClient(http, self._urls, story, random).run()

    def _question(self, random: Random, tenant: int) -> Question:
        question = ask(random)
        if random.random() < CHAINED and (earlier := self._continuable(tenant)):
            story = random.choice(earlier)
            question = question.continuing(story.finals[-1]["id"], story.question)
        if not self._plan.keys:
            return question
        tier = random.choices(list(TIERS), list(TIERS.values()))[0]
        return replace(question, fields={**question.fields, "service_tier": tier})

    def _continuable(self, tenant: int) -> list[Story]:
        """Stories of this project whose response can be continued (`previous_response_id`)."""
        mine = (story for story in self.stories if story.tenant == tenant)
        done = (story for story in mine if story.ended and story.finals and not story.delete_sent)
        return [story for story in done if story.finals[-1]["status"] in ("completed", "incomplete")]

    async def _wait(self, seconds: float, batches: asyncio.Task[None]) -> None:
        """Waits `seconds` for the clients that run, and for `batches`; then cancels the rest."""
        clients = {*self._clients, batches}
        _, late = await asyncio.wait(clients, timeout=seconds)
        for client in late:
            client.cancel()
        await asyncio.wait(clients)
        for client in clients:
            if not client.cancelled():
                client.result()  # Raises an error of the suite.
