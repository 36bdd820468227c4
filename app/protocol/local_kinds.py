"""The kinds of local tools: one row for each, from which the other modules take their names.

A local tool is known by its type and runs on the client's machine: a shell, or an editor of files. The model is shown
one function for it, and its call is an item of the tool's own type.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class LocalToolKind:
    """One kind of local tool."""

    tool_type: str
    """Its type in `tools` and `tool_choice`."""
    call_type: str
    """The `type` of the item that a call makes; that of its output ends in `_output`."""
    id_prefix: str
    """How the call's id begins."""
    function: str
    """The name by which the model calls it. Few functions of clients have such a name; one that has it is refused."""
    cut_status: str = "incomplete"
    """The status of a call that is not whole."""

    @property
    def output_type(self) -> str:
        return f"{self.call_type}_output"


SHELL = LocalToolKind("shell", "shell_call", "sh", "run_shell_commands")
APPLY_PATCH = LocalToolKind("apply_patch", "apply_patch_call", "apc", "apply_file_patch", cut_status="in_progress")
"""OpenAI's types know no incomplete call of it."""
LOCAL_SHELL = LocalToolKind("local_shell", "local_shell_call", "lsh", "run_local_command")

LOCAL_KINDS = (SHELL, APPLY_PATCH, LOCAL_SHELL)

LOCAL_TOOLS: Mapping[str, LocalToolKind] = MappingProxyType({kind.tool_type: kind for kind in LOCAL_KINDS})
"""`type` of a tool, or of a tool choice -> its kind."""
LOCAL_CALLS: Mapping[str, LocalToolKind] = MappingProxyType({kind.call_type: kind for kind in LOCAL_KINDS})
"""`type` of an item -> its kind."""
