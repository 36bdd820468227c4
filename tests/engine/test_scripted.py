"""The scripted engine: what it adds to the contract."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from config.settings import ConfigError
from tests.engine.cases import Case, scripted_model
from tests.support.scripted.engine import ANSWER, END
from tests.support.waiting import until
from workers.engine import make_engine
from workers.engine.base import EngineDead, EngineError


def case_of(**engine_args: Any) -> Case:
    engine = make_engine(scripted_model(**engine_args))
    return Case(engine, "/count 60", lambda text: list(text.encode()), (END,), 32, {})


@pytest.fixture
async def case() -> AsyncIterator[Case]:
    case = case_of()
    await case.engine.start()
    yield case
    await case.engine.stop()


REPLIES = [
    ("Hello!", "You said: Hello!"),
    ("/say good morning", "good morning"),
    ("/say ", ""),
    ("/say", ""),
    ("/count 5", "1 2 3 4 5"),
    ("/count 0", ""),
    ("/count five", "You said: /count five"),
    ("/repeat 3 ab ", "ab ab ab "),
    ("/repeat x", "You said: /repeat x"),
    ("/unknown 3", "You said: /unknown 3"),
    ("Grüße 👋", "You said: Grüße 👋"),
    ("user\nassistant\n", "You said: user\nassistant\n"),
]


async def test_the_last_user_message_decides_the_reply(case: Case) -> None:
    for asked, reply in REPLIES:
        turns = [
            {"role": "user", "content": "/say earlier"},
            {"role": "assistant", "content": "earlier"},
            {"role": "user", "content": asked},
            {"role": "assistant", "content": "/say not me"},
        ]
        assert case.text(await case.tokens(await case.engine.render(turns, {}))) == reply, asked


async def test_a_scripted_failure_comes_after_its_tokens_and_spares_other_requests(case: Case) -> None:
    stream = case.stream(await case.prompt("/fail 9"))
    tokens = [token for _ in range(9) for token in (await anext(stream)).token_ids]
    assert len(tokens) == 9
    with pytest.raises(EngineError):
        await anext(stream)
    assert case.engine.running == 0
    await case.engine.check()


async def test_a_scripted_failure_repeats_when_its_tokens_are_in_the_prompt(case: Case) -> None:
    prompt = await case.prompt("/fail 3")
    with pytest.raises(EngineError, match="the script fails this request"):
        await case.deltas((*prompt, *b"1 2"))


async def test_a_scripted_death_ends_every_stream(case: Case) -> None:
    other = case.stream(await case.prompt("/hang 2"))
    await anext(other)
    await anext(other)
    hanging = asyncio.ensure_future(anext(other))
    stream = case.stream(await case.prompt("/die 1"))
    assert (await anext(stream)).token_ids
    with pytest.raises(EngineDead, match="died"):
        await anext(stream)
    with pytest.raises(EngineDead):
        await hanging
    with pytest.raises(EngineDead):
        await case.engine.check()
    with pytest.raises(EngineDead):
        await case.prompt()
    assert case.engine.running == 0


async def test_a_scripted_hang_lasts_until_the_abort(case: Case) -> None:
    stream = case.stream(await case.prompt("/hang 1"))
    await anext(stream)
    hanging = asyncio.ensure_future(anext(stream))
    await case.tokens(await case.prompt())  # time for more tokens
    assert not hanging.done()
    hanging.cancel()
    with pytest.raises(asyncio.CancelledError):
        await hanging
    await until(lambda: case.engine.running == 0)


async def test_streams_beyond_the_limit_wait_for_a_slot() -> None:
    case = case_of(max_num_seqs=1)
    await case.engine.start()
    first = case.stream(await case.prompt("/hang 1"))
    await anext(first)
    second = asyncio.create_task(case.tokens(await case.prompt("/say 2")))
    await until(lambda: case.engine.running == 2)
    assert not second.done()
    await first.aclose()
    assert case.text(await second) == "2"


async def test_an_engine_that_was_not_started_serves_nothing() -> None:
    case = case_of()
    with pytest.raises(EngineDead, match="not running"):
        await case.engine.check()
    with pytest.raises(EngineDead, match="not running"):
        await case.deltas((ANSWER,))


@pytest.mark.parametrize(
    ("engine_args", "name"), [({"tokens_per_secnd": 1}, "tokens_per_secnd"), ({"max_num_seqs": 0}, "max_num_seqs")]
)
def test_bad_engine_args_are_named_in_one_line(engine_args: dict[str, Any], name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_engine(scripted_model(**engine_args))
    assert str(caught.value).startswith(f"model 'scripted': engine_args: {name}: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("engine", ["no.such.module:Engine", "tests.support.scripted:NoEngine"])
def test_an_engine_that_cannot_be_imported_is_named_in_one_line(engine: str) -> None:
    with pytest.raises(ConfigError, match=rf"^model 'scripted': the engine {engine} cannot be imported .*$"):
        make_engine(replace(scripted_model(), engine=engine))
