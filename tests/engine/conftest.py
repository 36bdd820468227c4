from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from config.settings import Settings
from tests.engine.cases import COUNTED, Case, Stepping, demo_model, scripted_model
from tests.support.scripted.engine import ANSWER, BEGIN, END
from workers.engine import make_engine
from workers.worker import with_statistics


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def vllm_case() -> AsyncIterator[Case]:
    """The real engine that these tests share. It keeps statistics, as where a worker serves metrics."""
    from tokenizers import Tokenizer  # comes with vLLM

    model = with_statistics(demo_model(), Settings(metrics_port=9400))
    engine = await asyncio.to_thread(make_engine, model)
    await engine.start()
    tokenizer = Tokenizer.from_file(f"{model.path}/tokenizer.json")
    special = tuple(tokenizer.token_to_id(token) for token in ("<|im_start|>", "<|im_end|>"))

    def encode(text: str) -> list[int]:
        tokens: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
        return tokens

    yield Case(engine, "Count from 1 to 60.", encode, special, 32, model.chat_template_args)
    await engine.stop()


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def scripted_case() -> AsyncIterator[Case]:
    engine = make_engine(scripted_model(tokens_per_second=5000))
    await engine.start()
    yield Case(engine, f"/say {COUNTED}", lambda text: list(text.encode()), (BEGIN, ANSWER, END), 32, {})
    await engine.stop()


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def stepping_engine(vllm_case: Case) -> AsyncIterator[Stepping]:
    made = Stepping(vllm_case)
    yield made
    await made.stop()


@pytest_asyncio.fixture(loop_scope="package")
async def stepping(stepping_engine: Stepping) -> Case:
    """A second real engine, which reads STEP tokens a step, and which a test may kill."""
    return await stepping_engine.case()


@pytest.fixture(scope="package", params=["scripted", pytest.param("vllm", marks=pytest.mark.vllm)])
def case(request: pytest.FixtureRequest) -> Case:
    """Each engine in turn."""
    chosen: Case = request.getfixturevalue(f"{request.param}_case")
    return chosen
