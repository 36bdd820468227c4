"""The scripted engine: what it adds to the contract."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from config.settings import ConfigError
from tests.engine.cases import Case, scripted_model
from tests.support.scripted.engine import END
from tests.support.waiting import until
from workers.engine import make_engine


def case_of(**engine_args: Any) -> Case:
    engine = make_engine(scripted_model(**engine_args))
    return Case(engine, "/count 60", lambda text: list(text.encode()), (END,), 32, {})


@pytest.fixture
async def case() -> AsyncIterator[Case]:
    case = case_of()
    await case.engine.start()
    yield case
    await case.engine.stop()


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
