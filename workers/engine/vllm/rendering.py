"""Messages -> a prompt, by the model's chat template, and its processor where they hold images."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vllm.renderers.params import ChatParams
from vllm.v1.engine.async_llm import AsyncLLM

from workers.engine.base import EngineError, Message, Prompt
from workers.engine.dialect import Json


async def render(
    llm: AsyncLLM, messages: Sequence[Message], template_args: Mapping[str, Any], tools: Sequence[Json]
) -> Prompt:
    """Off the event loop. Raises EngineError for an image that may not be fetched, and what a template raises."""
    _check_images(messages, llm.model_config)
    renderer = llm.renderer
    args = {"add_generation_prompt": True, **template_args}
    if tools:
        args["tools"] = list(tools)
    # It turns the arguments of calls from text to objects in place.
    own = [copy.deepcopy(dict(message)) for message in messages]
    tokens = dataclasses.replace(renderer.default_chat_tok_params, max_total_tokens=None)  # we count ourselves
    _, [made] = await renderer.render_chat_async([own], ChatParams(chat_template_kwargs=args), tokens)
    prompt = Prompt(made["prompt_token_ids"])
    prompt.media = made if made.get("type") == "multimodal" else None
    return prompt


def _check_images(messages: Sequence[Message], config: Any) -> None:
    """What a request names is not fetched from just anywhere: the operator says from where, or from nowhere."""
    for url in _images(messages):
        if not config.is_multimodal_model:
            raise EngineError("this model takes no images")
        if not url.startswith("data:") and not config.allowed_media_domains:
            raise EngineError("image_url must be a data: URL (this model has no allowed_media_domains)")


def _images(messages: Sequence[Message]) -> Iterator[str]:
    for message in messages:
        content = message.get("content")
        for part in content if isinstance(content, list) else ():
            if part["type"] == "image_url":
                yield part["image_url"]["url"]
