"""Two workers behind one queue, as processes; the scripted engine, so that both start fast."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from typing import Any

from openai.types.responses import Response

from tests.e2e.conftest import counted
from tests.support.longhaul import Longhaul, send_all
from tests.support.waiting import until, until_sync

MODEL = "scripted"


async def test_a_burst_of_requests_is_shared_out(pair: Longhaul, both: list[str]) -> None:
    """Two API processes place what they get at once, and neither sees what the other is about to commit."""
    burst = 12
    async with pair.async_client() as client:
        asked = (client.responses.create(model=MODEL, input="/hang 5", background=True) for _ in range(burst))
        ids = {response.id for response in await asyncio.gather(*asked)}

        def workers() -> Counter[str] | None:
            tasks = flower.get("/api/tasks", params={"limit": 1000, "state": "STARTED"}).json()
            started = [tasks[each]["worker"] for each in ids if each in tasks]
            return Counter(started) if len(started) == burst else None

        try:
            with pair.flower as flower:
                shares = until_sync(workers, what="Flower shows all of them running")
        finally:
            await asyncio.gather(*(client.responses.cancel(each) for each in ids))
        assert shares is not None and len(shares) == 2 and min(shares.values()) >= burst / 3


async def test_streams_and_background_responses_go_on_in_the_middle_when_their_worker_is_killed(
    pair: Longhaul, both: list[str]
) -> None:
    """Nothing is lost, and nothing comes twice."""
    messages: list[Any] = [{"role": "user", "content": "/count 300"}]
    async with pair.async_client() as client:
        streams = [await client.chat.completions.create(model=MODEL, messages=messages, stream=True) for _ in range(8)]
        background = await client.responses.create(model=MODEL, input="/count 300", background=True)
        texts = [""] * len(streams)

        async def read(index: int, until_chars: int | None = None) -> str | None:
            async for chunk in streams[index]:
                texts[index] += chunk.choices[0].delta.content or ""
                if chunk.choices[0].finish_reason or (until_chars and len(texts[index]) >= until_chars):
                    return chunk.choices[0].finish_reason
            return None

        assert await asyncio.gather(*(read(index, 100) for index in range(8))) == [None] * 8
        send_all(pair.named(["celeryd"]), signal.SIGKILL)
        assert await asyncio.gather(*(read(index) for index in range(8))) == ["stop"] * 8

        async def completed() -> Response | None:
            response = await client.responses.retrieve(background.id)
            return response if response.status == "completed" else None

        assert (await until(completed)).output_text == counted(300)
    assert texts == [counted(300)] * 8
