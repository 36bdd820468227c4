"""Every engine keeps the contract of `workers/engine/base.py`."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from app.protocol.events.deltas import FinishReason
from tests.engine.cases import COUNTED, GREEDY, STEP, Case, new_id
from tests.support.scripted.engine import ScriptedEngine
from tests.support.waiting import until
from workers.engine.base import EngineError, EngineRequest, InvalidSampling, PromptTooLong, Sampling

pytestmark = pytest.mark.asyncio(loop_scope="package")

HAS_ACCELERATOR = Path("/dev/nvidia0").exists()
ENDLESS = Sampling(temperature=0.0, extra={"ignore_eos": True})


async def test_a_reply_comes_in_deltas_that_end_with_its_end_token(case: Case) -> None:
    prompt = await case.prompt()
    deltas = await case.deltas(prompt)
    assert [delta.finish_reason for delta in deltas] == [None] * (len(deltas) - 1) + [FinishReason.STOP]
    assert len(deltas) > 1 and all(delta.token_ids for delta in deltas[:-1])
    assert all(0 <= delta.cached_tokens <= len(prompt) for delta in deltas)
    tokens = [token for delta in deltas for token in delta.token_ids]
    assert tokens[-1] in case.special
    assert case.text(tokens[:-1]) == case.text(tokens) == COUNTED
    assert case.engine.running == 0
    await case.engine.check()


async def test_gathered_tokens_are_the_same(case: Case) -> None:
    prompt = await case.prompt()
    whole = await case.tokens(prompt)
    async with aclosing(case.engine.generate(EngineRequest(new_id(), prompt, GREEDY, tokens_per_delta=16))) as stream:
        deltas = [delta async for delta in stream]
    assert [token for delta in deltas for token in delta.token_ids] == whole
    assert [delta.finish_reason for delta in deltas] == [None] * (len(deltas) - 1) + [FinishReason.STOP]


async def test_an_engine_says_how_many_requests_generate_at_once(case: Case) -> None:
    assert case.engine.slots == STEP


async def test_an_engine_says_how_many_tokens_its_cache_holds(case: Case) -> None:
    tokens = case.engine.cache_tokens
    assert (
        tokens is None if isinstance(case.engine, ScriptedEngine) else tokens and tokens >= case.engine.context_length
    )


async def test_an_engine_says_whether_it_computes_on_the_cpu(case: Case) -> None:
    from workers.engine.server.engine import ServerEngine  # it imports vLLM

    is_elsewhere = isinstance(case.engine, ScriptedEngine | ServerEngine)
    assert case.engine.on_cpu is not (is_elsewhere or HAS_ACCELERATOR)


async def test_max_tokens_cuts_with_length(case: Case) -> None:
    prompt = await case.prompt()
    whole = await case.tokens(prompt)
    deltas = await case.deltas(prompt, Sampling(temperature=0.0, max_tokens=7))
    assert [token for delta in deltas for token in delta.token_ids] == whole[:7]
    assert deltas[-1].finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize("max_tokens", [None, 100])
async def test_a_full_context_cuts_with_length(case: Case, max_tokens: int | None) -> None:
    prompt = await case.prompt()
    padded = (case.pad,) * (case.engine.context_length - len(prompt) - 5) + prompt
    sampling = Sampling(temperature=0.0, max_tokens=max_tokens, extra={"ignore_eos": True})
    deltas = await case.deltas(padded, sampling)
    assert sum(len(delta.token_ids) for delta in deltas) == 5
    assert deltas[-1].finish_reason is FinishReason.LENGTH


async def test_a_prompt_that_fills_the_context_is_refused(case: Case) -> None:
    limit = case.engine.context_length
    with pytest.raises(PromptTooLong) as caught:
        await case.deltas((case.pad,) * limit)
    assert (caught.value.tokens, caught.value.limit) == (limit, limit)


async def test_a_prompt_that_is_too_long_is_refused_with_both_lengths(case: Case) -> None:
    limit = case.engine.context_length
    with pytest.raises(PromptTooLong) as caught:
        await case.prompt("word " * 2 * limit)
    assert caught.value.limit == limit
    assert caught.value.tokens > 2 * limit


async def test_an_empty_list_of_messages_is_refused(case: Case) -> None:
    with pytest.raises(EngineError, match="no messages"):
        await case.engine.render([], case.template_args)


async def test_messages_that_the_template_cannot_take_are_refused_in_one_line(case: Case) -> None:
    with pytest.raises(EngineError) as caught:
        await case.engine.render([{"content": "nobody said this"}], case.template_args)
    assert "\n" not in str(caught.value)


async def test_an_empty_prompt_is_refused(case: Case) -> None:
    with pytest.raises(EngineError, match="empty"):
        await case.deltas(())


async def test_the_turns_of_a_conversation_are_all_in_the_prompt(case: Case) -> None:
    turns = [
        {"role": "system", "content": "Speak up."},
        {"role": "user", "content": "Hello!"},
        {"role": "assistant", "content": "Good evening."},
        {"role": "user", "content": [{"type": "text", "text": "Who are you?"}]},
    ]
    text = case.text(await case.engine.render(turns, case.template_args))
    places = [text.find(word) for word in ("Speak up.", "Hello!", "Good evening.", "Who are you?")]
    assert -1 not in places
    assert places == sorted(places)


BAD_SAMPLING: list[tuple[str, dict[str, Any]]] = [
    ("temperature", {"temperature": 9.0}),
    ("temperature", {"temperature": float("nan")}),
    ("temperature", {"temperature": "warm"}),
    ("top_p", {"top_p": 2.0}),
    ("max_tokens", {"max_tokens": 0}),
    ("presence_penalty", {"presence_penalty": 3.0}),
    ("frequency_penalty", {"frequency_penalty": -3.0}),
    ("min_tokens", {"max_tokens": 5, "extra": {"min_tokens": 6}}),
    ("min_tokens", {"extra": {"min_tokens": -1}}),
    ("min_p", {"extra": {"min_p": 2}}),
    ("top_k", {"extra": {"top_k": "many"}}),
    ("min_tokens", {"extra": {"min_tokens": 2.5}}),
    ("top_k", {"extra": {"top_k": 2**40}}),
    ("seed", {"extra": {"seed": 2**70}}),
    ("repetition_penalty", {"extra": {"repetition_penalty": -1}}),
    ("colour", {"extra": {"colour": "green"}}),
    ("stop", {"extra": {"stop": ["."]}}),
    ("n", {"extra": {"n": 2}}),
]


async def test_a_refused_sampling_parameter_is_named_in_one_line(case: Case) -> None:
    prompt = await case.prompt()
    for name, fields in BAD_SAMPLING:
        with pytest.raises(InvalidSampling, match=rf"\b{name}\b") as caught:
            await case.deltas(prompt, Sampling(**fields))
        assert "\n" not in str(caught.value), name
    assert case.engine.running == 0


async def test_extreme_sampling_parameters_leave_the_engine_alive(case: Case) -> None:
    prompt = await case.prompt()
    for extra in ({"top_k": 2**31 - 1}, {"seed": 2**63 - 1}, {"seed": -(2**63) + 1}, {"min_p": 1}, {"top_k": -1}):
        sampling = Sampling(temperature=2.0, top_p=1e-9, max_tokens=3, extra=extra)
        assert await case.tokens(prompt, sampling)
    await case.engine.check()


async def test_closing_the_stream_aborts_the_request(case: Case) -> None:
    stream = case.stream(await case.prompt(), ENDLESS)
    await anext(stream)
    assert case.engine.running == 1
    await stream.aclose()
    await until(lambda: case.engine.running == 0)


async def test_cancelling_the_reader_aborts_the_request(case: Case) -> None:
    async def read() -> None:
        async for _ in case.stream(prompt, ENDLESS):
            begun.set()

    prompt, begun = await case.prompt(), asyncio.Event()
    reader = asyncio.create_task(read())
    await begun.wait()
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    await until(lambda: case.engine.running == 0)


async def test_a_stream_without_a_reader_never_enters_the_engine(case: Case) -> None:
    stream = case.stream(await case.prompt())
    assert case.engine.running == 0
    await stream.aclose()


async def test_an_aborted_id_can_run_again(case: Case) -> None:
    prompt, request_id = await case.prompt(), new_id()
    stream = case.stream(prompt, ENDLESS, request_id)
    await anext(stream)
    await stream.aclose()
    async with aclosing(case.stream(prompt, None, request_id)) as again:
        assert case.text([token async for delta in again for token in delta.token_ids]) == COUNTED


async def test_a_running_id_is_refused_and_its_first_request_continues(case: Case) -> None:
    prompt, request_id = await case.prompt(), new_id()
    async with aclosing(case.stream(prompt, None, request_id)) as first:
        tokens = list((await anext(first)).token_ids)
        with pytest.raises(EngineError, match=request_id):
            await anext(case.stream(prompt, None, request_id))
        tokens += [token async for delta in first for token in delta.token_ids]
    assert case.text(tokens) == COUNTED


async def test_a_slow_reader_gets_merged_deltas_and_every_token(case: Case) -> None:
    prompt = await case.prompt()
    async with aclosing(case.stream(prompt)) as slow:
        first = await anext(slow)
        whole = await case.tokens(prompt)  # time for a whole reply
        rest = [delta async for delta in slow]
    assert [*first.token_ids, *(token for delta in rest for token in delta.token_ids)] == whole
    assert len(rest) < len(whole) - len(first.token_ids)


async def test_64_streams_at_once_do_not_mix(case: Case) -> None:
    prompt = await case.prompt()
    whole = await case.tokens(prompt)
    cuts = range(5, 69)
    samplings = [Sampling(temperature=0.0, max_tokens=cut) for cut in cuts]
    results = await asyncio.gather(*(case.tokens(prompt, sampling) for sampling in samplings))
    assert results == [whole[:cut] for cut in cuts]
