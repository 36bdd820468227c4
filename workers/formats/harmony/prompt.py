"""A harmony prompt: system message, developer message, conversation, and the turns of this response so far.

A message is `<|start|>` header `<|message|>` content and a token that ends it:

    <|start|>assistant<|channel|>analysis<|message|>...<|end|>
    <|start|>assistant to=functions.f<|channel|>commentary json<|message|>{...}<|call|>
    <|start|>functions.f to=assistant<|channel|>commentary<|message|>...<|end|>

Calls and results name their recipient right after the author, as in the chat template that comes with gpt-oss. The
package's own renderer names it after the channel since 0.0.10; gpt-oss then tends to write it in both positions
(vLLM's harmony_utils, `_use_legacy_tool_call_headers`)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from openai_harmony import (
    DeveloperContent,
    HarmonyError,
    Message,
    ReasoningEffort,
    RenderOptions,
    Role,
    SystemContent,
    TextContent,
    ToolDescription,
    ToolNamespaceConfig,
)

from workers.engine.base import EngineError
from workers.engine.harmony_vocabulary import (
    ASSISTANT,
    CALL,
    CHANNEL,
    CONSTRAIN,
    END,
    MESSAGE,
    START,
    encode,
    encoding,
    message_ends,
    special,
)
from workers.engine.output_format import Tool
from workers.formats.calls.client_tools import ClientTools
from workers.formats.harmony.messages import FUNCTIONS, head_of, messages_of, without_old_reasoning

Item = Mapping[str, Any]

EFFORTS: Mapping[str, Any] = {
    "low": ReasoningEffort.LOW,
    "medium": ReasoningEffort.MEDIUM,
    "high": ReasoningEffort.HIGH,
}
"""The efforts that the models were trained with; the default is medium."""


@dataclass(frozen=True, slots=True)
class Preface:
    """The prompt before the conversation."""

    created_at: int
    """Seconds since the epoch. The prompt shows the day (UTC), which stays the same for the response."""
    effort: str | None = None
    identity: str | None = None
    instructions: str | None = None
    native: Sequence[ToolNamespaceConfig] = ()
    """The tools that the models were trained with, in exactly those words."""
    tools: Sequence[ToolNamespaceConfig] = ()
    """The client's functions, and the tools of MCP servers under their labels."""
    answer: str | None = None
    """The schema of the answer, as a section of the developer message."""

    @property
    def system(self) -> Message:
        day = datetime.fromtimestamp(self.created_at, UTC).date().isoformat()
        content = SystemContent.new().with_conversation_start_date(day)
        if self.identity is not None:
            content = content.with_model_identity(self.identity)
        if self.effort is not None:
            content = content.with_reasoning_effort(EFFORTS[self.effort])
        for tools in self.native:
            content = content.with_tools(tools)
        return Message.from_role_and_content(Role.SYSTEM, content)

    def developer(self, instructions: str | None) -> list[Message]:
        """The developer message; none if it would be empty."""
        contents: list[Any] = []
        if instructions or self.tools:
            content = DeveloperContent.new()
            if instructions:
                content = content.with_instructions(instructions)
            for tools in self.tools:
                content = content.with_tools(tools)
            contents.append(content)
        if self.answer is not None:
            contents.append(TextContent(text="\n\n" * len(contents) + self.answer))
        return [Message.from_role_and_contents(Role.DEVELOPER, contents)] if contents else []

    @property
    def has_functions(self) -> bool:
        return any(tools.name == FUNCTIONS.rstrip(".") for tools in self.tools)


@dataclass(frozen=True, slots=True)
class Conversation:
    """A preface and the messages after it."""

    preface: Preface
    items: Sequence[Item]
    earlier: Sequence[Message] = field(default=())
    """Messages that the client sent in harmony's own form; they come before the items."""
    client: ClientTools = field(default_factory=ClientTools)
    """The names of the tools that the items call."""
    all_reasoning: bool = False
    """Whether reasoning before an answer is shown too."""

    @property
    def messages(self) -> list[Message]:
        """Raises EngineError."""
        instructions, items = head_of(self.items, self.preface.instructions)
        conversation = [*self.earlier, *messages_of(items, self.client)]
        shown = conversation if self.all_reasoning else without_old_reasoning(conversation)
        return [self.preface.system, *self.preface.developer(instructions), *shown]

    def texts(self) -> Iterator[str]:
        """The texts that the prompt has whole. Raises EngineError."""
        for part in (part for message in self.messages for part in message.content):
            yield getattr(part, "text", None) or getattr(part, "instructions", None) or ""

    def tokens(self) -> list[int]:
        """The prompt, up to the model's own turn. Raises EngineError."""
        return [*render(self.messages, functions=self.preface.has_functions), *opening()]


def continued(tokens: Sequence[int], results: Sequence[Message]) -> list[int]:
    """A turn exactly as the model wrote it, the results of its calls, and the opening of the next turn.

    Anything after its last complete message is left out: a second call, for instance, if one was allowed.
    """
    ends = [index for index, token in enumerate(tokens) if token in message_ends()]
    whole = tokens[: ends[-1] + 1] if ends else ()
    return [*whole, *render(results, functions=False), *opening()]


def namespace(name: str, description: str | None, tools: Iterable[Tool]) -> ToolNamespaceConfig:
    """Tools as a developer message describes them."""
    described = [
        ToolDescription.new(
            tool.name, tool.description or "", None if tool.parameters is None else dict(tool.parameters)
        )
        for tool in tools
    ]
    return ToolNamespaceConfig(name=name, description=description, tools=described)


def response_format(name: str, description: str | None, schema: Mapping[str, Any]) -> str:
    """The schema of an answer, as the model reads it (OpenAI's harmony guide, "Structured output")."""
    about = f"// {description}\n" if description else ""
    schema_text = json.dumps(schema, ensure_ascii=False, separators=(",", ":"))
    return f"# Response Formats\n\n## {name}\n\n{about}{schema_text}"


def render(messages: Iterable[Message], *, functions: bool) -> list[int]:
    """The messages' tokens. `functions`: the developer message offers some. Raises EngineError."""
    return [token for message in messages for token in _message_tokens(message, functions)]


def opening() -> list[int]:
    """The tokens after which the model writes its message."""
    return [special(START), *encode(ASSISTANT)]


def _message_tokens(message: Message, functions: bool) -> list[int]:
    if message.author.role not in (Role.SYSTEM, Role.DEVELOPER):
        return _conversation_tokens(message)
    try:
        options = RenderOptions(conversation_has_function_tools=functions)
        tokens: list[int] = encoding().render(message, options)
    except (HarmonyError, ValueError) as error:
        raise EngineError(f"harmony cannot render this message: {' '.join(str(error).split())}") from None
    return tokens


def _conversation_tokens(message: Message) -> list[int]:
    """The tokens of a message of a user, a model or a tool."""
    role = message.author.role
    author = message.author.name or role.value
    recipient = f" to={message.recipient}" if message.recipient else ""
    head = [special(START), *encode(author + recipient)]
    if message.channel:
        head += [special(CHANNEL), *encode(message.channel), *_content_type_tokens(message.content_type)]
    text = "".join(part.text for part in message.content)
    last = CALL if role is Role.ASSISTANT and message.recipient else END
    return [*head, special(MESSAGE), *encode(text), special(last)]


def _content_type_tokens(kind: str | None) -> list[int]:
    """A client may send back what the model wrote: `<|constrain|>json`, whose mark is a token."""
    if not kind:
        return []
    name = kind.removeprefix(CONSTRAIN)
    return encode(f" {kind}") if name == kind else [*encode(" "), special(CONSTRAIN), *encode(name)]
