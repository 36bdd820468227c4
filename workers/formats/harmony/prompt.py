"""A harmony prompt: system message, developer message, the conversation, and the turns of this response so far."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from openai_harmony import (
    DeveloperContent,
    Message,
    ReasoningEffort,
    Role,
    SystemContent,
    TextContent,
    ToolDescription,
    ToolNamespaceConfig,
)

from workers.engine.output_format import Tool
from workers.formats.harmony import encoding as encoding
from workers.formats.harmony.messages import BROWSER, PYTHON, head_of, messages_of, without_old_thoughts

Item = Mapping[str, Any]

EFFORTS: Mapping[str, Any] = {
    "low": ReasoningEffort.LOW,
    "medium": ReasoningEffort.MEDIUM,
    "high": ReasoningEffort.HIGH,
}
"""What the models were taught; medium where nothing is said."""


@dataclass(frozen=True, slots=True)
class Namespace:
    """The tools of an MCP server, under its label."""

    label: str
    description: str | None
    tools: tuple[Tool, ...]


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """The JSON schema that an answer is held to, as the model is told of it."""

    name: str
    description: str | None
    schema: Mapping[str, Any]

    @property
    def section(self) -> str:
        """The end of a developer message (OpenAI's harmony guide, "Structured output")."""
        about = f"// {self.description}\n" if self.description else ""
        schema = json.dumps(self.schema, ensure_ascii=False, separators=(",", ":"))
        return f"# Response Formats\n\n## {self.name}\n\n{about}{schema}"


@dataclass(frozen=True, slots=True)
class Preface:
    """What comes before the conversation."""

    created_at: int
    """Seconds; the prompt shows the day (UTC), which is the response's for ever."""
    effort: str | None = None
    identity: str | None = None
    instructions: str | None = None
    functions: tuple[Tool, ...] = ()
    python: bool = False
    browser: bool = False
    servers: tuple[Namespace, ...] = ()
    answer: AnswerFormat | None = None

    @property
    def system(self) -> Message:
        day = datetime.fromtimestamp(self.created_at, UTC).date().isoformat()
        content = SystemContent.new().with_conversation_start_date(day)
        if self.identity is not None:
            content = content.with_model_identity(self.identity)
        if self.effort is not None:
            content = content.with_reasoning_effort(EFFORTS[self.effort])
        if self.python:
            content = content.with_tools(_own(PYTHON))
        if self.browser:
            content = content.with_tools(_own(BROWSER))
        return Message.from_role_and_content(Role.SYSTEM, content)

    def developer(self, instructions: str | None) -> list[Message]:
        """One message, or none where it has nothing to say."""
        said: list[Any] = []
        if instructions or self.functions or self.servers:
            said.append(self._instructed(instructions))
        if self.answer is not None:
            said.append(TextContent(text="\n\n" * len(said) + self.answer.section))
        return [Message.from_role_and_contents(Role.DEVELOPER, said)] if said else []

    def _instructed(self, instructions: str | None) -> DeveloperContent:
        content = DeveloperContent.new()
        if instructions:
            content = content.with_instructions(instructions)
        if self.functions:
            content = content.with_function_tools([_described(tool) for tool in self.functions])
        for server in self.servers:
            tools = [_described(tool) for tool in server.tools]
            content = content.with_tools(
                ToolNamespaceConfig(name=server.label, description=server.description, tools=tools)
            )
        return content


@dataclass(frozen=True, slots=True)
class Conversation:
    """A preface and what follows it, as messages."""

    preface: Preface
    items: Sequence[Item]
    earlier: Sequence[Message] = field(default=())
    """Messages that the client sent in harmony's own form; they come before the items."""

    @property
    def messages(self) -> list[Message]:
        """Raises EngineError."""
        instructions, items = head_of(self.items, self.preface.instructions)
        said = without_old_thoughts([*self.earlier, *messages_of(items)])
        return [self.preface.system, *self.preface.developer(instructions), *said]

    def tokens(self) -> list[int]:
        """What the model reads, up to its own turn. Raises EngineError."""
        told = encoding.rendered(self.messages, functions=bool(self.preface.functions))
        return [*told, *encoding.opening()]


def continued(tokens: Sequence[int], results: Sequence[Message]) -> list[int]:
    """A turn exactly as the model wrote it, what it was told then, and the opening of the next.

    What it began behind its last whole message is left out: a second call, say, where one was allowed.
    """
    ends = [place for place, token in enumerate(tokens) if token in encoding.message_ends()]
    whole = tokens[: ends[-1] + 1] if ends else ()
    return [*whole, *encoding.rendered(results, functions=False), *encoding.opening()]


def _own(name: str) -> ToolNamespaceConfig:
    """A tool that the models were trained with, in the very words."""
    return ToolNamespaceConfig.python() if name == PYTHON else ToolNamespaceConfig.browser()


def _described(tool: Tool) -> ToolDescription:
    parameters = None if tool.parameters is None else dict(tool.parameters)
    return ToolDescription.new(tool.name, tool.description or "", parameters)
