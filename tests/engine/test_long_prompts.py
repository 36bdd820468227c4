"""Prompts that the engine reads in several steps, under every sampler with a state: same tokens, and no engine dies.

vLLM samples a token after each of these steps, too, and discards it. Its second model runner needs a GPU.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.engine.cases import PERSON, STEP, Case, rest, structured, tokens_of
from workers.engine.base import Sampling

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="package")]

QUESTION = "word " * (3 * STEP) + "Count from 1 to 60."


def seeded(**extra: Any) -> Sampling:
    return Sampling(temperature=1.5, max_tokens=24, extra={"seed": 7, "ignore_eos": True, **extra})


SAMPLERS = {
    "greedy": lambda case: Sampling(temperature=0.0, max_tokens=24),
    "seed": lambda case: seeded(),
    "seed, top_p": lambda case: replace(seeded(), top_p=0.9),
    "seed, top_k": lambda case: seeded(top_k=20, min_p=0.01),
    "presence penalty": lambda case: replace(seeded(), presence_penalty=1.5),
    "frequency penalty": lambda case: replace(seeded(), frequency_penalty=1.5),
    "repetition penalty": lambda case: seeded(repetition_penalty=1.3),
    "min_tokens": lambda case: Sampling(temperature=1.5, max_tokens=24, extra={"seed": 7, "min_tokens": 20}),
    "bad_words": lambda case: seeded(bad_words=["1", "one"]),
    "logprobs": lambda case: replace(seeded(), logprobs=3),
}


async def read(case: Case, prompt: Sequence[int], sampling: Sampling) -> tuple[list[int], int]:
    """The tokens of an answer, and how many of the prompt the prefix cache had."""
    deltas = await case.deltas(prompt, sampling)
    return tokens_of(deltas), deltas[-1].cached_tokens


async def check_steps(case: Case, prompts: Sequence[Sequence[int]], sampling: Sampling) -> list[list[int]]:
    """Reads the first prompt alone and the others side by side, in several steps; then each in one, since the cache has
    the rest of it. Returns the answers."""
    first = await read(case, prompts[0], sampling)
    several = [first, *await asyncio.gather(*(read(case, prompt, sampling) for prompt in prompts[1:]))]
    assert [cached for _, cached in several] == [0] * len(prompts)
    for prompt, (tokens, _) in zip(prompts, several, strict=True):
        again, cached = await read(case, prompt, sampling)
        assert len(prompt) - STEP < cached
        assert again == tokens
    return [tokens for tokens, _ in several]


@pytest.mark.parametrize("name", SAMPLERS)
async def test_a_prompt_read_in_several_steps_gets_the_tokens_of_one_step(vllm_case: Case, name: str) -> None:
    sampling, prompt = SAMPLERS[name](vllm_case), await vllm_case.prompt(QUESTION)
    assert len(prompt) > 3 * STEP
    first = 100 + 3 * list(SAMPLERS).index(name)  # other first tokens: nothing of these prompts is in the cache
    whole, *_ = await check_steps(vllm_case, [[first + n, *prompt[1:]] for n in range(3)], sampling)
    for cut in (1, len(whole) // 2):  # after a take-over
        begun = [first, *prompt[1:]]
        assert whole[:cut] + tokens_of(await rest(vllm_case, begun, sampling, whole[:cut])) == whole


async def test_a_grammar_holds_after_a_prompt_read_in_several_steps(vllm_case: Case) -> None:
    sampling = await structured(vllm_case, PERSON, temperature=1.0, max_tokens=200, extra={"seed": 3})
    prompt = await vllm_case.prompt("word " * (3 * STEP) + "Extract the person: Ada Lovelace, born in 1815.")
    (whole,) = await check_steps(vllm_case, [prompt], sampling)
    assert set(json.loads(vllm_case.text(whole))) == {"name", "year"}
    cut = len(whole) // 2
    assert whole[:cut] + tokens_of(await rest(vllm_case, prompt, sampling, whole[:cut])) == whole
