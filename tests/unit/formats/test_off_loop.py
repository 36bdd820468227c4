"""Work on many items leaves the event loop, and tokenizing large contexts leaves threads for the rest."""

from __future__ import annotations

import asyncio
import threading

from app.sizes import LARGE_BYTES, MANY_ITEMS
from workers.formats.off_loop import off_loop, tokenized

ITEM = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "x"}]}
PARTS = {**ITEM, "content": ITEM["content"] * (MANY_ITEMS + 1)}  # type: ignore[operator]


async def test_a_few_items_stay_on_the_event_loop() -> None:
    assert await off_loop([ITEM] * 10, threading.get_ident) == threading.get_ident()


async def test_many_items_or_many_parts_are_work_for_a_thread() -> None:
    assert await off_loop([ITEM] * MANY_ITEMS, threading.get_ident) != threading.get_ident()
    assert await off_loop([PARTS], threading.get_ident) != threading.get_ident()


async def test_large_contexts_are_tokenized_one_after_the_other() -> None:
    go, running = threading.Event(), []

    def work() -> None:
        running.append(threading.current_thread().name)
        go.wait()

    large = [{**ITEM, "content": "x" * LARGE_BYTES}]
    blocked = [asyncio.ensure_future(tokenized(items, work)) for items in (large, large, [ITEM] * MANY_ITEMS)]
    try:
        assert await off_loop([ITEM] * MANY_ITEMS, lambda: "others go on") == "others go on"
        assert await tokenized([ITEM], lambda: "and so do their tokens") == "and so do their tokens"
        assert len(running) <= 1
    finally:
        go.set()
    await asyncio.gather(*blocked)
    assert len(set(running)) == 1


async def test_items_with_numbers_beyond_64_bits_are_taken() -> None:
    assert await tokenized([{"type": "tool_search_call", "arguments": {"n": 2**80}}], lambda: "done") == "done"
