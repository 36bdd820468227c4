"""Clients run against the scripted engine, and against vLLM, too, where a test is marked ON_BOTH_ENGINES."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache

import pytest
from openai import OpenAI

from tests.clients.target import SCRIPTED, Target, demo_script
from tests.support.longhaul import Longhaul
from tests.support.node_clients import NodeClient, node_client

# What these clients would fetch or send elsewhere at import and at run time.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
os.environ["OPENAI_AGENTS_DISABLE_TRACING"] = "1"
os.environ["LANGSMITH_TRACING"] = "false"


@pytest.fixture(scope="session")
def target(request: pytest.FixtureRequest) -> Target:
    if getattr(request, "param", "scripted") == "scripted":
        target: Target = request.getfixturevalue("scripted_target")
        return target
    return Target(request.getfixturevalue("longhaul"), "longhaul-demo", demo_script())


@pytest.fixture(scope="session")
def scripted_target(scripted: Longhaul) -> Target:
    """For what only the scripted engine can be made to say."""
    return Target(scripted, "scripted", SCRIPTED)


@pytest.fixture
def client(target: Target) -> Iterator[OpenAI]:
    with target.installation.client() as opened:
        yield opened


@pytest.fixture(scope="session")
def node() -> Iterator[Callable[[str], NodeClient]]:
    """Returns the process of a client for Node, which is started once."""
    with ExitStack() as processes:
        yield cache(lambda client: processes.enter_context(node_client(f"{client}.mjs")))
