"""The model that a request names, and what it can do."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from app.access.directory import Directory
from app.protocol.errors import NotFound
from app.protocol.limits import SERVICE_TIERS
from app.protocol.requests.capabilities import Capabilities
from app.protocol.text import shortened
from app.store.tenants.projects import EVERYTHING, allowed
from config.models import AUTO, ModelCatalog, ServedModel
from config.models_file import ModelsFile
from config.shaping.conversations import TOOLS_SHOWN

log = logging.getLogger("longhaul.models")


@dataclass(frozen=True, slots=True)
class Terms:
    """The terms of one project's responses."""

    top_tier: str = SERVICE_TIERS[-1]
    is_limited: bool = False
    """Whether its responses reserve of limits."""
    reserves_tokens: bool = False
    """Whether they reserve tokens, too, and end at them."""

    def tier(self, asked: str) -> str:
        """Returns the service tier that a response gets: the one asked for, but none above the project's best."""
        return min(asked, self.top_tier, key=SERVICE_TIERS.index)


_UNLIMITED = Terms()


class PermittedCatalogs:
    """The models and MCP servers that each project may use. To a project the others are not there.

    `whole` has all of them: what the models file says now. Without a `directory` nobody is asked for a key, and
    everybody may use everything.
    """

    def __init__(self, whole: ModelCatalog, directory: Directory | None) -> None:
        self.whole = whole
        self._directory = directory

    async def follow(self, file: ModelsFile) -> None:
        """Keeps `whole` as the models file is, until cancelled."""
        async for catalog in file.changes(log.error):
            self.whole = catalog
            names = ", ".join(one.name for one in catalog.served)
            log.info("the models file has changed; the models are now %s", names)

    async def of(self, project: str | None) -> ModelCatalog:
        """Returns the catalog for callers of this project, or for the operators (None). Raises StoreUnavailable."""
        if self._directory is None or project is None:
            return self.whole
        row = await self._directory.project(project)
        if row is None:  # It was deleted by hand.
            return self.whole.restricted(frozenset(), frozenset())
        if row.models == row.tool_servers == EVERYTHING:
            return self.whole
        models = allowed(row.models, (served.name for served in self.whole.served))
        return self.whole.restricted(models, allowed(row.tool_servers, (server.label for server in self.whole.tools)))

    async def is_limited(self, project: str) -> bool:
        """Returns whether what the project stores is limited, or what its responses use. Raises StoreUnavailable."""
        return (await self.terms(project)).is_limited

    async def terms(self, project: str) -> Terms:
        """Returns the terms for responses of this project. Raises StoreUnavailable."""
        if self._directory is None or (row := await self._directory.project(project)) is None:
            return _UNLIMITED
        return Terms(row.top_tier, row.is_limited, row.reserves_tokens)


def served_model(catalog: ModelCatalog, name: str) -> ServedModel:
    """Returns the served model of that name. Raises NotFound.

    OpenAI answers an unknown model in `/v1/responses` with 404 since September 2026 (litellm#39457).
    """
    if (model := catalog.get(name)) is None:
        message = f"The model '{shortened(name)}' does not exist. 'GET /v1/models' lists the models."
        raise NotFound(message, "model", "model_not_found")
    return model


def capabilities_of(model: ServedModel) -> Capabilities:
    """Returns what requests may ask of the model."""
    return Capabilities(
        images=model.images,
        tools=model.harmony or (model.tool_parser is not None and TOOLS_SHOWN not in model.refusals),
        no_tools=model.refusals.get(TOOLS_SHOWN),
        reasoning=model.harmony or model.reasoning_parser is not None,
        verbosity=model.verbosity,
        fetches_images=bool(model.engine_args.get("allowed_media_domains")),
        efforts=model.efforts,
        harmony=None if model.format == AUTO else model.harmony,
    )


def only_model(catalog: ModelCatalog) -> str | None:
    """Returns the name of the served model if there is exactly one: a request may then leave `model` out."""
    served = catalog.served
    return served[0].name if len(served) == 1 else None
