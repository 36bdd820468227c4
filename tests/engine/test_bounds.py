"""What vLLM cannot hold or compile is refused with the field's name, before it reaches an engine that would die of it.

These tests make vLLM's parameters, and start no engine.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.engine.cases import demo_model
from workers.engine import make_engine
from workers.engine.base import InvalidSampling, RequestAborted, Sampling
from workers.engine.output_format import OutputSpec, Structured, Tool, ToolChoice

pytestmark = pytest.mark.vllm

END = frozenset({1, 2})


@pytest.fixture(scope="module", autouse=True)
def imported() -> None:
    make_engine(demo_model())  # imports vLLM in the environment that it needs


def asked(**extra: object) -> Sampling:
    return Sampling(extra=extra)


def test_stop_tokens_and_the_model_s_end_tokens_share_a_bound_under_min_tokens() -> None:
    from workers.engine.vllm.sampling import check_stop_tokens

    check_stop_tokens(asked(min_tokens=1, stop_token_ids=list(range(1, 129))), END)
    with pytest.raises(InvalidSampling, match=r"^stop_token_ids: .* at most 126 \(got 127\)"):
        check_stop_tokens(asked(min_tokens=1, stop_token_ids=list(range(1, 130))), END)


def test_without_min_tokens_the_engine_takes_more_stop_tokens() -> None:
    from workers.engine.vllm.sampling import check_stop_tokens

    check_stop_tokens(asked(stop_token_ids=list(range(1024))), END)


def test_bad_words_have_a_bound_of_tokens() -> None:
    from workers.engine.vllm.sampling import check_bad_words

    check_bad_words(asked(bad_words=["x" * 511]), len)
    with pytest.raises(InvalidSampling, match=r"^bad_words: expected at most 1024 tokens .* \(got 1025\)"):
        check_bad_words(asked(bad_words=["x" * 512]), len)


def test_bad_words_that_are_too_long_are_not_even_counted() -> None:
    from workers.engine.vllm.sampling import check_bad_words

    def never(text: str) -> int:
        raise AssertionError

    with pytest.raises(InvalidSampling, match=r"^bad_words: expected at most 16384 characters"):
        check_bad_words(asked(bad_words=["x" * 256] * 65), never)


@pytest.mark.parametrize(
    ("sampling", "tokens", "kind", "message"),
    [
        (Sampling(structured=Structured("{}", "tools[1].format")), [], InvalidSampling, r"^tools\[1\]\.format: "),
        (Sampling(structured=Structured("{}", "tools")), [1], RequestAborted, "it says 'error'"),
        (Sampling(), [], RequestAborted, "it says 'error'"),
    ],
)
def test_an_error_before_the_first_token_is_the_grammar_s(
    sampling: Sampling, tokens: list[int], kind: type[Exception], message: str
) -> None:
    from workers.engine.vllm.generation import Generation

    generation = Generation([1], sampling, (), 10, can_force=False, logprobs=None)  # type: ignore[arg-type]
    completion = SimpleNamespace(token_ids=tokens, finish_reason="error", logprobs=None)
    with pytest.raises(kind, match=message):
        generation.delta(SimpleNamespace(outputs=[completion], num_cached_tokens=0))


@pytest.mark.parametrize(("reason", "counts"), [("abort", False), ("error", True), ("a reason of a later vLLM", False)])
def test_an_end_that_nobody_asked_for_is_no_answer(reason: str, counts: bool) -> None:
    from workers.engine.vllm.generation import Generation

    generation = Generation([1], Sampling(), (), 10, can_force=False, logprobs=None)  # type: ignore[arg-type]
    completion = SimpleNamespace(token_ids=[1], finish_reason=reason, logprobs=None)
    with pytest.raises(RequestAborted, match=reason) as raised:
        generation.delta(SimpleNamespace(outputs=[completion], num_cached_tokens=0))
    assert raised.value.counts is counts


def tool(index: int, *, strict: bool = False, **made: Any) -> Tool:
    return Tool(f"t{index}", None, {"type": "object"}, strict, f"tools[{index}]", **made)


JSON = {"type": "json_schema", "name": "n", "schema": {"type": "object"}}
CUSTOM = tool(1, grammar=("regex", "a+"))


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        (OutputSpec(text_format=JSON), "text.format"),
        (OutputSpec((CUSTOM,), ToolChoice.AUTO, text_format=JSON), "text.format"),
        (OutputSpec((CUSTOM,), ToolChoice.NAMED, text_format=JSON), "tools[1].format"),
        (OutputSpec((CUSTOM,), ToolChoice.AUTO), "tools[1].format"),
        (OutputSpec((tool(2, strict=True),), ToolChoice.AUTO), "tools[2].parameters"),
        (OutputSpec((tool(0),), ToolChoice.REQUIRED), "tools[0]"),
        (OutputSpec((tool(0, strict=True), CUSTOM), ToolChoice.AUTO), "tools"),
    ],
)
def test_a_grammar_comes_from_the_field_that_the_caller_sent(spec: OutputSpec, field: str) -> None:
    assert spec.grammar_field == field
