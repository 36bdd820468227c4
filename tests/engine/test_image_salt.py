"""What vLLM caches of images is salted, too: by its processor for the tiny vision model, without an engine."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from config.model_files import resolved
from config.models import load_models
from tests.engine.cases import seeing
from tests.models.pictures import Picture
from tests.support.installations import VISION

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]  # vLLM's own warnings, at import


@pytest.mark.long
async def test_projects_share_nothing_that_is_cached_of_an_image_and_each_finds_its_own(
    tmp_path: Path,
) -> None:
    from vllm.renderers import renderer_from_config

    from workers.engine.vllm.arguments import engine_args
    from workers.engine.vllm.compat.configuration import config_of
    from workers.engine.vllm.rendering import Rendering

    (tmp_path / "models.toml").write_text(VISION)
    model, _ = resolved(load_models(tmp_path / "models.toml").models[0])
    config = config_of(engine_args(model))
    llm = SimpleNamespace(renderer=renderer_from_config(config), model_config=config.model_config)
    rendering = Rendering(cast(Any, llm), {})
    red = seeing(Picture("red", "square"))

    async def rendered(messages: list[dict[str, Any]], salt: str | None) -> Any:
        return await rendering.render(messages, {}, (), salt)

    plain, one, other = [await rendered(red, salt) for salt in (None, "one", "other")]
    again, blue = await rendered(red, "one"), await rendered(seeing(Picture("blue", "triangle")), "one")
    assert list(plain) == list(one) == list(other)
    keys = [prompt.media["mm_hashes"]["image"][0] for prompt in (plain, one, other, blue)]
    assert len(set(keys)) == 4
    assert again.media["mm_hashes"] == one.media["mm_hashes"]
    assert "uuid" not in str(red)
