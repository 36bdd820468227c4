"""The check of a batch's file, among others that the process works for."""

from __future__ import annotations

import asyncio
from typing import Any

from app.batches.expander import Expander
from app.batches.jsonl import LineSplitter
from app.batches.validation import Validation
from app.protocol.requests.bodies.batch import RESPONSES
from config.settings import Settings


async def test_bad_lines_let_others_go_on() -> None:
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    going = asyncio.create_task(other())
    validation = Validation(RESPONSES, max_lines=5000, max_line_bytes=4096)
    nothing: Any = None  # no bad line needs it
    expander = Expander(nothing, nothing, nothing, Settings())
    await expander._check(nothing, (), validation, LineSplitter(4096).feed(b"{}\n" * 1000))
    going.cancel()
    assert turns >= 1000
