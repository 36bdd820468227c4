"""A model's chat template, rendered as transformers and vLLM do, and what a probe shows of it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property, lru_cache
from typing import Any

NAME, KEY, VALUE = "longhaul_probe", "longhaul_key", "longhaul_value"
"""The probe: a tool with one parameter, and the value that its call gives."""
_PARAMETERS = {"type": "object", "properties": {KEY: {"type": "string", "description": KEY}}, "required": [KEY]}
TOOL = {"type": "function", "function": {"name": NAME, "description": "A probe.", "parameters": _PARAMETERS}}
_ASKED, _ANSWERED = "longhaul_question", "longhaul_result"
_ID = "probe0001"
"""Nine letters and digits, which Mistral's templates ask for."""
_TOKENS = dict.fromkeys(("bos_token", "eos_token", "pad_token", "unk_token"), "")
_TRAINING = re.compile(r"(\{%-?\s*)(end)?generation\b")
"""Tags around what a model is trained on. Transformers knows them, jinja does not."""


class TemplateError(Exception):
    """The template refuses these messages, or fails with them. One line."""


@dataclass(frozen=True)
class ChatTemplate:
    texts: Mapping[str, str]
    """By name; `tool_use` is for requests with tools, `default` for the others."""
    special: Mapping[str, str] = field(default_factory=dict)
    """The tokenizer's special tokens, by the names that templates have for them."""

    def render(self, messages: Sequence[Any], tools: Sequence[Any] = (), **switches: Any) -> str:
        """The prompt. Raises TemplateError, and ImportError where there is no
        jinja: workers have it."""
        names = ("tool_use", "default") if tools else ("default",)
        text = next((self.texts[name] for name in names if name in self.texts), "".join(self.texts.values()))
        given = {"messages": messages, "tools": list(tools) or None, "documents": None, "add_generation_prompt": True}
        try:
            return str(_compiled(text).render({**_TOKENS, **self.special, **given, **switches}))
        except ImportError:
            raise
        except Exception as error:  # a template is a program and may raise anything
            raise TemplateError(f"{type(error).__name__}: {str(error).partition(chr(10))[0]}") from None

    @cached_property
    def call(self) -> str:
        """How it writes an answer that calls the probe; empty if it shows no calls."""
        result = {"role": "tool", "name": NAME, "tool_call_id": _ID, "content": _ANSWERED}
        for arguments in ({KEY: VALUE}, json.dumps({KEY: VALUE})):
            calls = [{"id": _ID, "type": "function", "function": {"name": NAME, "arguments": arguments}}]
            for content in ({"content": ""}, {"content": None}, {}):
                for text in self._rendered({"role": "assistant", **content, "tool_calls": calls}, result):
                    written = text.rpartition(_ASKED)[2].partition(_ANSWERED)[0]
                    if NAME in written and VALUE in written:
                        return written
        return ""

    def _rendered(self, *turns: Any) -> Iterator[str]:
        """A question to a model that has the probe, in each form of content that the template takes."""
        for content in (_ASKED, [{"type": "text", "text": _ASKED}]):
            try:
                yield self.render([{"role": "user", "content": content}, *turns], [TOOL])
            except TemplateError:
                continue


@lru_cache(maxsize=16)
def _compiled(text: str) -> Any:
    from jinja2.sandbox import ImmutableSandboxedEnvironment  # vLLM brings it; where no worker runs it may be missing

    made = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    made.filters["tojson"] = _json
    made.globals.update(raise_exception=_refuse, strftime_now=lambda form: datetime.now().strftime(form))
    return made.from_string(_TRAINING.sub(lambda tag: tag[1] + ("endif" if tag[2] else "if true"), text))


def _json(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)


def _refuse(message: str) -> None:
    raise ValueError(message)
