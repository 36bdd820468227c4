"""Clients run against the scripted engine, and against vLLM, too, where a test is marked ON_BOTH_ENGINES."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from openai import AsyncOpenAI, OpenAI

from tests.clients.target import SCRIPTED, Target, demo_script
from tests.support.longhaul import Longhaul

# What these clients would fetch or send elsewhere at import and at run time.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
os.environ["OPENAI_AGENTS_DISABLE_TRACING"] = "1"
os.environ["LANGSMITH_TRACING"] = "false"

_TALKS = Path(__file__).resolve().parent.parent.parent / "config" / "demo" / "script.json"


@pytest.fixture(scope="session")
def target(request: pytest.FixtureRequest) -> Target:
    if getattr(request, "param", "scripted") == "scripted":
        target: Target = request.getfixturevalue("scripted_target")
        return target
    talks = {talk["name"]: talk["messages"] for talk in json.loads(_TALKS.read_text(encoding="utf-8"))}
    return Target(request.getfixturevalue("longhaul"), "longhaul-demo", demo_script(talks))


@pytest.fixture(scope="session")
def scripted_target(scripted: Longhaul) -> Target:
    """For what only the scripted engine can be made to say."""
    return Target(scripted, "scripted", SCRIPTED)


@pytest.fixture(scope="module")
def litellm_connections() -> Iterator[None]:
    """Closes what LiteLLM keeps open for its next synchronous requests: its own cleanup closes asynchronous clients."""
    import litellm
    from litellm.llms.custom_httpx.http_handler import HTTPHandler

    yield
    kept = [*litellm.in_memory_llm_clients_cache.cache_dict.values(), litellm.module_level_client]
    for each in kept:
        if isinstance(each, HTTPHandler | OpenAI):
            each.close()


@pytest.fixture
def client(target: Target) -> Iterator[OpenAI]:
    with target.installation.client() as opened:
        yield opened


@pytest.fixture
async def async_client(target: Target) -> AsyncIterator[AsyncOpenAI]:
    async with target.installation.async_client() as opened:
        yield opened
