"""To a project, models and MCP servers that are not permitted are not there."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from app.protocol.errors import NotFound
from app.responses.models.catalog import PermittedCatalogs, only_model, served_model
from app.store.tenants.projects import EVERYTHING, ProjectRow
from config.models import Adapter, ModelCatalog
from config.tools import McpServer
from tests.support.api import served

BASE = replace(served("base"), adapters=(Adapter("tuned", "x"),))
CATALOG = ModelCatalog(
    (BASE, served("other")), (McpServer("python", "python", "http://x"), McpServer("docs", "mcp", "http://y"))
)


class Projects:
    """A directory that knows one project."""

    def __init__(self, models: frozenset[str], tool_servers: frozenset[str]) -> None:
        self.row = ProjectRow("proj_a", "a", models, tool_servers, datetime(2026, 11, 1, tzinfo=UTC), None)

    async def project(self, project_id: str) -> ProjectRow | None:
        return self.row if project_id == self.row.id else None


async def catalog_of(project: str | None, models: Any = EVERYTHING, tool_servers: Any = EVERYTHING) -> ModelCatalog:
    return await PermittedCatalogs(CATALOG, Projects(models, tool_servers)).of(project)  # type: ignore[arg-type]


def names(catalog: ModelCatalog) -> list[str]:
    return [model.name for model in catalog.served]


async def test_a_project_without_rules_and_the_operators_may_use_everything() -> None:
    assert await catalog_of("proj_a") is CATALOG
    assert await catalog_of(None, frozenset(), frozenset()) is CATALOG


async def test_without_keys_nothing_is_restricted() -> None:
    assert await PermittedCatalogs(CATALOG, None).of("proj_a") is CATALOG


@pytest.mark.parametrize(("models", "left"), [({"tuned"}, ["tuned"]), ({"base", "none"}, ["base"]), (set(), [])])
async def test_a_model_and_its_adapters_are_permitted_each_by_its_name(models: set[str], left: list[str]) -> None:
    catalog = await catalog_of("proj_a", frozenset(models))
    assert names(catalog) == left
    assert catalog.tools == CATALOG.tools
    with pytest.raises(NotFound):
        served_model(catalog, "other")


async def test_a_single_permitted_model_is_the_only_one() -> None:
    assert only_model(CATALOG) is None
    assert only_model(await catalog_of("proj_a", frozenset({"other"}))) == "other"


async def test_servers_are_permitted_by_their_labels() -> None:
    catalog = await catalog_of("proj_a", tool_servers=frozenset({"docs"}))
    assert [server.label for server in catalog.tools] == ["docs"]
    assert names(catalog) == ["base", "tuned", "other"]


async def test_of_everything_single_names_are_taken_away() -> None:
    catalog = await catalog_of("proj_a", frozenset({"*", "!tuned", "!none"}), frozenset({"*", "!docs"}))
    assert names(catalog) == ["base", "other"]
    assert [server.label for server in catalog.tools] == ["python"]


async def test_a_project_that_is_gone_may_use_nothing() -> None:
    catalog = await catalog_of("proj_gone")
    assert (names(catalog), catalog.tools) == ([], ())
