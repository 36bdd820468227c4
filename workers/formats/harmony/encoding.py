"""Harmony messages to tokens.

A message is `<|start|>` header `<|message|>` content and a token that ends it:

    <|start|>assistant<|channel|>analysis<|message|>...<|end|>
    <|start|>assistant to=functions.f<|channel|>commentary json<|message|>{...}<|call|>
    <|start|>functions.f to=assistant<|channel|>commentary<|message|>...<|end|>

Calls and results name their recipient right after the author, as in the chat template that comes with gpt-oss. The
package's own renderer names it after the channel since 0.0.10; gpt-oss then tends to write it in both positions
(vLLM's harmony_utils, `_use_legacy_tool_call_headers`).
"""

from __future__ import annotations

from collections.abc import Iterable

from openai_harmony import HarmonyError, Message, RenderOptions, Role

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
    special,
)


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
