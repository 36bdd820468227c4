"""What vLLM cannot hold or compile is refused with the field's name, before it reaches an engine that would die of it.

These tests make vLLM's parameters, and start no engine.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from app.sizes import LARGE_BYTES
from tests.engine.cases import MANY_SCRIPTS, demo_model
from workers.engine import make_engine
from workers.engine.base import EngineRequest, InvalidSampling, PromptTooLong, RequestAborted, Sampling, check_length
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

    def count(texts: list[str]) -> int:
        return sum(map(len, texts))

    check_bad_words(asked(bad_words=["x" * 511]), count)
    with pytest.raises(InvalidSampling, match=r"^bad_words: expected at most 1024 tokens .* \(got 1025\)"):
        check_bad_words(asked(bad_words=["x" * 512]), count)


def test_bad_words_that_are_too_long_are_not_even_counted() -> None:
    from workers.engine.vllm.sampling import check_bad_words

    def never(text: str) -> int:
        raise AssertionError

    with pytest.raises(InvalidSampling, match=r"^bad_words: expected at most 16384 characters"):
        check_bad_words(asked(bad_words=["x" * 256] * 65), never)


GRAMMAR = Structured("{}", "tools[1].format")
FEW = {"allowed_token_ids": [1], "bad_words": [], "min_tokens": 2}


@pytest.mark.parametrize(
    ("sampling", "delivered", "refusal"),
    [
        (Sampling(), False, None),
        (Sampling(structured=GRAMMAR), False, None),
        (Sampling(extra=FEW), False, None),
        (Sampling(structured=GRAMMAR, extra=FEW), True, None),
        (Sampling(structured=GRAMMAR, extra=FEW), False, "allowed_token_ids and min_tokens and tools[1].format: "),
    ],
)
def test_an_error_of_the_engine_may_pass_and_is_the_callers_if_nothing_went_on(
    sampling: Sampling, delivered: bool, refusal: str | None
) -> None:
    from workers.engine.vllm.checked_request import CheckedRequest

    def output(tokens: list[int], reason: str | None) -> SimpleNamespace:
        return SimpleNamespace(token_ids=tokens, finish_reason=reason, logprobs=None, stop_reason=None)

    reader = SimpleNamespace(read=lambda *_: ())
    checked = CheckedRequest(EngineRequest("x", [1], sampling), 10, can_force=False, logprobs=reader)  # type: ignore[arg-type]
    if delivered:
        checked.delta(output([1], None), 0)
    with pytest.raises(RequestAborted, match="it says 'error'") as raised:
        checked.delta(output([], "error"), 0)
    assert raised.value.counts
    assert str(raised.value.refusal or "").startswith(refusal or "") and bool(raised.value.refusal) is bool(refusal)


@pytest.mark.parametrize(("reason", "counts"), [("abort", False), ("error", True), ("a reason of a later vLLM", False)])
def test_an_end_that_nobody_asked_for_is_no_answer(reason: str, counts: bool) -> None:
    from workers.engine.vllm.checked_request import CheckedRequest

    checked = CheckedRequest(EngineRequest("x", [1], Sampling()), 10, can_force=False, logprobs=None)  # type: ignore[arg-type]
    completion = SimpleNamespace(token_ids=[1], finish_reason=reason, logprobs=None, stop_reason=None)
    with pytest.raises(RequestAborted, match=reason) as raised:
        checked.delta(completion, 0)
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


# -- prompts


@pytest.fixture(scope="module")
def llm(imported: None) -> Any:
    """What renders prompts, without an engine."""
    from vllm.renderers import renderer_from_config

    from workers.engine.vllm.arguments import engine_args
    from workers.engine.vllm.compat.configuration import config_of

    config = config_of(engine_args(demo_model()))
    return SimpleNamespace(renderer=renderer_from_config(config), model_config=config.model_config)


def said(text: str, role: str = "user") -> list[Any]:
    return [{"role": role, "content": text}, {"role": "user", "content": "Go on."}]


async def test_a_large_prompt_has_the_tokens_that_it_would_have_as_a_small_one(llm: Any) -> None:
    from workers.engine.vllm.compat.renderer import ChatRenderer

    renderer, args = ChatRenderer(llm), {**demo_model().chat_template_args, "add_generation_prompt": True}
    small, large = [await renderer.render_in_thread(said(MANY_SCRIPTS), args, large=large) for large in (False, True)]
    assert (
        small["prompt_token_ids"]
        == large["prompt_token_ids"]
        == renderer.render(said(MANY_SCRIPTS), args)["prompt_token_ids"]
    )


@pytest.mark.parametrize("role", ["user", "assistant"])
@pytest.mark.parametrize("text", ["word " * 60_000, "x" * 2_000_000])
async def test_a_large_prompt_that_is_too_long_is_refused_before_all_of_it_has_become_tokens(
    llm: Any, monkeypatch: pytest.MonkeyPatch, role: str, text: str
) -> None:
    from workers.engine.vllm.rendering import Rendering

    tokenizer, made = llm.renderer.get_tokenizer(), []
    encode = type(tokenizer)._encode_plus

    def watched(self: Any, text: str, *args: Any, **more: Any) -> Any:
        made.append((len(text), more))
        return encode(self, text, *args, **more)

    monkeypatch.setattr(type(tokenizer), "_encode_plus", watched)
    with pytest.raises(PromptTooLong, match=f"more than {demo_model().context_length} tokens") as caught:
        await Rendering(llm, {}).render(said(text, role), demo_model().chat_template_args, ())
    assert (caught.value.tokens, caught.value.limit) == (None, demo_model().context_length)
    assert sum(size for size, _ in made) <= 2 * LARGE_BYTES


def test_pieces_are_counted_until_they_are_too_many() -> None:
    counted: list[str] = []

    def count(text: str) -> int:
        counted.append(text)
        return len(text) // 4

    check_length(["x" * LARGE_BYTES], count, LARGE_BYTES // 4)
    counted.clear()
    with pytest.raises(PromptTooLong):
        check_length(iter(["x" * 60_000_000, "y"]), count, LARGE_BYTES)
    assert {len(piece) for piece in counted} == {LARGE_BYTES} and len(counted) == 5
    check_length(["x"] * 100, lambda _: 1, 100)
