"""`longhaul up --model FOLDER` and nothing else: the folder's own files give calls and reasoning."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from config.settings import CHECKOUT
from tests.support.installations import running
from tests.support.longhaul import Longhaul
from tests.support.services import open_folder

pytestmark = [pytest.mark.vllm, pytest.mark.long]

WEATHER: Any = {
    "type": "function",
    "name": "get_weather",
    "description": "Current weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "strict": False,
}


@pytest.fixture(scope="module")
def bare() -> Iterator[Longhaul]:
    with open_folder() as folder:
        demo, nobody = str(CHECKOUT / "config" / "demo"), folder / "none.toml"
        with running(Longhaul(folder / "home", nobody, model=demo, VLLM_CPU_KVCACHE_SPACE="1")) as installation:
            yield installation


def test_a_folder_alone_gives_calls_and_reasoning(bare: Longhaul) -> None:
    with bare.client() as client:
        answer = client.responses.create(
            model="demo", input="What is the weather in Oslo?", tools=[WEATHER], temperature=0.0
        )
    thought, call = answer.output
    assert (thought.type, call.type) == ("reasoning", "function_call")
    assert call.type == "function_call" and (call.name, "Oslo" in call.arguments) == ("get_weather", True)
    assert "<" not in answer.output_text


def test_its_card_says_so(bare: Longhaul) -> None:
    with bare.http() as http:
        (card,) = http.get("/v1/models").json()["data"]
    assert "function" in card["tool_types"] and card["reasoning_efforts"] == ["none", "medium"]


def test_the_log_of_its_worker_says_what_was_chosen_and_why(bare: Longhaul) -> None:
    assert "tool_parser hermes, reasoning_parser qwen3 (Hermes' form" in bare.log.read_text()
