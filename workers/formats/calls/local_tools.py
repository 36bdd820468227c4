"""Local tools: the function that a model is shown for each, its calls as items, and what it reads of their outputs.

tool of the request    function                item of a call
shell                  run_shell_commands      shell_call: `action.commands`
apply_patch            apply_file_patch        apply_patch_call: `operation`
local_shell            run_local_command       local_shell_call: `action.command`
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from app.protocol.events.deltas import Delta, LocalCall
from app.protocol.local_kinds import APPLY_PATCH, LOCAL_SHELL, SHELL, LocalToolKind
from app.protocol.types import Json
from workers.formats.calls.hosted import OpenCall, arguments_of

Item = Mapping[str, Any]

_OPERATIONS = ("create_file", "update_file", "delete_file")
_COUNT: Json = {"type": "integer", "minimum": 0}
_TEXT: Json = {"type": "string"}
_TEXTS: Json = {"type": "array", "items": _TEXT}


def _object(required: list[str], properties: Json) -> Json:
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _about(schema: Json, description: str) -> Json:
    return {**schema, "description": description}


_TIMEOUT = _about(_COUNT, "Milliseconds after which the command is stopped.")


@dataclass(frozen=True, slots=True)
class LocalToolFormat:
    """How prompts and answers show one kind of local tool."""

    kind: LocalToolKind
    description: str
    parameters: Json
    fields: Callable[[Json], Json | None]
    """What the item of a call shows, from its arguments; None: they are not those of a call."""
    unusable: Callable[[str], Json]
    """The same from arguments that are not those of a call, as the model wrote them."""
    arguments: Callable[[Item], Json]
    """The arguments of the call that an item shows."""
    output: Callable[[Item], str]
    """The text for the model of an output."""


class OpenLocalCall(OpenCall):
    """A call of a local tool: a LocalCall, once it is complete. One that a limit cut shows nothing."""

    def __init__(self, tool: LocalToolFormat) -> None:
        super().__init__()
        self._tool = tool

    def finish(self, *, cut: bool) -> list[Delta]:
        arguments = arguments_of(self._arguments)
        fields = None if arguments is None else self._tool.fields(arguments)
        if fields is not None:
            return [LocalCall(self._tool.kind, fields)]
        return [] if cut else [LocalCall(self._tool.kind, self._tool.unusable(self._arguments), whole=False)]


def description_of(tool: LocalToolFormat, spec: Item) -> str:
    """The description for the model of a tool of the request, with its skills."""
    skills = (spec.get("environment") or {}).get("skills") or ()
    lines = [f"- {skill['name']} ({skill['path']}): {skill['description']}" for skill in skills]
    if not lines:
        return tool.description
    return "\n".join([tool.description, "", "Skills, each a folder with instructions to read before its task:", *lines])


# -- shell -----------------------------------------------------------------------------------------------------


def _shell_fields(arguments: Json) -> Json | None:
    commands = _texts(arguments.get("commands"))
    if not commands:
        return None
    limits = {name: _count(arguments.get(name)) for name in ("max_output_length", "timeout_ms")}
    return {"action": {"commands": commands, **limits}, "environment": {"type": "local"}}


def _shell_output(item: Item) -> str:
    shown = "\n\n".join(map(_command_output, item["output"]))
    return shown or "(no output)"


def _command_output(output: Item) -> str:
    outcome = output["outcome"]
    ended = "The command timed out." if outcome["type"] == "timeout" else f"Exit code: {outcome['exit_code']}"
    error = f"stderr:\n{output['stderr']}" if output["stderr"] else ""
    return "\n".join(filter(None, (output["stdout"], error, ended)))


# -- apply_patch -----------------------------------------------------------------------------------------------


def _patch_fields(arguments: Json) -> Json | None:
    kind, path, diff = (arguments.get(name) for name in ("type", "path", "diff"))
    if kind not in _OPERATIONS or not isinstance(path, str) or not path:
        return None
    if kind == "delete_file":
        return {"operation": {"type": kind, "path": path}}
    return {"operation": {"type": kind, "path": path, "diff": diff}} if isinstance(diff, str) and diff else None


def _patch_output(item: Item) -> str:
    failed = item["status"] in ("failed", "incomplete")
    told = item.get("output") or ("The file was not changed." if failed else "The file was changed.")
    return f"Failed: {told}" if failed else told


# -- local_shell -----------------------------------------------------------------------------------------------


def _local_fields(arguments: Json) -> Json | None:
    command, env = _texts(arguments.get("command")), arguments.get("env")
    if not command:
        return None
    return {
        "action": {
            "type": "exec",
            "command": command,
            "env": {name: value for name, value in (env if isinstance(env, dict) else {}).items() if _is_text(value)},
            "timeout_ms": _count(arguments.get("timeout_ms")),
            "user": _text_of(arguments.get("user")),
            "working_directory": _text_of(arguments.get("working_directory")),
        }
    }


def _local_arguments(item: Item) -> Json:
    action = {name: value for name, value in item["action"].items() if name != "type"}
    return _given({**action, "env": action.get("env") or None})


def _given(arguments: Item) -> Json:
    return {name: value for name, value in arguments.items() if value is not None}


def _texts(value: Any) -> list[str]:
    """Texts in a list; models write a single one without it."""
    found = [value] if isinstance(value, str) and value else value
    return found if isinstance(found, list) and all(map(_is_text, found)) else []


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _text_of(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31 else None


FORMATS: tuple[LocalToolFormat, ...] = (
    LocalToolFormat(
        kind=SHELL,
        description="Runs shell commands on the user's machine, one after the other, and returns what each wrote.",
        parameters=_object(
            ["commands"],
            {
                "commands": _about({**_TEXTS, "minItems": 1}, "The commands, each a whole line for the shell."),
                "timeout_ms": _TIMEOUT,
                "max_output_length": _about(_COUNT, "The most characters to return."),
            },
        ),
        fields=_shell_fields,
        unusable=lambda _: {
            "action": {"commands": [], "max_output_length": None, "timeout_ms": None},
            "environment": {"type": "local"},
        },
        arguments=lambda item: _given(item["action"]),
        output=_shell_output,
    ),
    LocalToolFormat(
        kind=APPLY_PATCH,
        description=(
            "Creates, changes or deletes one file. `diff` has no header with file names. To create a file, each of its "
            "lines begins with +. To change one, write hunks: an optional line @@ with the line of code that the hunk "
            "is in (a class or a function), then three lines before the change, the change and three lines after it. "
            "There a line begins with a space if it stays, with - if it goes, and with + if it is new."
        ),
        parameters=_object(
            ["type", "path"],
            {
                "type": {"type": "string", "enum": list(_OPERATIONS)},
                "path": _about(_TEXT, "Path of the file, relative to the workspace."),
                "diff": _about(_TEXT, "The change; not to delete a file."),
            },
        ),
        fields=_patch_fields,
        unusable=lambda text: {"operation": {"type": "update_file", "path": "", "diff": text}},
        arguments=lambda item: dict(item["operation"]),
        output=_patch_output,
    ),
    LocalToolFormat(
        kind=LOCAL_SHELL,
        description="Runs one command on the user's machine and returns what it wrote.",
        parameters=_object(
            ["command"],
            {
                "command": _about({**_TEXTS, "minItems": 1}, "The program and its arguments."),
                "env": {"type": "object", "additionalProperties": _TEXT, "description": "Environment variables."},
                "working_directory": _about(_TEXT, "Folder to run it in."),
                "timeout_ms": _TIMEOUT,
                "user": _about(_TEXT, "User to run it as."),
            },
        ),
        fields=_local_fields,
        unusable=lambda _: {"action": {"type": "exec", "command": [], "env": {}}},
        arguments=_local_arguments,
        output=lambda item: item["output"],
    ),
)

BY_TYPE: Mapping[str, LocalToolFormat] = {each.kind.tool_type: each for each in FORMATS}
BY_CALL: Mapping[str, LocalToolFormat] = {each.kind.call_type: each for each in FORMATS}
BY_OUTPUT: Mapping[str, LocalToolFormat] = {each.kind.output_type: each for each in FORMATS}


def shown_arguments(item: Item) -> str:
    """The arguments of a call's item, as a model would have written them."""
    return json.dumps(BY_CALL[item["type"]].arguments(item), ensure_ascii=False)


def shown_output(item: Item) -> str:
    """The text for a model of an output's item."""
    return BY_OUTPUT[item["type"]].output(item)
