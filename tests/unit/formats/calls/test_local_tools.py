"""Local tools: a function for the model, items for the client."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.protocol.events.deltas import CallArguments, CallStart, LocalCall
from app.protocol.local_kinds import APPLY_PATCH, LOCAL_KINDS, LOCAL_SHELL, SHELL, LocalToolKind
from app.protocol.requests.bodies.conversation import CreateItems
from app.protocol.requests.items.any_item import stored_items
from app.protocol.requests.validation import validate
from tests.support.refusals import LOCAL_CALL, LOCAL_OUTPUT, PATCH_CALL, PATCH_OUTPUT, SHELL_CALL, SHELL_OUTPUT
from tests.support.requests import stored_request
from workers.engine.output_format import ToolChoice
from workers.formats.calls.client_tools import ClientTools
from workers.formats.calls.hosted import NameStyle
from workers.formats.calls.local_tools import BY_TYPE, FORMATS
from workers.formats.calls.router import CallableTools, CallRouter
from workers.formats.calls.tools import tools_of
from workers.formats.steps import Called, Returned, steps_of

Json = dict[str, Any]


def called(kind: LocalToolKind, *pieces: str, cut: bool = False) -> list[Any]:
    """The deltas of a call with these arguments."""
    calls = CallRouter(CallableTools(local={kind.function: BY_TYPE[kind.tool_type]}))
    deltas = calls.feed([CallStart(kind.function), *map(CallArguments, pieces)])
    return [*deltas, *calls.flush(cut=cut)]


def steps(*sent: Json) -> list[Any]:
    return list(
        steps_of(stored_items(validate(CreateItems, {"items": list(sent)}).items, "1"), NameStyle.CHAT, ClientTools())
    )


def test_each_is_one_function_for_the_model_which_a_choice_names() -> None:
    assert tuple(each.kind for each in FORMATS) == LOCAL_KINDS
    tools = [{"type": kind.tool_type} for kind in LOCAL_KINDS]
    made = tools_of(stored_request(tools=tools))
    assert [tool.name for tool in made.all] == [kind.function for kind in LOCAL_KINDS]
    assert set(made.callable.local) == {kind.function for kind in LOCAL_KINDS}
    assert not made.callable.functions
    for kind in LOCAL_KINDS:
        chosen = tools_of(stored_request(tools=tools, tool_choice={"type": kind.tool_type}))
        assert (chosen.choice, [tool.name for tool in chosen.allowed]) == (ToolChoice.NAMED, [kind.function])


def test_the_model_is_told_of_skills() -> None:
    skill = {"name": "pdf", "description": "Reads PDFs.", "path": "/skills/pdf"}
    shell = {"type": "shell", "environment": {"type": "local", "skills": [skill]}}
    (tool,) = tools_of(stored_request(tools=[shell])).all
    assert (tool.description or "").endswith("- pdf (/skills/pdf): Reads PDFs.")


def test_a_call_is_one_delta_once_it_is_complete() -> None:
    action = {"commands": ["ls"], "max_output_length": None, "timeout_ms": 5}
    whole = LocalCall(SHELL, {"action": action, "environment": {"type": "local"}})
    assert called(SHELL, '{"commands": ["ls"], ', '"timeout_ms": 5}') == [whole]
    assert called(SHELL, '{"commands": "ls", "timeout_ms": 5}') == [whole]
    assert called(SHELL, '{"commands": ["l', cut=True) == []
    write = {"type": "create_file", "path": "a.py", "diff": "+x"}
    assert called(APPLY_PATCH, json.dumps(write)) == [LocalCall(APPLY_PATCH, {"operation": write})]
    delete = {"type": "delete_file", "path": "a.py"}
    assert called(APPLY_PATCH, json.dumps(delete)) == [LocalCall(APPLY_PATCH, {"operation": delete})]
    (call,) = called(LOCAL_SHELL, '{"command": ["ls"], "env": {"A": "1", "B": 2}}')
    assert call.fields["action"] == {
        "type": "exec",
        "command": ["ls"],
        "env": {"A": "1"},
        "timeout_ms": None,
        "user": None,
        "working_directory": None,
    }


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        (SHELL, "ls"),
        (SHELL, '{"commands": []}'),
        (SHELL, '{"commands": [1]}'),
        (APPLY_PATCH, '{"type": "update_file", "path": "a.py"}'),
        (APPLY_PATCH, '{"type": "rename_file", "path": "a.py", "diff": "+x"}'),
        (LOCAL_SHELL, "{}"),
    ],
)
def test_a_call_without_the_arguments_of_one_is_not_whole(kind: LocalToolKind, arguments: str) -> None:
    (call,) = called(kind, arguments)
    assert (call.kind, call.whole) == (kind, False)


def test_calls_are_shown_as_the_model_wrote_them() -> None:
    shell, patch, local = steps(SHELL_CALL, PATCH_CALL, LOCAL_CALL)
    assert (shell.name, json.loads(shell.arguments)) == ("run_shell_commands", {"commands": ["ls"]})
    assert (patch.name, json.loads(patch.arguments)) == ("apply_file_patch", PATCH_CALL["operation"])
    assert (local.name, json.loads(local.arguments)) == ("run_local_command", {"command": ["ls"]})
    assert all(isinstance(step, Called) for step in (shell, patch, local))


@pytest.mark.parametrize(
    ("call", "output", "shown"),
    [
        (SHELL_CALL, SHELL_OUTPUT, "a\nExit code: 0"),
        (SHELL_CALL, {**SHELL_OUTPUT, "output": []}, "(no output)"),
        (
            SHELL_CALL,
            {**SHELL_OUTPUT, "output": [{"stdout": "", "stderr": "e", "outcome": {"type": "timeout"}}]},
            "stderr:\ne\nThe command timed out.",
        ),
        (PATCH_CALL, PATCH_OUTPUT, "Done."),
        (PATCH_CALL, {**PATCH_OUTPUT, "output": None}, "The file was changed."),
        (PATCH_CALL, {**PATCH_OUTPUT, "output": "No such file.", "status": "failed"}, "Failed: No such file."),
        (LOCAL_CALL, LOCAL_OUTPUT, "a"),
    ],
)
def test_the_model_reads_what_came_of_a_call(call: Json, output: Json, shown: str) -> None:
    made, answer = steps(call, output)
    assert answer == Returned(call["call_id"], made.name, shown)
