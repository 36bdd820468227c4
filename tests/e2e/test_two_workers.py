"""Two workers behind one queue, as processes; the scripted engine, so that both start fast."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

from anthropic import AsyncAnthropic
from openai import AsyncOpenAI
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


Pieces = AsyncIterator[tuple[str, str | None]]
"""Each piece of a text, and why it ended if it did."""


async def chat_pieces(client: AsyncOpenAI, messages: Any) -> Pieces:
    async for chunk in await client.chat.completions.create(model=MODEL, messages=messages, stream=True):
        yield chunk.choices[0].delta.content or "", chunk.choices[0].finish_reason


async def message_pieces(client: AsyncAnthropic, messages: Any) -> Pieces:
    async for event in await client.messages.create(model=MODEL, messages=messages, max_tokens=4096, stream=True):
        text = event.delta.text if event.type == "content_block_delta" and event.delta.type == "text_delta" else ""
        yield text, event.delta.stop_reason if event.type == "message_delta" else None


async def test_streams_and_background_responses_go_on_in_the_middle_when_their_worker_is_killed(
    pair: Longhaul, both: list[str]
) -> None:
    """Nothing is lost, and nothing comes twice: of chat completions, and of Anthropic's messages."""
    asked: Any = [{"role": "user", "content": "/count 300"}]
    async with (
        pair.async_client() as client,
        AsyncAnthropic(base_url=pair.url, api_key=client.api_key, max_retries=0) as anthropic,
    ):
        streams = [
            *(chat_pieces(client, asked) for _ in range(4)),
            *(message_pieces(anthropic, asked) for _ in range(4)),
        ]
        background = await client.responses.create(model=MODEL, input="/count 300", background=True)
        texts = [""] * len(streams)

        async def read(index: int, until_chars: int | None = None) -> str | None:
            async for piece, reason in streams[index]:
                texts[index] += piece
                if reason or (until_chars and len(texts[index]) >= until_chars):
                    return reason
            return None

        assert await asyncio.gather(*(read(index, 100) for index in range(8))) == [None] * 8
        send_all(pair.named(["celeryd"]), signal.SIGKILL)
        assert await asyncio.gather(*(read(index) for index in range(8))) == ["stop"] * 4 + ["end_turn"] * 4

        async def completed() -> Response | None:
            response = await client.responses.retrieve(background.id)
            return response if response.status == "completed" else None

        assert (await until(completed)).output_text == counted(300)
    assert texts == [counted(300)] * 8
