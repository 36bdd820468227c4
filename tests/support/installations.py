"""Installations that all tests of a run share: fixtures that `tests/conftest.py` exports."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.longhaul import Longhaul
from tests.support.services import open_folder

SCRIPTED = """
[[models]]
name = "scripted"
engine = "tests.support.scripted:ScriptedEngine"
context_length = 400000
reasoning_parser = "qwen3"
tool_parser = "hermes"
[models.engine_args]
strict_template = true
"""
"""Its template is strict, as those of many models: clients do not know."""
SMALL = SCRIPTED.replace("400000", "32768") + "bytes_per_token = 3\n"
"""The context of many local models, which takes as much of it for code as their tokenizers do."""

VISION_MODEL = "tiny-vision"
VISION = f"""
[[models]]
name = "{VISION_MODEL}"
path = "{Path(__file__).parents[1] / "models" / "vision"}"
context_length = 1024
images = true
default_sampling = {{ temperature = 0.0 }}
[models.engine_args]
dtype = "float32"
enforce_eager = true
block_size = 32
kv_cache_memory_bytes = 134217728
max_num_seqs = 32
"""


@contextmanager
def running(installation: Longhaul) -> Iterator[Longhaul]:
    """Starts the installation, and stops it at the end of the block."""
    try:
        installation.start()
        yield installation
    finally:
        installation.stop()


@pytest.fixture(scope="session")
def longhaul() -> Iterator[Longhaul]:
    """`longhaul up` with the demo model on the real engine."""
    with open_folder() as folder, running(Longhaul(folder / "home")) as installation:
        yield installation


@pytest.fixture(scope="session")
def scripted() -> Iterator[Longhaul]:
    """`longhaul up` with a scripted chat model that reasons and calls tools."""
    with scripted_with() as installation:
        yield installation


@contextmanager
def scripted_with(models_file: str = SCRIPTED, **environment: str) -> Iterator[Longhaul]:
    """The same in another environment, or with other models."""
    with open_folder() as folder:
        models = folder / "models.toml"
        models.write_text(models_file)
        with running(Longhaul(folder / "home", models, **environment)) as installation:
            yield installation
