"""Messages -> a prompt, by the model's chat template, and its processor where they hold images."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson
from vllm.renderers.params import ChatParams
from vllm.v1.engine.async_llm import AsyncLLM

from workers.engine.base import EngineError, Message, Prompt
from workers.engine.output_format import Json

SHORT = 1000
"""Bytes of messages, as JSON, that are rendered at once: about half a millisecond. The way through a thread, where all
of its Python fights with the event loop's for the interpreter, takes half as long again for a short prompt."""


class Rendering:
    """The chat template of one engine. For the code of one event loop."""

    def __init__(self, llm: AsyncLLM) -> None:
        self._renderer = llm.renderer
        self._config = llm.model_config
        # we count ourselves
        self._tokens = dataclasses.replace(self._renderer.default_chat_tok_params, max_total_tokens=None)
        self._in_thread = 0
        """While a thread is busy with a tokenizer, vLLM gives the next one a copy of it, which takes long to make."""

    async def render(
        self, messages: Sequence[Message], template_args: Mapping[str, Any], tools: Sequence[Json]
    ) -> Prompt:
        """Off the event loop, but for short texts. Raises EngineError for an image that may not be fetched, and what a
        template raises."""
        has_images = _check_images(messages, self._config)
        args = {"add_generation_prompt": True, **template_args}
        if tools:
            args["tools"] = list(tools)
        params = ChatParams(chat_template_kwargs=args)
        own = list(map(_own, messages))
        if not self._in_thread and not has_images and _is_short(own, tools):
            _, [made] = self._renderer.render_chat([own], params, self._tokens)
        else:
            made = await self._rendered_elsewhere(own, params)
        prompt = Prompt(made["prompt_token_ids"])
        prompt.media = made if made.get("type") == "multimodal" else None
        return prompt

    async def _rendered_elsewhere(self, messages: list[Any], params: ChatParams) -> Any:
        self._in_thread += 1
        try:
            _, [made] = await self._renderer.render_chat_async([messages], params, self._tokens)
            return made
        finally:
            self._in_thread -= 1


def _own(message: Message) -> dict[str, Any]:
    """A copy: vLLM turns the arguments of calls from text to objects in place."""
    return dict(message) if all(isinstance(each, str) for each in message.values()) else copy.deepcopy(dict(message))


def _is_short(messages: Sequence[Json], tools: Sequence[Json]) -> bool:
    return not tools and len(orjson.dumps(messages)) <= SHORT


def _check_images(messages: Sequence[Message], config: Any) -> bool:
    """Whether there are any. What a request names is not fetched from just anywhere: the operator says from where, or
    from nowhere."""
    found = False
    for url in _images(messages):
        found = True
        if not config.is_multimodal_model:
            raise EngineError("this model takes no images")
        if not url.startswith("data:") and not config.allowed_media_domains:
            raise EngineError("image_url must be a data: URL (this model has no allowed_media_domains)")
    return found


def _images(messages: Sequence[Message]) -> Iterator[str]:
    for message in messages:
        content = message.get("content")
        for part in content if isinstance(content, list) else ():
            if part["type"] == "image_url":
                yield part["image_url"]["url"]
