"""A model of a hub may be pinned to a revision."""

from __future__ import annotations

from dataclasses import replace

import pytest

from config.settings import ConfigError
from tests.engine.cases import demo_model

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]  # vLLM's own warnings, at import


def test_a_revision_pins_the_model_and_its_code() -> None:
    from workers.engine.vllm.arguments import engine_args

    args = engine_args(replace(demo_model(), revision="0123abc"))
    assert (args.revision, args.code_revision) == ("0123abc", "0123abc")
    assert args.tokenizer_revision in (None, "0123abc")  # None: that of the model


def test_a_revision_is_set_once() -> None:
    from workers.engine.vllm.arguments import engine_args

    model = replace(demo_model(), revision="0123abc", engine_args={"revision": "main"})
    with pytest.raises(ConfigError, match=r"'revision' cannot be set here \(revision of the model sets it\)"):
        engine_args(model)
