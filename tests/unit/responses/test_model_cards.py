"""What the list of models says of each, in the plain form and in the form of Codex."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.api.docs import schemas
from app.responses.models.cards import card_of
from app.responses.models.codex import codex_model, context_limits
from config.models import ServedModel
from config.tools import McpServer
from tests.support.api import served

PLAIN = served()
REASONING = replace(PLAIN, reasoning_parser="qwen3", tool_parser="hermes", images=True, verbosity=True)
GPT_OSS = replace(PLAIN, format="harmony")
PYTHON = McpServer(label="python", kind="python", url="http://127.0.0.1:1/mcp")


def test_a_plain_model_takes_text_and_neither_calls_nor_reasons() -> None:
    body = card_of(PLAIN, [PYTHON]).as_object(7)
    schemas.Model.model_validate(body)
    assert body["architecture"] == {"input_modalities": ["text"], "output_modalities": ["text"]}
    assert (body["reasoning_efforts"], body["tool_types"], body["context_length"]) == ([], [], None)
    assert {"tools", "reasoning"}.isdisjoint(body["supported_parameters"])


def test_a_capable_model_says_so() -> None:
    body = card_of(REASONING, []).as_object(7)
    assert body["architecture"]["input_modalities"] == ["text", "image"]
    assert body["reasoning_efforts"] == ["none", "minimal", "low", "medium", "high", "xhigh", "max"]
    assert {"tools", "reasoning", "verbosity"} <= set(body["supported_parameters"])
    assert "custom" in body["tool_types"]


SWITCH = {"none": "none", "minimal": "none", "low": "medium", "medium": "medium", "high": "medium", "max": "medium"}


@pytest.mark.parametrize(
    ("efforts", "listed", "default"),
    [
        (SWITCH, ["none", "medium"], "medium"),
        ({"low": "low", "high": "high"}, ["low", "high"], "low"),
        (dict.fromkeys(SWITCH), [], None),
    ],
)
def test_a_model_lists_the_efforts_that_it_heeds(
    efforts: dict[str, str | None], listed: list[str], default: str | None
) -> None:
    card = card_of(replace(REASONING, efforts=efforts), [])
    body, codex = card.as_object(7), codex_model(card, 0)
    assert (body["reasoning_efforts"], "reasoning" in body["supported_parameters"]) == (listed, True)
    assert [level["effort"] for level in codex["supported_reasoning_levels"]] == listed
    assert (codex["default_reasoning_level"], codex["supports_reasoning_summaries"]) == (default, True)


def test_a_hosted_tool_is_listed_if_a_server_runs_it() -> None:
    assert {"code_interpreter", "mcp", "web_search"}.isdisjoint(card_of(GPT_OSS, []).tool_types)
    types = card_of(GPT_OSS, [PYTHON]).tool_types
    assert {"code_interpreter", "mcp"} <= set(types)
    assert "web_search" not in types


def test_a_model_whose_files_nobody_has_read_may_do_everything() -> None:
    body = card_of(replace(PLAIN, format="auto", tool_parser="auto", reasoning_parser="auto"), []).as_object(7)
    assert body["reasoning_efforts"] and "custom" in body["tool_types"]


CODEX_0_169 = {
    "slug",
    "display_name",
    "supported_reasoning_levels",
    "shell_type",
    "visibility",
    "supported_in_api",
    "priority",
    "base_instructions",
    "support_verbosity",
    "truncation_policy",
    "experimental_supported_tools",
}
"""The fields without which codex-cli 0.169 refuses the whole list; each was left out once."""


@pytest.mark.parametrize("model", [PLAIN, REASONING, GPT_OSS])
def test_an_entry_for_codex_has_all_that_codex_needs(model: ServedModel) -> None:
    entry = codex_model(card_of(replace(model, context_length=4096), []), 3)
    assert entry.keys() >= CODEX_0_169 | {"supports_reasoning_summaries", "supports_parallel_tool_calls"}
    assert (entry["context_window"], entry["priority"]) == (4096, 3)
    assert entry["truncation_policy"] == {"mode": "tokens", "limit": 256}
    assert entry["base_instructions"]


@pytest.mark.parametrize(
    ("length", "compacted_at", "output", "percent"),
    [(16, 11, 1, 68), (32768, 22528, 2048, 68), (131072, 90112, 8192, 68), (1_000_000, 950_000, 10_000, 95)],
)
def test_codex_compacts_while_five_outputs_fit(length: int, compacted_at: int, output: int, percent: int) -> None:
    limits = context_limits(length)
    assert (limits["context_window"], limits["auto_compact_token_limit"]) == (length, compacted_at)
    assert limits["truncation_policy"] == {"mode": "tokens", "limit": output}
    assert limits["effective_context_window_percent"] == percent


def test_codex_is_told_no_limit_of_a_context_that_nobody_knows() -> None:
    limits = context_limits(None)
    assert limits == {"context_window": None, "truncation_policy": {"mode": "tokens", "limit": 10_000}}


def test_codex_learns_whether_a_model_calls_and_reasons() -> None:
    plain, capable, gpt_oss = (codex_model(card_of(model, []), 0) for model in (PLAIN, REASONING, GPT_OSS))
    assert (plain["shell_type"], plain["apply_patch_tool_type"]) == ("disabled", None)
    assert (capable["shell_type"], capable["apply_patch_tool_type"]) == ("default", "freeform")
    assert [level["effort"] for level in gpt_oss["supported_reasoning_levels"]] == ["low", "medium", "high"]
    assert [level["effort"] for level in capable["supported_reasoning_levels"]] == ["none", "low", "medium", "high"]
    assert (plain["default_reasoning_level"], plain["supported_reasoning_levels"]) == (None, [])
