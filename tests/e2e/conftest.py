"""A client of the session's shared installation, and an installation with two workers on the scripted engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from openai import OpenAI

from tests.support.installations import running
from tests.support.longhaul import Longhaul
from tests.support.services import open_folder

SCRIPTED = """
[[models]]
name = "scripted"
engine = "tests.support.scripted:ScriptedEngine"
[models.engine_args]
tokens_per_second = 400.0
max_num_seqs = 40
"""


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
def pair(scripted_models: Path) -> Iterator[Longhaul]:
    """`longhaul up --workers 2` on the scripted engine."""
    with open_folder() as folder, running(Longhaul(folder / "home", scripted_models, workers=2)) as installation:
        yield installation
