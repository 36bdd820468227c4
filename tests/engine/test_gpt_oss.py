"""The tiny gpt-oss on the real engine: harmony in and out, token for token."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any

import pytest
import pytest_asyncio

from app.protocol.events.deltas import (
    CallArguments,
    CallStart,
    CodeStart,
    CustomInput,
    CustomStart,
    Delta,
    FinishReason,
)
from config.settings import ConfigError
from tests.engine.cases import demo_model, new_id
from tests.models.gpt_oss_folder import gpt_oss_model, script
from tests.models.gpt_oss_script import (
    CREATED,
    FUNCTIONS,
    LIBRARY,
    LISTINGS,
    Point,
    asked,
    points,
    points_of,
    shown_again,
)
from tests.support.requests import message
from workers.engine import make_engine
from workers.engine.base import Engine, EngineRequest, InvalidSampling, PromptTooLong
from workers.formats import builder
from workers.formats.answer import merge_deltas
from workers.formats.turn import Turn, TurnParser

pytestmark = [pytest.mark.vllm, pytest.mark.long, pytest.mark.asyncio(loop_scope="module")]

Json = dict[str, Any]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine() -> AsyncIterator[Engine]:
    model = await asyncio.to_thread(gpt_oss_model)
    made = await asyncio.to_thread(make_engine, model)
    await made.start()
    yield made
    await made.stop()


async def build_turn(engine: Engine, request: Json, items: Sequence[Json] = (), past: Sequence[Any] = ()) -> Turn:
    context = items or request["input"]
    plan = await builder.plan_turn(engine, gpt_oss_model(), request, context, past, CREATED, LISTINGS)
    return await builder.build_turn(plan, context)


async def turn_at(engine: Engine, point: Point) -> Turn:
    return await build_turn(engine, point.request, point.items, point.past)


async def written(engine: Engine, turn: Turn, committed: Sequence[int] = ()) -> tuple[list[int], FinishReason | None]:
    """The tokens after the committed ones, and their finish reason."""
    tokens: list[int] = []
    reason = None
    stream = engine.generate(EngineRequest(new_id(), turn.prompt, turn.sampling, committed=committed))
    async with aclosing(stream):
        async for delta in stream:
            tokens += delta.token_ids
            reason = delta.finish_reason
    return tokens, reason


async def said(engine: Engine, request: Json) -> tuple[tuple[Delta, ...], TurnParser]:
    turn = await build_turn(engine, request)
    tokens, reason = await written(engine, turn)
    parser = turn.parser()
    parsed = parser.feed(tokens) + parser.flush(cut=reason is FinishReason.LENGTH)
    return merge_deltas(parsed.deltas), parser


async def exactly(engine: Engine, chosen: Sequence[Point]) -> dict[str, str]:
    """The turns that differ from the script, by name."""
    turns = [await turn_at(engine, point) for point in chosen]
    results = await asyncio.gather(*(written(engine, turn) for turn in turns))
    decode = gpt_oss_decode
    return {
        point.name: decode(tokens) for point, (tokens, _) in zip(chosen, results, strict=True) if tokens != point.tokens
    }


def gpt_oss_decode(tokens: Sequence[int]) -> str:
    from workers.engine.harmony_vocabulary import encoding

    text: str = encoding().decode(tokens)
    return text


# -- transcripts -----------------------------------------------------------------------------------------------


async def test_every_turn_of_the_script_comes_out_exactly_also_after_items_of_another_response(engine: Engine) -> None:
    assert await exactly(engine, list(points())) == {}
    assert await exactly(engine, [shown_again(point) for point in points() if point.past]) == {}


@pytest.mark.parametrize("name", ["compare", "double", "unicode"])
async def test_a_cut_answer_continues_exactly_from_any_token(engine: Engine, name: str) -> None:
    for point in points_of(name):
        turn = await turn_at(engine, point)
        cuts = range(1, len(point.tokens))
        rests = await asyncio.gather(*(written(engine, turn, point.tokens[:cut]) for cut in cuts))
        assert [point.tokens[:cut] + tokens for cut, (tokens, _) in zip(cuts, rests, strict=True)] == [
            point.tokens
        ] * len(cuts)


# -- deltas ----------------------------------------------------------------------------------------------------


async def test_a_tool_that_was_not_offered_is_not_called(engine: Engine) -> None:
    deltas, parser = await said(engine, asked("Compute 2 to the power of 64 with Python."))
    assert not any(isinstance(delta, CodeStart) for delta in deltas)
    assert [(call.name, call.kind) for call in parser.calls] == [("python", None)]


# -- grammars ----------------------------------------------------------------------------------------------------


def schema_of(name: str) -> Json:
    return {
        "type": "json_schema",
        "name": name,
        "description": None,
        "schema": script()[name]["schema"],
        "strict": True,
    }


async def test_an_answer_matches_its_schema_and_comes_out_as_trained(engine: Engine) -> None:
    for name in ("person", "json"):
        [point] = points_of(name, text={"format": schema_of(name)})
        assert (await turn_at(engine, point)).sampling.structured is not None
        assert await exactly(engine, [point]) == {}


CHOICES: list[tuple[Any, str]] = [
    ("required", "get_weather"),
    ({"type": "function", "name": "lookup"}, "lookup"),
    ({"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "lookup"}]}, "lookup"),
]


@pytest.mark.parametrize(("choice", "name"), CHOICES)
async def test_a_required_call_is_made(engine: Engine, choice: Any, name: str) -> None:
    bounded = [
        {**tool, "parameters": {**tool["parameters"], "properties": {key: {"enum": ["Paris", "Rome"]}}}}
        for tool, key in zip(FUNCTIONS[:2], ("city", "query"), strict=True)
    ]
    deltas, _ = await said(
        engine, asked("What is the weather in Paris?", tools=bounded, tool_choice=choice, max_output_tokens=200)
    )
    [start] = [delta for delta in deltas if isinstance(delta, CallStart)]
    [arguments] = [delta.text for delta in deltas if isinstance(delta, CallArguments)]
    assert start == CallStart(name)
    assert set(json.loads(arguments).values()) <= {"Paris", "Rome"}


async def test_tool_choice_can_require_the_hosted_python(engine: Engine) -> None:
    [first, *_] = points_of("power", tool_choice={"type": "code_interpreter"})
    turn = await turn_at(engine, first)
    assert turn.sampling.structured is not None
    assert await exactly(engine, [first]) == {}


async def test_a_custom_tool_s_input_matches_its_grammar(engine: Engine) -> None:
    grammar = {"type": "grammar", "syntax": "regex", "definition": "(ls|cat) [a-c]"}
    shell = {"type": "custom", "name": "shell", "description": "Runs a shell command.", "format": grammar}
    request = asked("List the files.", tools=[*FUNCTIONS[:2], shell], tool_choice={"type": "custom", "name": "shell"})
    deltas, _ = await said(engine, request)
    assert deltas[-2] == CustomStart("shell")
    assert isinstance(deltas[-1], CustomInput)
    assert deltas[-1].text in {f"{command} {letter}" for command in ("ls", "cat") for letter in "abc"}


async def test_tools_that_are_shown_but_not_allowed_are_not_called(engine: Engine) -> None:
    choice = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "lookup"}]}
    request = asked("What is the weather in Paris?", tools=FUNCTIONS, tool_choice=choice, max_output_tokens=80)
    turn = await build_turn(engine, request)
    assert turn.sampling.structured is not None
    tokens, _ = await written(engine, turn)
    assert "to=functions.get_weather" not in gpt_oss_decode(tokens)


REFUSED: list[tuple[Json, str]] = [
    ({"reasoning": {"effort": "minimal"}}, "reasoning.effort"),
    ({"reasoning": {"effort": "none"}}, "reasoning.effort"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"include": ["message.output_text.logprobs"]}, "include[0]"),
    ({"extra": {"thinking_token_budget": 8}}, "thinking_token_budget"),
    ({"extra": {"skip_special_tokens": False}}, "skip_special_tokens"),
    ({"extra": {"chat_template_kwargs": {"builtin_tools": []}}}, "chat_template_kwargs.builtin_tools"),
    ({"tools": [{**LIBRARY, "server_label": "functions"}]}, "tools[0].server_label"),
    ({"previous_input_messages": [{"role": "x"}]}, "previous_input_messages[0].role"),
    (
        {"text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "object", "properties": 3}}}},
        "text.format.schema",
    ),
]


async def test_fields_that_harmony_cannot_do_are_refused_by_name(engine: Engine) -> None:
    for fields, named in REFUSED:
        with pytest.raises(InvalidSampling, match=re.escape(named)):
            await build_turn(engine, asked("Hello!", **fields))


async def test_a_prompt_that_is_too_long_is_refused_or_truncated_to_fit(engine: Engine) -> None:
    items = [message("word " * 3000), message("Fine.", "assistant"), message("word " * 2000), message("Hi")]
    with pytest.raises(PromptTooLong):
        await build_turn(engine, asked(""), items)
    turn = await build_turn(engine, asked("", truncation="auto"), items)
    assert 2000 < len(turn.prompt) < 3072


# -- loading ---------------------------------------------------------------------------------------------------


async def test_a_model_with_another_vocabulary_is_refused_before_its_engine_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = await asyncio.to_thread(make_engine, demo_model(format="harmony"))
    starts: list[Any] = []
    monkeypatch.setattr("workers.engine.vllm.compat.processes.start", lambda *args: starts.append(args))
    with pytest.raises(ConfigError, match="its tokenizer is not that of harmony"):
        await engine.start()
    assert starts == []
    await engine.stop()


async def test_a_sampler_with_a_memory_is_forced_through_committed_tokens(engine: Engine) -> None:
    request = asked("Count from 1 to 60.", temperature=1.0, extra={"seed": 5}, frequency_penalty=0.2)
    request["max_output_tokens"] = 60
    turn = await build_turn(engine, request)
    whole, _ = await written(engine, turn)
    for cut in (1, 40):
        assert whole[:cut] + (await written(engine, turn, whole[:cut]))[0] == whole


async def test_a_cut_structured_answer_continues_exactly_from_any_token(engine: Engine) -> None:
    [point] = points_of("person", text={"format": schema_of("person")})
    turn = await turn_at(engine, point)
    for cut in range(1, len(point.tokens), 13):
        assert point.tokens[:cut] + (await written(engine, turn, point.tokens[:cut]))[0] == point.tokens


async def test_the_model_s_identity_can_be_set(engine: Engine) -> None:
    turn = await build_turn(engine, asked("Hi", extra={"chat_template_kwargs": {"model_identity": "You are Ada."}}))
    assert "<|message|>You are Ada.\n" in gpt_oss_decode(turn.prompt)


async def test_response_messages_are_shown_on_request(engine: Engine) -> None:
    assert (await build_turn(engine, asked("Hello!"))).messages is None
    turn = await build_turn(engine, asked("Hello!", enable_response_messages=True))
    assert turn.messages is not None
    tokens, _ = await written(engine, turn)
    made = turn.messages(tokens)
    assert [each["role"] for each in made["input_messages"]] == ["system", "user"]
    assert [each["channel"] for each in made["output_messages"]] == ["analysis", "final"]
    again = asked("", previous_input_messages=[*made["input_messages"], *made["output_messages"]])
    later = await build_turn(engine, again, [message("And?")])
    assert "Hello! How can I help you today?<|end|><|start|>user<|message|>And?<|end|>" in gpt_oss_decode(later.prompt)
