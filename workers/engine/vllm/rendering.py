"""Messages to a prompt, by the model's chat template, and by its processor if they hold images."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vllm.exceptions import VLLMClientError

from app.aio import behind
from app.protocol.types import Json
from app.sizes import is_large, json_size
from workers.engine.base import InvalidPrompt, Message, Prompt
from workers.engine.vllm import compat

SHORT = 1000
"""Bytes of messages, as JSON, that are rendered on the event loop: about half a millisecond. A thread would take half
as long again for a short prompt, because its Python code competes with the event loop for the interpreter."""


class Rendering:
    """The chat template of one engine. For the code of one event loop.

    Large prompts wait for each other, so one thread is always left for the others, and the event loop for short ones:
    the tokens of 8 MB take seconds, and a gigabyte of memory meanwhile.
    """

    def __init__(self, llm: compat.AsyncLLM) -> None:
        self._renderer = compat.ChatRenderer(llm)
        self._config = llm.model_config
        self._large = asyncio.Semaphore(1)
        self._threads = asyncio.Semaphore(compat.RENDER_THREADS)

    async def render(
        self, messages: Sequence[Message], template_args: Mapping[str, Any], tools: Sequence[Json]
    ) -> Prompt:
        """Renders long texts, and images, in threads. Raises InvalidPrompt for an image that may not be fetched, and
        whatever a template or an image decoder raises."""
        has_images = _check_images(messages, self._config)
        args = {"add_generation_prompt": True, **template_args}
        if tools:
            args["tools"] = list(tools)
        size = json_size(messages)
        if not has_images and not tools and size <= SHORT:
            made = self._renderer.render(list(map(_own, messages)), args)
        else:
            gates = [self._large, self._threads] if is_large(size) else [self._threads]
            made = await behind(gates, lambda: self._render_in_thread(messages, args))
        prompt = Prompt(made["prompt_token_ids"])
        prompt.media = made if compat.has_media(made) else None
        return prompt

    async def _render_in_thread(self, messages: Sequence[Message], args: Mapping[str, Any]) -> Any:
        own = await asyncio.to_thread(list, map(_own, messages))
        return await self._renderer.render_in_thread(own, args)


def is_callers_fault(error: Exception, messages: Sequence[Message]) -> bool:
    """Whether sending the messages again would fail again; a server of an image that does not answer is no fault."""
    return isinstance(error, VLLMClientError) or all(url.startswith("data:") for url in _image_urls(messages))


def _own(message: Message) -> dict[str, Any]:
    """A copy: vLLM replaces the arguments of calls by objects, in place."""
    return dict(message) if all(isinstance(each, str) for each in message.values()) else copy.deepcopy(dict(message))


def _check_images(messages: Sequence[Message], config: Any) -> bool:
    """Whether there are images. Raises InvalidPrompt for a URL that the operator has not allowed to be fetched."""
    found = False
    for url in _image_urls(messages):
        found = True
        if not config.is_multimodal_model:
            raise InvalidPrompt("this model takes no images")
        if not url.startswith("data:") and not config.allowed_media_domains:
            raise InvalidPrompt("image_url must be a data: URL (this model has no allowed_media_domains)")
    return found


def _image_urls(messages: Sequence[Message]) -> Iterator[str]:
    for message in messages:
        content = message.get("content")
        for part in content if isinstance(content, list) else ():
            if part["type"] == "image_url":
                yield part["image_url"]["url"]
