"""What `GET /v1/models` says of a served model, under the names that other servers use.

`max_model_len` and `parent` are vLLM's; `context_length`, `architecture` and `supported_parameters` are OpenRouter's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

from app.protocol.hosted_kinds import KIND_OF_TOOL
from app.protocol.requests.bodies.text_config import Effort
from app.protocol.requests.capabilities import HARMONY_EFFORTS
from app.protocol.requests.tools.any_tool import TOOL_TYPES
from app.protocol.types import Json
from app.responses.models.catalog import capabilities_of
from config.models import ServedModel
from config.tools import McpServer, server_of_kind


@dataclass(frozen=True, slots=True)
class ModelCard:
    """One served model, and what it can do on this server."""

    model: ServedModel
    """As completed by its workers (`RegisteredModels`)."""
    tool_types: tuple[str, ...]
    """The types of `tools` that a request may have."""

    @property
    def input_modalities(self) -> list[str]:
        return ["text", "image"] if self.model.images else ["text"]

    @property
    def efforts(self) -> tuple[str, ...]:
        """The values of `reasoning.effort` that differ; none if the model does not reason, or heeds none of them.

        All, while no worker has said which of them the model heeds.
        """
        can = capabilities_of(self.model)
        if not can.reasoning:
            return ()
        if self.model.harmony:
            return HARMONY_EFFORTS
        return tuple(effort for effort in get_args(Effort) if can.efforts is None or effort in can.efforts.values())

    def as_object(self, created: int) -> Json:
        """Returns the model object. `created` is the time at which this server started: models have none."""
        return {
            "id": self.model.name,
            "object": "model",
            "created": created,
            "owned_by": "longhaul",
            "parent": self.model.base,
            "max_model_len": self.model.context_length,
            "context_length": self.model.context_length,
            "architecture": {"input_modalities": self.input_modalities, "output_modalities": ["text"]},
            "supported_parameters": self._parameters(),
            "reasoning_efforts": list(self.efforts),
            "tool_types": list(self.tool_types),
            "refusals": dict(self.model.refusals),
        }

    def _parameters(self) -> list[str]:
        """Returns the parameters by which clients choose a model, in OpenRouter's words."""
        can = capabilities_of(self.model)
        always = ["max_tokens", "temperature", "top_p", "stop", "seed", "response_format", "structured_outputs"]
        tools = ["tools", "tool_choice", "parallel_tool_calls"] if can.tools else []
        return [*always, *tools, *(["reasoning"] if can.reasoning else []), *(["verbosity"] if can.verbosity else [])]


def card_of(model: ServedModel, servers: Sequence[McpServer]) -> ModelCard:
    """Returns the card."""
    types = tuple(kind for kind in TOOL_TYPES if _runs(kind, servers)) if capabilities_of(model).tools else ()
    return ModelCard(model, types)


def _runs(tool_type: str, servers: Sequence[McpServer]) -> bool:
    """Whether a tool of that type runs on the client, or an MCP server of the operator's runs it."""
    kind = KIND_OF_TOOL.get(tool_type)
    if kind is None:
        return True
    return bool(servers) if kind.server_kind == "mcp" else server_of_kind(servers, kind.server_kind) is not None
