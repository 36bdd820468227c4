"""One installation with the real vLLM for the session, and one without a model for what needs two workers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from openai import OpenAI

from tests.support.longhaul import Longhaul

SCRIPTED = """
[[models]]
name = "scripted"
engine = "scripted"
[models.engine_args]
tokens_per_second = 400.0
"""


@pytest.fixture(scope="session")
def longhaul(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Longhaul]:
    """`longhaul up` with the demo model on the real engine."""
    installation = Longhaul(tmp_path_factory.mktemp("demo") / "home")
    installation.start()
    yield installation
    installation.stop()


@pytest.fixture(scope="session")
def client(longhaul: Longhaul) -> Iterator[OpenAI]:
    with longhaul.client() as opened:
        yield opened


@pytest.fixture(scope="session")
def scripted_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("models") / "models.toml"
    file.write_text(SCRIPTED)
    return file


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, scripted_models: Path) -> Iterator[Longhaul]:
    """`longhaul up --workers 2` on the scripted engine."""
    installation = Longhaul(
        tmp_path_factory.mktemp("pair") / "home", scripted_models, workers=2, LONGHAUL_LEASE_SECONDS="3"
    )
    installation.start()
    yield installation
    installation.stop()
