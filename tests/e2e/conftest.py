"""A client of the session's shared installation, and installations that files share (tests/support/sharing.py)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from openai import OpenAI

from tests.e2e.acceptance.installed import SCRIPTED
from tests.support.installations import running
from tests.support.longhaul import Longhaul
from tests.support.services import open_folder

FEW_SLOTS = 4


@pytest.fixture(scope="session")
def client(longhaul: Longhaul) -> Iterator[OpenAI]:
    with longhaul.client() as opened:
        yield opened


@pytest.fixture(scope="session")
def scripted_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("models") / "models.toml"
    file.write_text(SCRIPTED)
    return file


@pytest.fixture(scope="package")
def pair(scripted_models: Path) -> Iterator[Longhaul]:
    """`longhaul up --workers 2` on the scripted engine."""
    with open_folder() as folder, running(Longhaul(folder / "home", scripted_models, workers=2)) as installation:
        yield installation


@pytest.fixture(scope="package")
def guarded() -> Iterator[Longhaul]:
    """`LONGHAUL_AUTH=keys longhaul up --workers 2` on the scripted engine, with FEW_SLOTS in each."""
    with open_folder() as folder:
        models = folder / "models.toml"
        models.write_text(SCRIPTED.replace("max_num_seqs = 40", f"max_num_seqs = {FEW_SLOTS}"))
        with running(Longhaul(folder / "home", models, workers=2, LONGHAUL_AUTH="keys")) as installation:
            yield installation
