"""Items of `input` about local tools: calls as a model made them, and what came of them on the client's machine."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from app.protocol.local_kinds import APPLY_PATCH, LOCAL_SHELL, SHELL
from app.protocol.requests.base import ByType, CallId, Part
from app.protocol.requests.fields import MAX_INT, MAX_PARTS
from app.protocol.requests.items.stored_item import StoredItem
from app.protocol.requests.validation import refused
from app.protocol.types import Json

Count = Annotated[int, Field(ge=0, le=MAX_INT)]
Words = Annotated[list[str], Field(max_length=MAX_PARTS, fail_fast=True)]


class ShellAction(Part):
    commands: Words
    max_output_length: Count | None = None
    timeout_ms: Count | None = None


class ShellCall(StoredItem):
    """Commands for the client's shell."""

    prefix = SHELL.id_prefix

    type: Literal["shell_call"]
    call_id: CallId
    action: ShellAction

    def _fields(self) -> Json:
        return {**super()._fields(), "environment": {"type": "local"}}


class Exit(Part):
    type: Literal["exit"]
    exit_code: int


class Timeout(Part):
    type: Literal["timeout"]


Outcome = Annotated[Exit | Timeout, ByType()]


class CommandOutput(Part):
    """What one command wrote, and how it ended."""

    stdout: str
    stderr: str
    outcome: Outcome


class ShellCallOutput(StoredItem):
    """What the commands of a shell call gave."""

    prefix = "sho"

    type: Literal["shell_call_output"]
    call_id: CallId
    output: Annotated[list[CommandOutput], Field(max_length=MAX_PARTS, fail_fast=True)]
    max_output_length: Count | None = None


class WriteFile(Part):
    type: Literal["create_file", "update_file"]
    path: str
    diff: str


class DeleteFile(Part):
    type: Literal["delete_file"]
    path: str


Operation = Annotated[WriteFile | DeleteFile, ByType()]


class ApplyPatchCall(StoredItem):
    """A change of one file."""

    prefix = APPLY_PATCH.id_prefix

    type: Literal["apply_patch_call"]
    call_id: CallId
    operation: Operation


class ApplyPatchCallOutput(StoredItem):
    """Whether the file was changed, and what the editor said."""

    prefix = "apco"

    type: Literal["apply_patch_call_output"]
    call_id: CallId
    output: str | None = None


class LocalShellAction(Part):
    type: Literal["exec"]
    command: Words
    env: dict[str, str]
    timeout_ms: Count | None = None
    user: str | None = None
    working_directory: str | None = None


class LocalShellCall(StoredItem):
    """One command for the client's machine."""

    prefix = LOCAL_SHELL.id_prefix

    type: Literal["local_shell_call"]
    call_id: CallId
    action: LocalShellAction


class LocalShellCallOutput(StoredItem):
    """What the command gave. OpenAI's types name the call by `id`, and most clients by `call_id`."""

    prefix = "lsho"

    type: Literal["local_shell_call_output"]
    call_id: CallId | None = None
    output: str

    @model_validator(mode="after")
    def _check_origin(self) -> Self:
        if self.call_id is None and self.id is None:
            raise refused("Missing required parameter: '{path}'.", "missing_required_parameter", "call_id")
        return self

    def stored_under(self, new_id: str) -> Json:
        """An `id` that names the call is not the item's own."""
        item = super().stored_under(new_id)
        return item if self.call_id is not None else {**item, "id": f"{self.prefix}_{new_id}"}

    def _fields(self) -> Json:
        return {"type": self.type, "call_id": self.call_id or self.id, "output": self.output}


AnyLocalItem = (
    ShellCall | ShellCallOutput | ApplyPatchCall | ApplyPatchCallOutput | LocalShellCall | LocalShellCallOutput
)
