from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.engine.cases import COUNTED, STEP, Case, SharedEngine, SharedServer, scripted_model
from tests.support.scripted.engine import ANSWER, BEGIN, END
from workers.engine import make_engine


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def shared_engine() -> AsyncIterator[SharedEngine]:
    shared = SharedEngine()
    yield shared
    await shared.stop()


@pytest_asyncio.fixture(loop_scope="package")
async def vllm_case(shared_engine: SharedEngine) -> Case:
    """The real engine that these tests share."""
    return await shared_engine.case()


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def shared_server(shared_engine: SharedEngine) -> AsyncIterator[SharedServer]:
    shared = SharedServer(shared_engine)
    yield shared
    await shared.stop()


@pytest_asyncio.fixture(loop_scope="package")
async def server_case(shared_server: SharedServer) -> Case:
    """The same engine, behind vLLM's HTTP server."""
    return await shared_server.case()


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def scripted_case() -> AsyncIterator[Case]:
    engine = make_engine(scripted_model(tokens_per_second=5000, max_num_seqs=STEP))
    await engine.start()
    yield Case(engine, f"/say {COUNTED}", lambda text: list(text.encode()), (BEGIN, ANSWER, END), 32, {})
    await engine.stop()


@pytest.fixture(params=["scripted", *(pytest.param(name, marks=pytest.mark.vllm) for name in ("vllm", "server"))])
def case(request: pytest.FixtureRequest) -> Case:
    """Each engine in turn."""
    chosen: Case = request.getfixturevalue(f"{request.param}_case")
    return chosen
