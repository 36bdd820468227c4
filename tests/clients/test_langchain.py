"""What LangChain alone does: chains by id, structured output by other methods, log probabilities, compaction."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.clients.target import PARIS, City, Target, called


@pytest.fixture(params=["Responses", "Chat"])
def langchain(request: pytest.FixtureRequest, target: Target) -> Iterator[Any]:
    """The adapter. It imports the package, which takes seconds."""
    from tests.clients.adapters import langchain

    with getattr(langchain, request.param)(target) as opened:
        yield opened


@pytest.mark.parametrize("langchain", ["Responses"], indirect=True)
def test_previous_response_ids_carry_history_and_calls(langchain: Any, target: Target) -> None:
    from langchain_core.messages import HumanMessage, ToolMessage

    from tests.clients.adapters.langchain import WEATHER

    first = langchain.chat().invoke(target.script.name)
    second = langchain.chat().invoke(target.script.asked, previous_response_id=first.response_metadata["id"])
    assert second.text == target.script.asked_answer
    model = langchain.chat(use_previous_response_id=True).bind_tools([WEATHER])
    asked = HumanMessage(target.script.weather)
    called = model.invoke([asked])
    (made,) = called.tool_calls
    said = ToolMessage(WEATHER.invoke(made["args"]), tool_call_id=made["id"])
    assert model.invoke([asked, called, said]).text == target.script.weather_answer


def test_structured_output_by_json_mode_and_by_a_call(langchain: Any, target: Target) -> None:
    by_mode = langchain.chat().with_structured_output(City, method="json_mode")
    by_call = langchain.chat().with_structured_output(City, method="function_calling")
    assert by_mode.invoke(target.script.paris) == PARIS
    assert by_call.invoke(called("City")) == PARIS


@pytest.mark.parametrize("langchain", ["Chat"], indirect=True)
def test_log_probabilities_of_completions(langchain: Any, target: Target) -> None:
    message = langchain.chat(logprobs=True, top_logprobs=2).invoke(target.script.hello)
    tokens = message.response_metadata["logprobs"]["content"]
    assert "".join(token["token"] for token in tokens) == target.script.hello_answer
    assert {len(token["top_logprobs"]) for token in tokens} == {2}


@pytest.mark.parametrize("langchain", ["Responses"], indirect=True)
def test_a_context_beyond_the_threshold_is_compacted(langchain: Any) -> None:
    from langchain_core.messages import AIMessage, HumanMessage

    compaction = {"type": "compaction", "compact_threshold": 1000}
    model = langchain.chat(context_management=[compaction], output_version="responses/v1")
    said = [HumanMessage("/repeat 1500 a"), AIMessage("a" * 1500), HumanMessage("Hello!")]
    compacted = model.invoke(said)
    assert [block["type"] for block in compacted.content] == ["compaction", "text"]
    assert model.invoke([*said, compacted, HumanMessage("Bye!")]).text == "You said: Bye!"
