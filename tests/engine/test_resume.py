"""Requests that continue after another engine's tokens: the joined output is that of an uninterrupted request."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import replace

import pytest

from app.protocol.events.deltas import FinishReason
from app.store.database import Database
from app.store.keys import pubsub_key
from app.store.migrate import migrate
from app.streaming.pubsub import PubSub
from tests.engine.cases import COUNTED, PERSON, Case, demo_model, new_id, rest, structured, tokens_of
from tests.support.logs import events_of, row_of, text_of
from tests.support.logs import whole as whole_log
from tests.support.requests import message
from tests.support.rows import in_foreground, queued
from tests.support.services import Services
from tests.support.waiting import until
from tests.support.worker import Worker
from workers.engine.base import CannotContinue, EngineDelta, EngineError, EngineRequest, RequestAborted, Sampling
from workers.engine.output_format import OutputSpec
from workers.generation import slots as slots_module
from workers.generation.outcome import Outcome

pytestmark = pytest.mark.asyncio(loop_scope="package")


SHORT = "Hello!"
PAST_THE_END = 40
"""Tokens; either engine answers SHORT with fewer."""

SAMPLINGS: Mapping[str, Sampling] = {
    "greedy": Sampling(temperature=0.0),
    "cut by max_tokens": Sampling(temperature=0.0, max_tokens=40),
    "presence penalty": Sampling(temperature=0.0, max_tokens=50, presence_penalty=1.5),
    "frequency penalty": Sampling(temperature=0.0, max_tokens=50, frequency_penalty=1.5),
    "repetition penalty": Sampling(temperature=0.0, max_tokens=50, extra={"repetition_penalty": 1.3}),
    "seed": Sampling(temperature=1.0, max_tokens=60, extra={"seed": 11}),
    "hot seed": Sampling(temperature=2.0, max_tokens=60, extra={"seed": 12}),
    "min_tokens": Sampling(temperature=0.0, max_tokens=PAST_THE_END, extra={"min_tokens": PAST_THE_END - 5}),
    "ignore_eos": Sampling(temperature=0.0, max_tokens=PAST_THE_END, extra={"ignore_eos": True}),
}


@pytest.mark.parametrize("name", SAMPLINGS)
async def test_a_cut_request_continues_exactly(case: Case, name: str) -> None:
    past_the_end = name in ("min_tokens", "ignore_eos")
    sampling, prompt = SAMPLINGS[name], await case.prompt(SHORT if past_the_end else None)
    whole = await case.deltas(prompt, sampling)
    tokens = tokens_of(whole)
    assert not past_the_end or len(tokens) > PAST_THE_END - 6
    for cut in (1, len(tokens) // 2, len(tokens) - 1):
        joined = await rest(case, prompt, sampling, tokens[:cut])
        assert tokens[:cut] + tokens_of(joined) == tokens
        assert joined[-1].finish_reason is whole[-1].finish_reason


async def test_a_request_with_all_its_tokens_committed_ends_at_once(case: Case) -> None:
    prompt, sampling = await case.prompt(), Sampling(temperature=0.0, max_tokens=9)
    tokens = await case.tokens(prompt, sampling)
    assert await rest(case, prompt, sampling, tokens) == [EngineDelta((), FinishReason.LENGTH)]


async def test_log_probabilities_continue_with_the_tokens(case: Case) -> None:
    prompt = await case.prompt()
    for sampling in (SAMPLINGS["greedy"], SAMPLINGS["seed"]):
        asked = replace(sampling, max_tokens=20, logprobs=3)
        whole = await case.deltas(prompt, asked)
        found = [entry for delta in whole for entry in delta.logprobs]
        deltas = await rest(case, prompt, asked, tokens_of(whole)[:7])
        assert [entry["token"] for delta in deltas for entry in delta.logprobs] == [e["token"] for e in found[7:]]
        assert all(len(entry["top_logprobs"]) == 3 for entry in found)


async def test_a_request_can_be_cut_several_times(case: Case) -> None:
    sampling, prompt = SAMPLINGS["seed"], await case.prompt()
    tokens = await case.tokens(prompt, sampling)
    committed: list[int] = []
    while len(committed) < len(tokens):
        async with aclosing(
            case.engine.generate(EngineRequest(new_id(), prompt, sampling, committed=committed))
        ) as stream:
            async for delta in stream:
                committed += delta.token_ids
                if len(committed) % 13 > 9:
                    break
    assert committed == tokens


async def test_many_cut_requests_continue_side_by_side(case: Case) -> None:
    prompt = await case.prompt()
    samplings = [replace(SAMPLINGS["hot seed"], extra={"seed": seed}) for seed in range(12)]
    wholes = await asyncio.gather(*(case.tokens(prompt, sampling) for sampling in samplings))

    async def cut(sampling: Sampling, tokens: list[int], at: int) -> list[int]:
        return tokens[:at] + tokens_of(await rest(case, prompt, sampling, tokens[:at]))

    jobs = [
        cut(sampling, whole, place * 5) for place, (sampling, whole) in enumerate(zip(samplings, wholes, strict=True))
    ]
    assert await asyncio.gather(*jobs) == wholes


async def test_the_scripted_engine_refuses_tokens_that_are_not_of_its_reply(scripted_case: Case) -> None:
    with pytest.raises(EngineError, match="not of this reply"):
        await rest(scripted_case, await scripted_case.prompt(), SAMPLINGS["greedy"], [1, 2])


@pytest.mark.vllm
@pytest.mark.parametrize("seed", range(3))
async def test_json_fits_its_schema_after_three_cuts(vllm_case: Case, seed: int) -> None:
    sampling = await structured(vllm_case, PERSON, temperature=1.0, max_tokens=200, extra={"seed": seed})
    prompt = await vllm_case.prompt("Extract the person: Ada Lovelace was born in 1815 in London.")
    whole = await vllm_case.tokens(prompt, sampling)
    text = vllm_case.text(whole)
    assert set(json.loads(text)) == {"name", "year"}
    for share in (0.25, 0.5, 0.75):
        cut = int(len(whole) * share)
        assert whole[:cut] + tokens_of(await rest(vllm_case, prompt, sampling, whole[:cut])) == whole


@pytest.mark.vllm
async def test_a_grammar_after_reasoning_continues_from_any_token(vllm_case: Case) -> None:
    args = {"enable_thinking": True}
    spec = OutputSpec(text_format={"type": "json_schema", "schema": PERSON}, template_args=args)
    output_format = await vllm_case.engine.output_format(spec)
    sampling = Sampling(temperature=0.0, max_tokens=120, structured=output_format.structured)
    message = {"role": "user", "content": "Extract the person: Ada Lovelace was born in 1815 in London."}
    prompt = await vllm_case.engine.render([message], args)
    whole = await vllm_case.tokens(prompt, sampling)
    for cut in range(1, len(whole), 4):
        assert whole[:cut] + tokens_of(await rest(vllm_case, prompt, sampling, whole[:cut])) == whole


@pytest.mark.vllm
async def test_tokens_that_do_not_match_the_grammar_are_never_continued(vllm_case: Case) -> None:
    sampling = await structured(vllm_case, PERSON, temperature=0.0, max_tokens=50)
    with pytest.raises(RequestAborted):
        await rest(vllm_case, await vllm_case.prompt(), sampling, vllm_case.encode("No JSON at all"))
    await vllm_case.engine.check()
    assert await vllm_case.tokens(await vllm_case.prompt())


@pytest.mark.vllm
async def test_an_engine_that_cannot_force_tokens_raises_cannot_continue(
    vllm_case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = vllm_case.engine._loaded  # type: ignore[attr-defined]
    monkeypatch.setattr(vllm_case.engine, "_loaded", replace(loaded, can_force=False))
    prompt, tokens = await vllm_case.prompt(), await vllm_case.tokens(await vllm_case.prompt())
    with pytest.raises(CannotContinue):
        await rest(vllm_case, prompt, SAMPLINGS["seed"], tokens[:3])
    assert tokens_of(await rest(vllm_case, prompt, SAMPLINGS["greedy"], tokens[:3])) == tokens[3:]


@pytest.mark.vllm
async def test_a_background_response_yields_to_a_stream_and_ends_token_exact(
    vllm_case: Case, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one slot: it ends as if it had not yielded."""
    monkeypatch.setattr(slots_module, "STEADY_SECONDS", 0.0)
    owner, db, model = Database(services.owner_url, 1), Database(services.database_url, 10), demo_model()
    await migrate(owner)
    await owner.close()
    pubsub = PubSub(services.redis_url, pubsub_key(db))
    await pubsub.start()
    w = Worker(db, pubsub, model, 60.0, engine=vllm_case.engine, limit=1)
    await w.lease.start()
    try:
        response_id = await queued(db, input=[message(vllm_case.counting)], model=model.name)
        job = w.start(response_id)

        async def has_text() -> bool:
            return any(event["type"] == "response.output_text.delta" for event in await events_of(db, response_id))

        await until(has_text, 60)
        streams = [w.start(await in_foreground(db, vllm_case.counting, model=model.name)) for _ in range(2)]
        assert await job.task is Outcome.YIELDED
        assert await asyncio.gather(*(stream.task for stream in streams)) == [Outcome.COMPLETED] * 2
        assert await w.run(response_id) is Outcome.COMPLETED
        assert text_of(await whole_log(db, response_id)) == COUNTED
        row = await row_of(db, response_id)
        assert (row.yields, row.crashes, row.attempt) == (1, 0, 2)
    finally:
        await w.lease.close()
        await w.journal.close()
        await pubsub.close()
        await db.close()
