"""Questions for the demo model on real vLLM. Their answers come from an undisturbed run before the first fault."""

from __future__ import annotations

import asyncio
import json
from random import Random
from typing import Any

import httpx

from app.protocol.status import Status
from config.settings import CHECKOUT
from tests.faults.clients import text_of
from tests.faults.fleet import Fleet
from tests.faults.plan import DEMO
from tests.faults.questions import Ask, Question

TALKS = ("story", "unicode")
TOKENS = 800
SECONDS = 120.0


async def questions(fleet: Fleet) -> Ask:
    """Asks for each talk twice, to its end and for TOKENS tokens; returns a function that draws from these."""
    script = json.loads((CHECKOUT / "config" / "demo" / "script.json").read_text(encoding="utf-8"))
    inputs = [talk["messages"][0]["content"] for talk in script if talk["name"] in TALKS]
    variants: tuple[dict[str, Any], ...] = ({}, {"ignore_eos": True, "max_output_tokens": TOKENS})
    answered = await asyncio.gather(*(_answered(fleet, text, fields) for text in inputs for fields in variants))

    def ask(random: Random) -> Question:
        return random.choice(answered)

    return ask


async def _answered(fleet: Fleet, text: str, fields: dict[str, Any]) -> Question:
    body = {"model": DEMO, "input": text, **fields}
    answer = await fleet.http.post(f"{fleet.urls[0]}/v1/responses", json=body, timeout=SECONDS)
    assert answer.status_code == httpx.codes.OK, answer.text
    response = answer.json()
    usage = response["usage"]
    status = Status(response["status"])
    return Question(text, text_of(response), status, usage["input_tokens"], usage["output_tokens"], fields, DEMO)
