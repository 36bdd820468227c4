"""What the real engine cannot do for a request is the caller's fault, and the refusal names the field."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.engine.cases import GREEDY, Case
from workers.engine.base import InvalidSampling
from workers.engine.output_format import OutputSpec, Structured

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
    with pytest.raises(InvalidSampling, match=field):
        await vllm_case.tokens(await vllm_case.prompt(), replace(GREEDY, max_tokens=2, extra={field: value}))


async def test_an_unknown_adapter_is_refused(vllm_case: Case) -> None:
    with pytest.raises(InvalidSampling, match="model 'nobody'"):
        await vllm_case.tokens(await vllm_case.prompt(), replace(GREEDY, adapter="nobody"))


@pytest.mark.parametrize("pattern", ["[z-a]", r"\p{L}+", "(", "a{5,2}", r"(a)\1"])
async def test_a_schema_with_a_pattern_that_no_grammar_can_be_made_of_is_refused(vllm_case: Case, pattern: str) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": pattern}}, "required": ["a"]}
    text_format = {"type": "json_schema", "name": "n", "schema": schema}
    with pytest.raises(InvalidSampling, match=r"^text\.format\.schema: "):
        await vllm_case.engine.output_format(OutputSpec(text_format=text_format))


async def test_a_grammar_that_only_the_engine_cannot_compile_is_refused(vllm_case: Case) -> None:
    tag = '{"type": "structural_tag", "format": {"type": "regex", "pattern": "("}}'
    with pytest.raises(InvalidSampling):
        await vllm_case.tokens(await vllm_case.prompt(), replace(GREEDY, structured=Structured(tag, "tools")))


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


async def test_the_engine_lives_on_after_all_these(vllm_case: Case) -> None:
    await vllm_case.engine.check()
    assert await vllm_case.tokens(await vllm_case.prompt(), replace(GREEDY, max_tokens=2))
