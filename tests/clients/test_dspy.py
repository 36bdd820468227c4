"""dspy: its LM over LiteLLM's Responses API and chat completions, and a module on top of each."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from tests.clients.target import THINKING, Target
from tests.support.longhaul import Longhaul

# litellm 1.109.1: about its own types, at the first call.
pytestmark = [
    pytest.mark.long,
    pytest.mark.usefixtures("litellm_connections"),
    pytest.mark.filterwarnings(r"ignore:Items? .* using the `ReadOnly` qualifier:UserWarning"),
]


@pytest.fixture(scope="module")
def dspy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Imports dspy with a cache of the test's own: it opens one at import."""
    os.environ["DSPY_CACHEDIR"] = str(tmp_path_factory.mktemp("dspy"))
    import dspy

    yield dspy
    dspy.cache.disk_cache.close()


@pytest.fixture
def to(target: Target) -> dict[str, Any]:
    return {
        "model": f"openai/{target.model}",
        "api_base": target.url,
        "api_key": "unused",
        "model_type": "responses",
        "cache": False,
        "num_retries": 0,
    }


def test_lm(dspy: Any, to: dict[str, Any], target: Target) -> None:
    assert dspy.LM(**to)(target.script.hello) == [{"text": target.script.hello_answer}]


def test_reasoning_is_shown(dspy: Any, to: dict[str, Any], target: Target) -> None:
    (answer,) = dspy.LM(**to, reasoning=THINKING)(target.script.hello)
    assert answer == {"text": target.script.hello_answer, "reasoning_content": target.script.hello_thought}


@pytest.mark.parametrize("model_type", ["responses", "chat"])
def test_a_module_predicts(dspy: Any, to: dict[str, Any], scripted: Longhaul, model_type: str) -> None:
    """The scripted engine repeats the question, which has the fields of an answer."""
    there = {"model": "openai/scripted", "api_base": f"{scripted.url}/v1", "model_type": model_type}
    lm = dspy.LM(**{**to, **there})
    said = "What is the capital?\n\n[[ ## answer ## ]]\nParis\n\n[[ ## completed ## ]]"
    with dspy.context(lm=lm):
        assert dspy.Predict("question -> answer")(question=said).answer == "Paris"
