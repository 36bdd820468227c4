"""code_interpreter: the hosted tool that runs Python."""

from __future__ import annotations

import json
from collections.abc import Iterable

from app.protocol.events.deltas import CodeStart, CodeText, Delta
from app.protocol.hosted_kinds import CODE_INTERPRETER
from app.protocol.types import Json
from workers.formats.calls.hosted import (
    NO_RESULT,
    HostedTool,
    HostedToolFormat,
    Item,
    Listings,
    NameStyle,
    OpenHostedCall,
    ShownCall,
)
from workers.formats.calls.string_argument import StringArgumentReader

NAME = "python"
CODE_ARGUMENT = "code"

_DESCRIPTION = (
    "Runs Python code and returns what it prints, and the value of its last line. "
    "Variables, imports and files stay for later calls of the same answer. There is no internet."
)
_PARAMETERS: Json = {
    "type": "object",
    "properties": {CODE_ARGUMENT: {"type": "string", "description": "The code to run."}},
    "required": [CODE_ARGUMENT],
    "additionalProperties": False,
}


class PythonCall(OpenHostedCall):
    """CodeStart, CodeText...: the string in the call's JSON, or the bare code that harmony models write."""

    def __init__(self, tool: HostedTool) -> None:
        super().__init__(tool)
        self._reader = StringArgumentReader(CODE_ARGUMENT)

    def start(self) -> list[Delta]:
        return [CodeStart(self._tool.name)]

    def feed(self, text: str) -> list[Delta]:
        super().feed(text)
        code = self._reader.feed(text)
        return [CodeText(code)] if code else []

    def finish(self, *, cut: bool) -> list[Delta]:
        super().finish(cut=cut)
        rest = self._reader.flush()
        return [CodeText(rest)] if rest else []


def _tools(_entry: Json, field: str, _listings: Listings, _style: NameStyle) -> Iterable[HostedTool]:
    yield HostedTool(NAME, "python", None, NAME, _DESCRIPTION, _PARAMETERS, field)


def _shown_call(item: Item, style: NameStyle) -> ShownCall:
    code = item.get("code") or ""
    if style is NameStyle.HARMONY:
        return ShownCall(NAME, code, "code")
    return ShownCall(NAME, json.dumps({CODE_ARGUMENT: code}, ensure_ascii=False))


def _shown_result(item: Item) -> str:
    logs = [output["logs"] for output in item.get("outputs") or () if output["type"] == "logs"]
    return "\n".join(logs) or NO_RESULT


PYTHON = HostedToolFormat(
    kind=CODE_INTERPRETER,
    tools=_tools,
    open_call=PythonCall,
    shown_call=_shown_call,
    shown_result=_shown_result,
)
