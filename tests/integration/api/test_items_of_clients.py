"""Items that clients run themselves, through the API: local tools' and a server's searches; and efforts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.store.database import Database
from config.models import ModelCatalog
from tests.support.api import MODEL, Api, served, serving, settings_for
from tests.support.refusals import FUNCTION, SHELL_CALL, SHELL_OUTPUT

Json = dict[str, Any]

CATALOG = ModelCatalog(
    (replace(served(), tool_parser="hermes", reasoning_parser="qwen3", efforts={"none": "none", "low": "low"}),)
)


@pytest.fixture
async def api(services: Any, db: Database, tmp_path: Path) -> AsyncIterator[Api]:
    async with serving(settings_for(services, tmp_path), CATALOG) as running:
        yield running


async def input_items(api: Api, response_id: str) -> list[Json]:
    page: Json = (await api.client.get(f"/v1/responses/{response_id}/input_items?order=asc")).json()
    items: list[Json] = page["data"]
    return items


async def test_an_effort_that_the_model_lacks_is_refused_under_the_name_that_was_sent(api: Api) -> None:
    assert (await api.post(reasoning_effort="low", background=True)).json()["reasoning"]["effort"] == "low"
    for sent, field in (
        ({"reasoning_effort": "high"}, "reasoning_effort"),
        ({"reasoning": {"effort": "high"}}, "reasoning.effort"),
    ):
        error = (await api.post(**sent)).json()["error"]
        assert error["param"] == field
        assert f"'{field}'" in error["message"]


async def test_a_conversation_holds_the_calls_of_local_tools_and_searches_of_the_server(api: Api) -> None:
    own = {"execution": "server", "call_id": None}
    late = {**FUNCTION, "name": "late", "defer_loading": True}
    items = [
        {"type": "tool_search_call", "id": "tsc_1", "arguments": {"query": "x"}, **own},
        {"type": "tool_search_output", "id": "tso_1", "tools": [late], **own},
        SHELL_CALL,
    ]
    made = (await api.client.post("/v1/conversations", json={"items": items})).json()
    tools = [{"type": "shell"}, {"type": "tool_search"}, late]
    asked = {"conversation": made["id"], "tools": tools, "background": True}
    answer = await api.post(**asked, input=[SHELL_OUTPUT])
    assert answer.status_code == 200, answer.text
    assert [tool["type"] for tool in answer.json()["tools"]] == ["shell", "tool_search", "function"]
    assert (await input_items(api, answer.json()["id"]))[0]["output"] == SHELL_OUTPUT["output"]
    error = (await api.post(**asked, input=[{**SHELL_OUTPUT, "call_id": "other"}])).json()["error"]
    assert error["param"] == "input[0].call_id"
    card = (await api.client.get(f"/v1/models/{MODEL}")).json()
    assert {"shell", "apply_patch", "local_shell", "tool_search"} <= set(card["tool_types"])
