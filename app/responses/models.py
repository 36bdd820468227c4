"""The model that a request names, and what it can do."""

from __future__ import annotations

from app.access.directory import Directory
from app.protocol.errors import NotFound
from app.protocol.requests.capabilities import Capabilities
from app.protocol.text import shortened
from config.models import ModelCatalog, ServedModel


class PermittedCatalogs:
    """The models and MCP servers that each project may use. To a project the others are not there.

    Without a `directory` nobody is asked for a key, and everybody may use everything.
    """

    def __init__(self, catalog: ModelCatalog, directory: Directory | None) -> None:
        self._catalog = catalog
        self._directory = directory

    async def of(self, project: str | None) -> ModelCatalog:
        """Returns the catalog for callers of this project, or for the operators (None). Raises StoreUnavailable."""
        if self._directory is None or project is None:
            return self._catalog
        row = await self._directory.project(project)
        if row is None:  # It was deleted by hand.
            return self._catalog.restricted(frozenset(), frozenset())
        if row.models is None and row.tool_servers is None:
            return self._catalog
        return self._catalog.restricted(row.models, row.tool_servers)


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
        tools=model.harmony or model.tool_parser is not None,
        reasoning=model.harmony or model.reasoning_parser is not None,
        verbosity=model.verbosity,
        fetches_images=bool(model.engine_args.get("allowed_media_domains")),
        harmony=model.harmony,
    )


def only_model(catalog: ModelCatalog) -> str | None:
    """Returns the name of the served model if there is exactly one: a request may then leave `model` out."""
    served = catalog.served
    return served[0].name if len(served) == 1 else None
