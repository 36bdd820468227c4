"""Local tools in `tools`: a shell, or an editor of files, on the client's machine."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from app.protocol.requests.base import Part
from app.protocol.requests.validation import refused, wrong_kind
from app.protocol.types import Json

MAX_SKILLS = 256
_CONTAINERS = ("container_auto", "container_reference")


class Skill(Part):
    """A folder on the client's machine with instructions for a task. The model is told of it, and may read it."""

    name: str
    description: str
    path: str


class LocalEnvironment(Part):
    """The client's machine."""

    type: Literal["local"]
    skills: Annotated[list[Skill], Field(max_length=MAX_SKILLS, fail_fast=True)] | None = None


def _check_environment(value: Any) -> Any:
    if value is not None and not isinstance(value, dict):
        raise wrong_kind("an object", value)
    if isinstance(value, dict) and value.get("type") in _CONTAINERS:
        message = (
            f"'{{path}}': this server has no containers for a shell, so '{value['type']}' is not supported. "
            "Send {'type': 'local'} and run the commands yourself."
        )
        raise refused(message, "unsupported_parameter", "type")
    return value


Environment = Annotated[LocalEnvironment | None, BeforeValidator(_check_environment)]


class _LocalTool(Part):
    type: str

    @property
    def known_as(self) -> str:
        return f"the type '{self.type}'"


class ShellTool(_LocalTool):
    """Runs commands in the client's shell."""

    type: Literal["shell"]
    environment: Environment = None

    def stored(self) -> Json:
        environment = self.environment or LocalEnvironment(type="local")
        return {"type": self.type, "environment": environment.model_dump(exclude_none=True)}


class ApplyPatchTool(_LocalTool):
    """Creates, changes and deletes the client's files."""

    type: Literal["apply_patch"]


class LocalShellTool(_LocalTool):
    """Runs one command on the client's machine."""

    type: Literal["local_shell"]


AnyLocalTool = ShellTool | ApplyPatchTool | LocalShellTool
