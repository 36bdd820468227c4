"""`longhaul up --upstream`: what it finds at a server, and what it says where that is not enough."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from app.local.workers.upstream import attached
from config.models import Adapter, Upstream, load_models
from config.settings import ConfigError, Settings
from tests.support.token_server import serving


async def found(folder: Path, url: str, *more: Any, **changes: Any) -> Any:
    settings, name = await attached(Settings(**changes), folder, [url], *(more or (None, "org/tokenizer")))
    model = load_models(settings.models).get(name)
    assert model is not None
    return model


async def test_model_and_adapters_come_from_the_server_and_the_key_stays_out_of_the_file(tmp_path: Path) -> None:
    async with serving(adapters=["legal"], api_key="secret") as server:
        model = await found(tmp_path, server.url, upstream_key="secret")
        assert (model.name, model.path) == ("demo", "org/tokenizer")
        assert (model.upstream, model.adapters) == (Upstream((server.url,)), (Adapter("legal", ""),))
        assert "secret" not in (tmp_path / "models.toml").read_text()
        with pytest.raises(ConfigError, match="set LONGHAUL_UPSTREAM_KEY"):
            await found(tmp_path, server.url)


async def test_what_cannot_be_found_is_named(tmp_path: Path) -> None:
    async with serving() as server:
        with pytest.raises(ConfigError, match=r"--model: .* does not serve 'other'"):
            await found(tmp_path, server.url, "other", None)
        with pytest.raises(ConfigError, match=r"/models/demo, which is no folder here; .* --tokenizer"):
            await found(tmp_path, server.url, None, None)
    with pytest.raises(ConfigError, match="does not answer as vLLM does"):
        await found(tmp_path, server.url)
