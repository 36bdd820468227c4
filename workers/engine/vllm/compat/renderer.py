"""Messages to vLLM's engine input, by the model's chat template."""

from __future__ import annotations

import asyncio
import copy
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, cast

from vllm.config import ModelConfig, VllmConfig
from vllm.exceptions import VLLMValidationError
from vllm.renderers import BaseRenderer, hf, renderer_from_config
from vllm.renderers.chat_utils import parse_chat_messages
from vllm.renderers.hf import HfRenderer
from vllm.renderers.kimi_k3 import KimiK3Renderer
from vllm.renderers.mistral import MistralRenderer
from vllm.renderers.params import ChatParams, TokenizeParams
from vllm.v1.engine.async_llm import AsyncLLM

from config.shaping.proof import Render
from config.shaping.shape import AS_SENT, Shaping
from workers.engine.base import PromptTooLong, check_length
from workers.engine.vllm.as_text import NO_MARKS, Encode, TextMarks, text_marks
from workers.engine.vllm.compat.changed import VllmChanged, expect_text, replace_in

THREADS = 2
"""vLLM's threads for prompts. It keeps one tokenizer more than threads; that one is the event loop's."""
_THINKING = "longhaul_thinking"
_GUESSED = "content-format"
"""A word of vLLM's complaint about a content format that is not the one which it would guess."""


def _showing_thinking(apply: Callable[..., Any]) -> Callable[..., Any]:
    """vLLM hands on the fields that it knows alone: this adds `thinking` to answers, if `_THINKING` asks for it."""

    def applied(model_config: Any, tokenizer: Any, conversation: list[Any], **args: Any) -> Any:
        if args.pop(_THINKING, False):
            conversation = [
                {**message, "thinking": message.get("reasoning") or ""} if message["role"] == "assistant" else message
                for message in conversation
            ]
        return apply(model_config, tokenizer, conversation, **args)

    return applied


replace_in(hf, "safe_apply_chat_template", _showing_thinking(hf.safe_apply_chat_template))
expect_text(hf, _GUESSED)
_hf_log = logging.getLogger(hf.__name__)
_hf_log.addFilter(lambda record: _GUESSED not in str(record.msg))  # which is proven, not guessed


def template_text(model_config: ModelConfig, tokenizer: Any, template_args: Mapping[str, Any]) -> Render | None:
    """Renders messages to text by the chat template, before there is an engine; None if code makes the prompts."""
    if not hasattr(tokenizer, "chat_template") or tokenizer.chat_template is None:  # transformers' tokenizers have one
        return None

    def shown(messages: Sequence[Any], tools: Sequence[Any], shaping: Shaping) -> str:
        content_format = "openai" if shaping.parts else "string"
        copies = copy.deepcopy([dict(message) for message in messages])  # vLLM changes calls in place
        conversation, _, _ = parse_chat_messages(copies, model_config, content_format=cast(Any, content_format))
        args = {"add_generation_prompt": True, **template_args, _THINKING: shaping.thinking}
        listed = list(tools) or None
        text = hf.safe_apply_chat_template(model_config, tokenizer, conversation, tools=listed, tokenize=False, **args)
        return str(text)

    return shown


@contextmanager
def quiet() -> Iterator[None]:
    """vLLM warns of each conversation that a template refuses, and of each text that a parser cannot read; where that
    is tried, nobody has to know."""
    loggers = [logging.getLogger("vllm"), _hf_log]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


class NoEngine:
    """Has a renderer as an AsyncLLM has it, and no engine. Takes a tokenizer's files, no weights, and no device."""

    def __init__(self, config: VllmConfig) -> None:
        self.model_config: ModelConfig = config.model_config
        self.renderer: BaseRenderer = renderer_from_config(config)

    def close(self) -> None:
        renderer: BaseRenderer = self.renderer
        renderer.shutdown()


class ChatRenderer:
    """Messages to vLLM's engine input, by the model's chat template. For the code of one event loop."""

    def __init__(self, llm: AsyncLLM | NoEngine) -> None:
        """Raises VllmChanged."""
        renderer: BaseRenderer = llm.renderer
        model_config: ModelConfig = llm.model_config
        self._renderer = renderer
        self.tokenizer = renderer.get_tokenizer()
        self.context_length = int(model_config.max_model_len)
        self.takes_images = bool(model_config.is_multimodal_model)
        self.may_fetch = bool(model_config.allowed_media_domains)
        """Images from hosts that the operator allows."""
        self._has_processor = renderer.mm_processor is not None
        self._limited: TokenizeParams = renderer.default_chat_tok_params
        self._whole = replace(self._limited, max_total_tokens=None)  # a small prompt is counted to its end
        self._too_long = _names_of_too_long(self._limited, self.tokenizer)
        self._shaping = AS_SENT

    @cached_property
    def marks(self) -> TextMarks:
        """How callers' texts stay text. To be asked for once the shaping is known."""
        if isinstance(self._renderer, KimiK3Renderer | MistralRenderer):
            return NO_MARKS
        try:
            has_text = bool(self._rendered_text([{"role": "user", "content": "Hello!"}], {}))
        except Exception:  # a template is a program; and a renderer may have no text
            has_text = False
        return text_marks(self.tokenizer, has_text=has_text)

    @property
    def makes_text(self) -> bool:
        """Whether a prompt is text before it is tokens."""
        return isinstance(self._renderer, HfRenderer)

    def shaped_for(self, shaping: Shaping) -> None:
        """From now on messages are shaped so."""
        self._shaping = shaping

    def text(self, messages: list[Any], template_args: Mapping[str, Any]) -> str:
        """The prompt as text."""
        if isinstance(self._renderer, HfRenderer):
            return self._rendered_text(messages, template_args)
        text: str = self.tokenizer.decode(self.render(messages, template_args)["prompt_token_ids"])
        return text

    def _rendered_text(self, messages: list[Any], template_args: Mapping[str, Any]) -> str:
        renderer: BaseRenderer = self._renderer
        _, prompt = renderer.render_messages(messages, self._params({**template_args, "tokenize": False}))
        text: str = prompt["prompt"]
        return text

    def render(self, messages: list[Any], template_args: Mapping[str, Any], encode: Encode | None = None) -> Any:
        """`encode`: makes the prompt's tokens of its text."""
        if encode is not None:
            return {"prompt_token_ids": encode(self._rendered_text(messages, template_args))}
        renderer: BaseRenderer = self._renderer
        _, [made] = renderer.render_chat([messages], self._params(template_args), self._whole)
        return made

    async def render_in_thread(
        self, messages: list[Any], template_args: Mapping[str, Any], encode: Encode | None = None, *, large: bool
    ) -> Any:
        """Raises PromptTooLong for a `large` prompt whose text alone is too long, or has too many tokens."""
        renderer: BaseRenderer = self._renderer
        if encode is not None:
            params = self._params({**template_args, "tokenize": False})
            _, prompt = await renderer.render_messages_async(messages, params)
            return await asyncio.to_thread(self._encoded, prompt["prompt"], encode, large=large)
        limited = large and not self._has_processor  # images become tokens elsewhere
        tokens = self._limited if limited else self._whole
        if limited and isinstance(renderer, HfRenderer):
            template_args = {**template_args, "tokenize": False}  # else the template makes all tokens before any check
        try:
            _, [made] = await renderer.render_chat_async([messages], self._params(template_args), tokens)
        except VLLMValidationError as error:
            if error.parameter in self._too_long:
                raise PromptTooLong(None, self._limited.max_total_tokens) from None
            raise
        return made

    def _encoded(self, text: str, encode: Encode, *, large: bool) -> Any:
        if large:
            check_length([text], lambda piece: len(encode(piece)), self._limited.max_total_tokens)
        return {"prompt_token_ids": encode(text)}

    def _params(self, template_args: Mapping[str, Any]) -> ChatParams:
        if self._shaping.thinking:
            template_args = {**template_args, _THINKING: True}
        content_format = "openai" if self._shaping.parts else "string"
        return ChatParams(
            chat_template_kwargs=dict(template_args), chat_template_content_format=cast(Any, content_format)
        )


def _names_of_too_long(params: TokenizeParams, tokenizer: Any) -> frozenset[str]:
    """The parameters that vLLM names when it refuses a prompt whose text, or whose tokens, are too long."""
    one: TokenizeParams = replace(params, max_total_tokens=1, truncate_prompt_tokens=None)
    text = partial(one.apply_pre_tokenization, tokenizer, {"prompt": "x" * 2**20})
    tokens = partial(one.apply_post_tokenization, tokenizer, {"prompt_token_ids": [0] * 1000})
    return frozenset(map(_name_of_refusal, (text, tokens)))


def _name_of_refusal(check: Callable[[], Any]) -> str:
    try:
        check()
    except VLLMValidationError as error:
        return str(error.parameter)
    raise VllmChanged("it takes a prompt that is too long")


def has_media(engine_input: Mapping[str, Any]) -> bool:
    """Raises VllmChanged for a kind of input that is not known."""
    kind = engine_input.get("type", "token")
    if kind not in ("token", "multimodal"):
        raise VllmChanged(f"it makes prompts of the type {kind!r}")
    return bool(kind == "multimodal")
