"""Models files, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from config.models import ModelCatalog, load_models
from config.settings import ConfigError


def catalog(folder: Path, text: str) -> ModelCatalog:
    (folder / "models.toml").write_text(text)
    return load_models(folder / "models.toml")


NAMED = '[[models]]\nname = "m"\npath = "x"\n'


def check_complaints(folder: Path, wrong: Sequence[tuple[str, str]]) -> None:
    for text, complaint in wrong:
        with pytest.raises(ConfigError) as caught:
            catalog(folder, text)
        message = str(caught.value)
        assert message.startswith(f"LONGHAUL_MODELS: {folder}/models.toml")
        assert complaint in message
        assert "\n" not in message and "hunter2" not in message
