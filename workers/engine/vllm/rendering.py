"""Messages to a prompt, by the model's chat template, and by its processor if they hold images."""

from __future__ import annotations

import asyncio
import copy
import hmac
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from vllm.exceptions import VLLMClientError

from app.bounds import Bound
from app.heavy import behind
from app.protocol.types import Json
from app.sizes import is_large, json_size
from config.shaping.proof import Proof, proven
from config.shaping.shape import AS_SENT, Shaping, shaped
from workers.engine.base import EngineError, InvalidPrompt, Message, Prompt, check_length
from workers.engine.template_efforts import applied_efforts
from workers.engine.vllm.as_text import Encode
from workers.engine.vllm.compat import processes, renderer
from workers.engine.vllm.errors import error_message
from workers.engine.vllm.small_images import can_be_read, small

log = logging.getLogger("longhaul.engine")

SHORT = 1000
"""Bytes of messages, as JSON, that are rendered on the event loop: about half a millisecond. A thread would take half
as long again for a short prompt, because its Python code competes with the event loop for the interpreter."""


@dataclass(frozen=True, slots=True)
class ImagesByUrl:
    """A prompt's images for a server elsewhere, which makes tokens of them itself."""

    token_ids: Sequence[int]
    """The prompt's, with one mark for each image."""
    parts: Sequence[Json]
    """As vLLM's token route takes them (`content_parts`)."""


_BY_URL = "longhaul_images_by_url"


class Rendering:
    """The chat template of one engine. For the code of one event loop.

    Large prompts wait for each other, so one thread is always left for the others, and the event loop for short ones.
    Of one that is too long, no more becomes tokens than is needed to tell.
    """

    def __init__(
        self,
        llm: processes.AsyncLLM | renderer.NoEngine,
        template_args: Mapping[str, Any],
        start: Shaping = AS_SENT,
        *,
        images: bool = False,
        by_url: bool = False,
        proof: Proof | None = None,
    ) -> None:
        """`template_args`: the model's own. `start` and `images`: see `config.shaping.proof.proven`; `proof`: what it
        returned, if it was called already. `by_url`: a prompt's `media` are ImagesByUrl."""
        self._by_url = by_url
        self._renderer = renderer.ChatRenderer(llm)
        self.tokenizer = self._renderer.tokenizer
        self.context_length = self._renderer.context_length
        self._template_args = template_args
        with renderer.quiet():
            self.proof = proof or proven(self._text, start, images=images)
            """How messages have to be shaped for the template."""
            self._renderer.shaped_for(self.proof.shaping)
            self.efforts = applied_efforts(self._tokens)
            """The effort that each `reasoning.effort` comes to."""
        self._large = Bound("large prompts", 1, shares=False)
        self._threads = Bound("prompts", renderer.THREADS, shares=False)

    async def render(
        self,
        messages: Sequence[Message],
        template_args: Mapping[str, Any],
        tools: Sequence[Json],
        cache_salt: str | None = None,
    ) -> Prompt:
        """Renders long texts, and images, in threads. Raises InvalidPrompt for an image that may not be fetched, and
        whatever a template or an image decoder raises."""
        has_images = _check_images(messages, self._renderer)
        args: Mapping[str, Any] = {"add_generation_prompt": True, **template_args}
        if tools:
            args = {**args, "tools": list(tools)}
        size = json_size(messages)
        if not has_images and not tools and size <= SHORT:
            shown, args, encode = self._with_text_as_text(messages, args, has_images=False)
            made = self._renderer.render(list(map(_own, shown)), args, encode)
        else:
            large = is_large(size)
            bounds = [self._large, self._threads] if large else [self._threads]
            made = await behind(
                bounds, lambda: self._render_in_thread(messages, args, cache_salt, large=large, has_images=has_images)
            )
        prompt = Prompt(made["prompt_token_ids"])
        prompt.media = made.get(_BY_URL) or (made if renderer.has_media(made) else None)
        return prompt

    @property
    def can_show_urls(self) -> bool:
        return self._renderer.makes_text

    def _text(self, messages: Sequence[Message], tools: Sequence[Json], shaping: Shaping) -> str:
        args = {"add_generation_prompt": True, **self._template_args, **({"tools": list(tools)} if tools else {})}
        self._renderer.shaped_for(shaping)
        return self._renderer.text(list(map(_own, messages)), args)

    def _tokens(
        self, messages: Sequence[Message], template_args: Mapping[str, Any], tools: Sequence[Json]
    ) -> tuple[int, ...]:
        args = {"add_generation_prompt": True, **self._template_args, **template_args}
        if tools:
            args["tools"] = list(tools)
        own = list(map(_own, shaped(messages, self.proof.shaping, has_tools=bool(tools))))
        return tuple(self._renderer.render(own, args)["prompt_token_ids"])

    async def refusal(self, error: Exception, messages: Sequence[Message]) -> EngineError:
        """What a caller is told of an error of `render`: a template is a program, and so is an image decoder."""
        if isinstance(error, EngineError):
            return error
        cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
        message = f"the messages cannot be rendered: {error_message(cause)}"
        if not self.is_callers_fault(error, messages):
            return EngineError(message)
        return InvalidPrompt(message, await asyncio.to_thread(_unreadable_image, messages))

    def is_callers_fault(self, error: Exception, messages: Sequence[Message]) -> bool:
        """Whether these messages are why `error` was raised, and would be again.

        They are not if the template cannot render a plain message either, or if a server of an image does not answer.
        """
        if self.proof.broken is not None:
            return False
        return isinstance(error, VLLMClientError) or all(url.startswith("data:") for url in _image_urls(messages))

    async def _render_in_thread(
        self,
        messages: Sequence[Message],
        args: Mapping[str, Any],
        cache_salt: str | None,
        *,
        large: bool,
        has_images: bool,
    ) -> Any:
        if large:
            await asyncio.to_thread(check_length, _shown_texts(messages), self._count, self.context_length)
        plain = partial(self._with_text_as_text, messages, args, has_images=has_images)
        shown, args, encode = await asyncio.to_thread(plain)
        own = await asyncio.to_thread(list, map(partial(_own, cache_salt=cache_salt), shown))
        by_url = await asyncio.to_thread(self._images_by_url, own, args) if has_images and self._by_url else None
        made = await self._renderer.render_in_thread(own, args, encode, large=large)
        return made if by_url is None else {**made, _BY_URL: by_url}

    def _images_by_url(self, messages: Sequence[Message], args: Mapping[str, Any]) -> ImagesByUrl:
        parts = [part for message in messages for part in _image_parts(message)]
        shown = [{"type": "image_url", "url": part["image_url"]["url"], "uuid": part.get("uuid")} for part in parts]
        text = self._renderer.text(copy.deepcopy(list(messages)), args)
        return ImagesByUrl(self.tokenizer.encode(text, add_special_tokens=False), shown)

    def _with_text_as_text(
        self, messages: Sequence[Message], args: Mapping[str, Any], *, has_images: bool
    ) -> tuple[Sequence[Message], Mapping[str, Any], Encode | None]:
        """Messages and arguments in which no text of a caller is a control token, and what then makes the tokens.

        vLLM may read the tokens of a prompt with images back as text, so there the breaks stay.
        """
        marks = self._renderer.marks
        hidden = None if has_images else marks.hidden
        breaks = hidden or marks.shown
        shown, shown_args = breaks.in_messages(messages), breaks.in_value(args)
        is_plain = shown is messages and shown_args is args and not marks.folds
        return shown, shown_args, None if is_plain or hidden is None else marks.encode

    def _count(self, text: str) -> int:
        return len(self.tokenizer.encode(text, add_special_tokens=False))


def _own(message: Message, cache_salt: str | None = None) -> dict[str, Any]:
    """A copy: vLLM replaces the arguments of calls by objects, in place. Images with `detail: low` are small in it.

    With a salt, each image gets a `uuid`, by which vLLM caches it: otherwise vLLM caches images by content alone, and
    ignores the request's salt. An image that vLLM fetches has none: only vLLM knows the content.
    """
    if all(isinstance(each, str) for each in message.values()):
        return dict(message)
    own = copy.deepcopy(dict(message))
    for part in _image_parts(own):
        image = part["image_url"]
        if image.get("detail") == "low" and image["url"].startswith("data:"):
            image["url"] = small(image["url"])
    for part in _image_parts(own) if cache_salt is not None else ():
        url = part["image_url"]["url"]
        if url.startswith("data:"):
            part["uuid"] = hmac.digest(str(cache_salt).encode(), url.encode(), "sha256").hex()
    return own


def _check_images(messages: Sequence[Message], model: renderer.ChatRenderer) -> bool:
    """Whether there are images. Raises InvalidPrompt for a URL that the operator has not allowed to be fetched."""
    found = False
    for url in _image_urls(messages):
        found = True
        if not model.takes_images:
            raise InvalidPrompt("this model takes no images")
        if not url.startswith("data:") and not model.may_fetch:
            raise InvalidPrompt("image_url must be a data: URL (this model has no allowed_media_domains)")
    return found


def _shown_texts(messages: Sequence[Message]) -> Iterator[str]:
    """The texts that a template shows whole. It may leave out reasoning, which models also write into their texts."""
    for message in messages:
        content = message.get("content") if message["role"] != "assistant" else None
        if isinstance(content, str):
            yield content
        else:
            yield from (part["text"] for part in content or () if "text" in part)


def _unreadable_image(messages: Sequence[Message]) -> str | None:
    """Returns the URL of the first image that came along and cannot be read. Blocks for as long as decoding takes."""
    return next((url for url in _image_urls(messages) if url.startswith("data:") and not can_be_read(url)), None)


def _image_urls(messages: Sequence[Message]) -> Iterator[str]:
    for message in messages:
        for part in _image_parts(message):
            yield part["image_url"]["url"]


def _image_parts(message: Message) -> Iterator[dict[str, Any]]:
    content = message.get("content")
    for part in content if isinstance(content, list) else ():
        if part["type"] == "image_url":
            yield part
