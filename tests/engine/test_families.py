"""vLLM has every parser that the table of families names, and they read what the demo model writes."""

from __future__ import annotations

import pytest

from config.families import FAMILIES, Family
from tests.engine.cases import demo_model

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]  # vLLM's own warnings, at import


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_vllm_has_the_parsers_of_a_family(family: Family) -> None:
    from vllm.reasoning import ReasoningParserManager
    from vllm.tool_parsers import ToolParserManager

    assert family.tool_parser is None or family.tool_parser in ToolParserManager.list_registered()
    assert family.reasoning_parser is None or family.reasoning_parser in ReasoningParserManager.list_registered()


def test_the_demo_model_gets_the_parsers_of_its_family() -> None:
    model = demo_model()
    assert (model.format, model.tool_parser, model.reasoning_parser) == ("chat", "hermes", "qwen3")
