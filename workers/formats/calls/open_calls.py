"""One call while the model writes it: what it becomes, piece by piece.

a client's function    CallStart, CallArguments...
a custom tool          CustomStart, CustomInput...       (the string in its JSON)
python                 CodeStart, CodeText...            (the string in its JSON)
an MCP tool            McpStart, McpArguments...         (and a tool that is not there)
the browser            WholeCall, once it is whole
an MCP tool that needs approval    Approval, once it is whole
a name that may not be called      Text, as the JSON that the model wrote, where the server runs no tools
"""

from __future__ import annotations

import json
from typing import Protocol

from app.protocol.events.deltas import (
    Approval,
    CallArguments,
    CallStart,
    CodeStart,
    CodeText,
    CustomInput,
    CustomStart,
    Delta,
    McpArguments,
    McpStart,
    Text,
    WholeCall,
)
from app.protocol.hosted_kinds import WEB_SEARCH
from workers.formats.calls.hosted import HostedCall, HostedKind, HostedTool, action_of, arguments_of
from workers.formats.calls.string_argument import StringArgumentReader

CODE = "code"
"""The one parameter of `python`."""


class OpenCall(Protocol):
    """A call that the model is writing."""

    ran: HostedCall | None
    """Once it is ended: the call that the server has to run."""

    def begin(self) -> list[Delta]: ...

    def more(self, text: str) -> list[Delta]:
        """Characters of its arguments."""

    def end(self, *, cut: bool) -> list[Delta]:
        """What was held back. `cut`: in the middle of anything."""


def hosted_call(tool: HostedTool) -> OpenCall:
    """A call of a tool that the server runs."""
    if tool.kind is HostedKind.PYTHON:
        return Code(tool)
    return Whole(tool) if tool.kind is HostedKind.BROWSER or tool.needs_approval else Mcp(tool)


class Function:
    ran: HostedCall | None = None

    def __init__(self, name: str) -> None:
        self._name = name

    def begin(self) -> list[Delta]:
        return [CallStart(self._name)]

    def more(self, text: str) -> list[Delta]:
        return [CallArguments(text)]

    def end(self, *, cut: bool) -> list[Delta]:
        return []


class Custom:
    ran: HostedCall | None = None

    def __init__(self, name: str) -> None:
        self._name = name
        self._reader = StringArgumentReader()

    def begin(self) -> list[Delta]:
        return [CustomStart(self._name)]

    def more(self, text: str) -> list[Delta]:
        said = self._reader.feed(text)
        return [CustomInput(said)] if said else []

    def end(self, *, cut: bool) -> list[Delta]:
        rest = self._reader.flush()
        return [CustomInput(rest)] if rest else []


class Foreign:
    """Its name may not be called."""

    ran: HostedCall | None = None

    def __init__(self, name: str) -> None:
        self._name = name
        self._arguments = ""

    def begin(self) -> list[Delta]:
        return [Text(f'{{"name": {json.dumps(self._name, ensure_ascii=False)}, "arguments": ')]

    def more(self, text: str) -> list[Delta]:
        self._arguments += text
        return [Text(text)]

    def end(self, *, cut: bool) -> list[Delta]:
        return [Text("}")] if _is_json(self._arguments) else []


class _Hosted:
    ran: HostedCall | None = None

    def __init__(self, tool: HostedTool) -> None:
        self._tool = tool
        self._arguments = ""

    def begin(self) -> list[Delta]:
        return []

    def more(self, text: str) -> list[Delta]:
        self._arguments += text
        return []

    def end(self, *, cut: bool) -> list[Delta]:
        self.ran = HostedCall.of(self._tool, self._arguments)
        return []


class Code(_Hosted):
    def __init__(self, tool: HostedTool) -> None:
        super().__init__(tool)
        self._reader = StringArgumentReader(CODE)

    def begin(self) -> list[Delta]:
        return [CodeStart(self._tool.name)]

    def more(self, text: str) -> list[Delta]:
        super().more(text)
        code = self._reader.feed(text)
        return [CodeText(code)] if code else []

    def end(self, *, cut: bool) -> list[Delta]:
        super().end(cut=cut)
        rest = self._reader.flush()
        return [CodeText(rest)] if rest else []


class Mcp(_Hosted):
    def begin(self) -> list[Delta]:
        return [_mcp_start(self._tool)]

    def more(self, text: str) -> list[Delta]:
        super().more(text)
        return [McpArguments(text)]


class Whole(_Hosted):
    """Nothing is said before all of it is there; of a call that was cut, nothing at all."""

    def end(self, *, cut: bool) -> list[Delta]:
        tool, arguments = self._tool, self._arguments
        readable = arguments_of(arguments) is not None
        if cut and not (readable and arguments):
            return []
        if tool.needs_approval and readable:
            return [Approval(tool.server_label or "", tool.tool, arguments)]
        super().end(cut=cut)
        if tool.kind is HostedKind.BROWSER:
            return [WholeCall(WEB_SEARCH, tool.name, arguments, {"action": action_of(tool.tool, arguments)})]
        # Nobody is asked to allow what cannot be run: the model is told so.
        return [_mcp_start(tool), *([McpArguments(arguments)] if arguments else [])]


def _mcp_start(tool: HostedTool) -> McpStart:
    return McpStart(tool.server_label or "", tool.tool)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True
