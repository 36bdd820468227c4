"""What the real engine cannot do for a request is the caller's fault, and the refusal names the field."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from app.heavy import PROJECT
from app.protocol.failures import field_of
from config.shaping.proof import Proof
from tests.engine.cases import GREEDY, Case, asking, tangled
from workers.engine.base import EngineError, InvalidPrompt, InvalidSampling, Message, RequestAborted
from workers.engine.output_format import OutputFormat, OutputSpec, Structured, Tool, ToolChoice

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="package")]

OUTSIDE = 2**30
"""No token of any vocabulary."""


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("logit_bias", {str(OUTSIDE): 1.0}),
        ("allowed_token_ids", [OUTSIDE]),
        ("stop_token_ids", [OUTSIDE]),
        ("bad_words", ["word"] * 600),
        ("min_tokens", 2**31 - 1),
    ],
)
async def test_a_parameter_that_the_engine_cannot_take_is_named(vllm_case: Case, field: str, value: Any) -> None:
    with pytest.raises(InvalidSampling) as raised:
        await vllm_case.tokens(await vllm_case.prompt(), replace(GREEDY, max_tokens=2, extra={field: value}))
    assert field_of(str(raised.value)) == field


async def test_an_unknown_adapter_is_refused(vllm_case: Case) -> None:
    with pytest.raises(InvalidSampling, match="model 'nobody'"):
        await vllm_case.tokens(await vllm_case.prompt(), replace(GREEDY, adapter="nobody"))


@pytest.mark.parametrize("pattern", ["[z-a]", r"\p{L}+", "(", "a{5,2}", r"(a)\1"])
async def test_a_pattern_that_no_grammar_can_be_made_of_is_refused_or_left_out_of_what_is_not_strict(
    vllm_case: Case, pattern: str
) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": pattern}}, "required": ["a"]}
    text_format = {"type": "json_schema", "name": "n", "schema": schema}
    with pytest.raises(InvalidSampling, match=r"^text\.format\.schema: "):
        await vllm_case.engine.output_format(OutputSpec(text_format=text_format))
    loose = await vllm_case.engine.output_format(OutputSpec(text_format={**text_format, "strict": False}))
    assert loose.structured is not None and '\\"a\\"' in loose.structured.tag


async def test_an_error_of_the_engine_is_no_refusal_unless_other_parameters_leave_no_token(vllm_case: Case) -> None:
    tag = '{"type": "structural_tag", "format": {"type": "regex", "pattern": "("}}'
    made = await vllm_case.engine.output_format(OutputSpec(text_format={"type": "json_object"}))
    for structured, extra, refused in (
        (Structured(tag, "tools"), {}, False),
        (made.structured, {"allowed_token_ids": [(await vllm_case.prompt())[0]]}, True),
    ):
        with pytest.raises(RequestAborted) as raised:
            await vllm_case.tokens(
                await vllm_case.prompt(), replace(GREEDY, max_tokens=4, structured=structured, extra=extra)
            )
        assert bool(raised.value.refusal) is refused


async def _answer_in(case: Case, pattern: str) -> str:
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": pattern}}, "required": ["a"]}
    made = await case.engine.output_format(OutputSpec(text_format={"type": "json_schema", "schema": schema}))
    return case.text(await case.tokens(await case.prompt(), replace(GREEDY, max_tokens=8, structured=made.structured)))


@pytest.mark.parametrize("pattern", ["^([a-z]{0,20} ){0,20}$", "^[a-z]{0,200}$", "^[a-z]{1,1000}$"])
async def test_the_engine_compiles_what_was_tried_for_it(vllm_case: Case, pattern: str) -> None:
    assert (await _answer_in(vllm_case, pattern)).startswith("{")


async def test_schemas_that_would_take_minutes_are_refused_and_hold_up_no_other_project(vllm_case: Case) -> None:
    def asking_for(schema: Any) -> OutputSpec:
        return OutputSpec(text_format={"type": "json_schema", "name": "n", "schema": schema})

    async def made_for(project: str, spec: OutputSpec) -> OutputFormat:
        PROJECT.set(project)
        return await vllm_case.engine.output_format(spec)

    hostile = [asyncio.create_task(made_for("attacker", asking_for(tangled(40, str(n))))) for n in range(3)]
    person = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
    tool = Tool("f", None, person, False, "tools[0]")
    for spec, start in (
        (asking_for(person), "{"),
        (OutputSpec(tools=(tool,), choice=ToolChoice.NAMED), "<tool_call>"),
    ):
        made = await made_for("victim", spec)
        sampling = replace(GREEDY, max_tokens=8, structured=made.structured)
        assert vllm_case.text(await vllm_case.tokens(await vllm_case.prompt(), sampling)).startswith(start)
    assert not all(task.done() for task in hostile)
    hostile.pop().cancel()
    for task in hostile:
        with pytest.raises(InvalidSampling, match=r"^text\.format\.schema: its grammar takes more than 2 seconds"):
            await task


async def test_a_large_schema_is_tried_with_the_model_s_vocabulary_and_kept_to(vllm_case: Case) -> None:
    properties = {f"property_{n}": {"type": "string"} for n in range(300)}
    schema = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    text_format = {"type": "json_schema", "name": "n", "schema": schema}
    made = await vllm_case.engine.output_format(OutputSpec(text_format=text_format))
    sampling = replace(GREEDY, max_tokens=8, structured=made.structured)
    assert vllm_case.text(await vllm_case.tokens(await vllm_case.prompt(), sampling)).startswith("{")


async def test_a_schema_that_is_too_long_is_refused(vllm_case: Case) -> None:
    text_format = {"type": "json_schema", "name": "n", "schema": {"type": "string", "enum": ["x" * 2**18]}}
    with pytest.raises(InvalidSampling, match=r"^text\.format\.schema: .* may have 262144 characters"):
        await vllm_case.engine.output_format(OutputSpec(text_format=text_format))


NOBODY: Message = {"role": "assistant", "tool_calls": "none"}


async def test_messages_that_the_template_cannot_show_are_the_callers_fault(vllm_case: Case) -> None:
    with pytest.raises(InvalidPrompt, match="the messages cannot be rendered"):
        await vllm_case.engine.render([NOBODY], vllm_case.template_args)


async def test_a_template_that_shows_no_plain_message_is_the_operators_fault(
    vllm_case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = vllm_case.engine._loaded  # type: ignore[attr-defined]
    monkeypatch.setattr(loaded.front.rendering, "proof", Proof(broken="its chat template refuses it"))
    monkeypatch.setattr(loaded.llm.renderer.get_tokenizer(), "chat_template", "{{ messages.nothing.here }}")
    with pytest.raises(EngineError, match="the messages cannot be rendered") as raised:
        await vllm_case.engine.render(asking("Hello!"), vllm_case.template_args)
    assert not isinstance(raised.value, InvalidPrompt)


async def test_the_engine_lives_on_after_all_these(vllm_case: Case) -> None:
    await vllm_case.engine.check()
    assert await vllm_case.tokens(await vllm_case.prompt(), replace(GREEDY, max_tokens=2))
