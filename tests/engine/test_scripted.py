"""The scripted engine: what it adds to the contract."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest

from app.protocol.events.deltas import FinishReason
from config.settings import ConfigError
from tests.engine.cases import Case, scripted_model
from tests.support.scripted import engine as scripted
from tests.support.scripted.engine import ANSWER, END, ScriptedEngine
from tests.support.waiting import until
from workers.engine import make_engine
from workers.engine.base import EngineDead, EngineError, PromptTooLong, Sampling


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


@pytest.mark.parametrize(("asked", "reply"), REPLIES)
async def test_the_last_user_message_decides_the_reply(case: Case, asked: str, reply: str) -> None:
    turns = [
        {"role": "user", "content": "/say earlier"},
        {"role": "assistant", "content": "earlier"},
        {"role": "user", "content": asked},
        {"role": "assistant", "content": "/say not me"},
    ]
    assert case.text(await case.tokens(await case.engine.render(turns, {}))) == reply


async def test_a_long_prompt_is_read_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = set()

    def noting(function: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*args: Any) -> Any:
            threads.add(threading.current_thread())
            return function(*args)

        return noted

    for name in ("tokens_of", "_plan"):
        monkeypatch.setattr(scripted, name, noting(getattr(scripted, name)))
    engine = make_engine(scripted_model(context_length=None))
    case = Case(engine, "", lambda text: list(text.encode()), (END,), 32, {})
    await case.engine.start()
    long = [{"role": "assistant", "content": "x" * scripted.LONG}, {"role": "user", "content": "/say yes"}]
    assert case.text(await case.tokens(await case.engine.render(long, {}))) == "yes"
    assert threads
    assert threading.current_thread() not in threads


async def test_a_prompt_that_is_too_long_is_counted_and_never_made(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Grüße"}]
    exact = len(await case.engine.render(asked, {"enable_thinking": True}))
    length = case.engine.context_length
    long = [*asked, {"role": "user", "content": "x" * length}]
    monkeypatch.setattr("tests.support.scripted.engine.tokens_of", None)
    with pytest.raises(PromptTooLong) as caught:
        await case.engine.render(long, {"enable_thinking": True})
    assert caught.value.tokens == exact + length + len("user\n") + 2


async def test_a_prompt_may_have_several_bytes_to_a_token() -> None:
    one, three = case_of(), case_of(bytes_per_token=3)
    asked = "/say Grüße" + " 👋" * 99
    for case in (one, three):
        await case.engine.start()
    assert case.text(await case.tokens(await case.prompt(asked))) == asked.removeprefix("/say ")
    assert len(await three.prompt(asked)) == 3 + -(-(len(await one.prompt(asked)) - 3) // 3)
    long = [{"role": "user", "content": "x" * 3 * three.engine.context_length}]
    with pytest.raises(PromptTooLong) as caught:
        await three.engine.render(long, {})
    assert caught.value.tokens == 3 + -(-(len("user\n") + 3 * three.engine.context_length) // 3)


async def test_a_prompt_without_a_user_message_gets_a_reply(case: Case) -> None:
    prompt = await case.engine.render([{"role": "system", "content": "Be kind."}], {})
    assert case.text(await case.tokens(prompt)) == "You said: "


async def test_only_the_end_of_the_prompt_asks_for_an_answer(case: Case) -> None:
    prompt = await case.prompt("/say ok")
    assert prompt.index(ANSWER) == len(prompt) - 1
    with pytest.raises(EngineError, match="no answer"):
        await case.deltas(prompt[:-1])


async def test_deltas_have_the_configured_size() -> None:
    case = case_of(tokens_per_delta=4)
    await case.engine.start()
    deltas = await case.deltas(await case.prompt("/say 123456789"))
    assert [len(delta.token_ids) for delta in deltas] == [4, 4, 2]


async def test_min_tokens_delays_the_end(case: Case) -> None:
    prompt = await case.prompt("/say abc")
    tokens = await case.tokens(prompt, Sampling(extra={"min_tokens": 7}))
    assert case.text(tokens) == "abcabca"
    assert tokens[-1] == END


async def test_ignore_eos_continues_an_empty_reply(case: Case) -> None:
    tokens = await case.tokens(await case.prompt("/say "), Sampling(max_tokens=5, extra={"ignore_eos": True}))
    assert len(tokens) == 5


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


async def test_max_tokens_can_end_a_request_before_its_failure(case: Case) -> None:
    deltas = await case.deltas(await case.prompt("/fail 9"), Sampling(max_tokens=8))
    assert deltas[-1].finish_reason is FinishReason.LENGTH


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


async def test_a_waiting_stream_that_is_cancelled_leaves_the_queue() -> None:
    case = case_of(max_num_seqs=1)
    await case.engine.start()
    first = case.stream(await case.prompt("/hang 1"))
    await anext(first)
    second = asyncio.create_task(case.tokens(await case.prompt("/say 2")))
    await until(lambda: case.engine.running == 2)
    second.cancel()
    await until(lambda: case.engine.running == 1)
    await first.aclose()
    assert case.text(await case.tokens(await case.prompt("/say 3"))) == "3"


async def test_stopping_ends_paced_streams() -> None:
    case = case_of(tokens_per_second=0.01)
    await case.engine.start()
    stream = asyncio.create_task(case.tokens(await case.prompt()))
    await until(lambda: case.engine.running == 1)
    await case.engine.stop()
    await case.engine.stop()
    with pytest.raises(EngineDead, match="stopped"):
        await stream


async def test_an_engine_that_was_not_started_serves_nothing() -> None:
    case = case_of()
    with pytest.raises(EngineDead, match="not running"):
        await case.engine.check()
    with pytest.raises(EngineDead, match="not running"):
        await case.deltas((ANSWER,))


@pytest.mark.parametrize(
    ("engine_args", "name"),
    [({"tokens_per_secnd": 1}, "tokens_per_secnd"), ({"max_num_seqs": 0}, "max_num_seqs")],
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


def test_the_default_context_is_large() -> None:
    engine = make_engine(scripted_model(context_length=None))
    assert isinstance(engine, ScriptedEngine)
    assert engine.context_length == 32768
