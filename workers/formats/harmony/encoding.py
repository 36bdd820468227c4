"""The harmony encoding (openai_harmony, vocabulary inside), and messages of it as tokens.

A message is `<|start|>` header `<|message|>` content and a token that ends it:

    <|start|>assistant<|channel|>analysis<|message|>...<|end|>
    <|start|>assistant to=functions.f<|channel|>commentary json<|message|>{...}<|call|>
    <|start|>functions.f to=assistant<|channel|>commentary<|message|>...<|end|>

Calls and results have their recipient behind the author, as in the chat template that comes with gpt-oss. The
package's own renderer puts it behind the channel since 0.0.10, and gpt-oss then tends to write it in both places
(vLLM's harmony_utils, `_use_legacy_tool_call_headers`). Whatever a user wrote is text: a special token in it is
encoded as the characters it is written with.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

from openai_harmony import (
    HarmonyEncodingName,
    HarmonyError,
    Message,
    RenderOptions,
    Role,
    load_harmony_encoding,
)

from workers.engine.base import EngineError

START, END, CHANNEL, MESSAGE, CALL, RETURN, CONSTRAIN = (
    "<|start|>",
    "<|end|>",
    "<|channel|>",
    "<|message|>",
    "<|call|>",
    "<|return|>",
    "<|constrain|>",
)
_SPECIAL = (START, END, CHANNEL, MESSAGE, CALL, RETURN, CONSTRAIN)
_SAMPLE = 'Hello, world!\n\n\tIt\'s 1234567 naïve 你好 👋: {"a": [1, null]}  def f(x):\r\n    return x  '
ANALYSIS, COMMENTARY, FINAL = "analysis", "commentary", "final"
ASSISTANT = "assistant"


@cache
def encoding() -> Any:
    """The one encoding: its vocabulary takes most of a second to load."""
    return load_harmony_encoding(HarmonyEncodingName.HARMONY_GPT_OSS)


@cache
def special(name: str) -> int:
    """The id of a special token."""
    [token] = encoding().encode(name, allowed_special={name})
    return int(token)


@cache
def stop_tokens() -> tuple[int, ...]:
    """What ends an answer: `<|return|>` and `<|call|>`."""
    return tuple(sorted(encoding().stop_tokens_for_assistant_actions()))


@cache
def message_ends() -> frozenset[int]:
    return frozenset(map(special, (END, CALL, RETURN)))


def fits(tokenizer: Any) -> bool:
    """Whether a model's own tokenizer (of transformers) reads text as harmony does."""
    same = list(tokenizer.encode(_SAMPLE, add_special_tokens=False)) == encoded(_SAMPLE)
    return same and all(tokenizer.convert_tokens_to_ids(name) == special(name) for name in _SPECIAL)


def encoded(text: str) -> list[int]:
    """Plain text: no special token comes out."""
    tokens: list[int] = encoding().encode(text, disallowed_special=())
    return tokens


def rendered(messages: Iterable[Message], *, functions: bool) -> list[int]:
    """These messages; `functions`: the developer message offers some. Raises EngineError."""
    return [token for message in messages for token in _message(message, functions)]


def opening() -> list[int]:
    """What the model goes on from."""
    return [special(START), *encoded(ASSISTANT)]


def _message(message: Message, functions: bool) -> list[int]:
    if message.author.role not in (Role.SYSTEM, Role.DEVELOPER):
        return _said(message)
    try:
        options = RenderOptions(conversation_has_function_tools=functions)
        tokens: list[int] = encoding().render(message, options)
    except (HarmonyError, ValueError) as error:
        raise EngineError(f"harmony cannot say this: {' '.join(str(error).split())}") from None
    return tokens


def _said(message: Message) -> list[int]:
    """What a user, a model or a tool said."""
    role = message.author.role
    author = message.author.name or role.value
    to = f" to={message.recipient}" if message.recipient else ""
    kind = f" {message.content_type}" if message.content_type else ""
    head = [special(START), *encoded(author + to)]
    if message.channel:
        head += [special(CHANNEL), *encoded(message.channel + kind)]
    text = "".join(part.text for part in message.content)
    last = CALL if role is Role.ASSISTANT and message.recipient else END
    return [*head, special(MESSAGE), *encoded(text), special(last)]
