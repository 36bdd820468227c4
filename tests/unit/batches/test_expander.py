"""The check of a batch's file, among others that the process works for."""

from __future__ import annotations

import asyncio
from typing import Any

from app.batches.expander import Expander
from app.batches.jsonl import LineSplitter
from app.batches.validation import Validation
from app.protocol.requests.bodies.batch import RESPONSES
from config.settings import Settings

_NOTHING: Any = None
"""What no bad line needs."""


async def _check(lines: int, max_lines: int) -> Validation:
    validation = Validation(RESPONSES, max_lines, max_line_bytes=4096)
    expander = Expander(_NOTHING, _NOTHING, _NOTHING, Settings())
    await expander._check(_NOTHING, (), validation, LineSplitter(4096).feed(b"{}\n" * lines))
    return validation


async def test_bad_lines_let_others_go_on() -> None:
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    going = asyncio.create_task(other())
    await _check(1000, max_lines=5000)
    going.cancel()
    assert turns >= 1000


async def test_lines_beyond_the_most_of_a_batch_are_not_checked() -> None:
    assert (await _check(1000, max_lines=10)).total == 11
