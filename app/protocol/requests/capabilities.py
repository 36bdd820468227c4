"""What a request asks of its model, checked against what the model can do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from app.protocol.errors import InvalidRequest
from app.protocol.include import LOGPROBS
from app.protocol.item_types import TOOL_SOURCES
from app.protocol.types import Json

MAX_IMAGES = 100
"""The most images in the input of one request; those of earlier responses do not count."""

HARMONY_EFFORTS = ("low", "medium", "high")
HARMONY_ARGS = ("model_identity", "reasoning_effort")
"""The `chat_template_kwargs` that are honoured; the names are those of gpt-oss's chat template."""


_NO_PARSER = "no 'tool_parser' follows from its files, and the models file sets none"
NO_REASONING = "does not reason: no 'reasoning_parser' follows from its files, and the models file sets none"


def no_tools(reason: str | None) -> str:
    """What a model lacks that calls no tools, for this `reason`."""
    return f"calls no tools: {reason or _NO_PARSER}"


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a served model can do."""

    images: bool
    tools: bool
    reasoning: bool
    verbosity: bool
    """Whether its chat template takes it."""
    no_tools: str | None = None
    """Why it calls no tools; None: it has no parser of calls."""
    fetches_images: bool = False
    """Whether its workers may fetch images from URLs (vLLM's `allowed_media_domains`)."""
    efforts: Mapping[str, str | None] | None = None
    """For a model that does not speak harmony: the values of `reasoning.effort` that its chat template takes, each with
    the one that it is to the template, or None if it changes nothing. None: not known here."""
    harmony: bool | None = False
    """Whether it speaks gpt-oss's format: its prompt is made of messages, and it gives no log probabilities. None: not
    known here, so its worker refuses what it cannot do."""


def check_capabilities(
    request: Mapping[str, Any], model: Capabilities, names: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Raises InvalidRequest about the first field of a stored request that asks for more than the model can do.

    `names`: what the client called fields that are stored under another name.
    """
    for stored_as, what in _missing(request, model):
        where = names.get(stored_as, stored_as)
        message = f"Invalid '{where}': the model '{request['model']}' {what}."
        raise InvalidRequest(message, where, "unsupported_parameter")


def _missing(request: Mapping[str, Any], model: Capabilities) -> Iterable[tuple[str, str]]:
    """Yields the path of each field that asks for too much, and what the model lacks."""
    yield from _refused_images(list(images_of(request["input"])), model)
    if not model.tools and request["tools"] and request["tool_choice"] != "none":
        yield "tools", no_tools(model.no_tools)
    if not model.tools:
        sources = (i for i, item in enumerate(request["input"]) if item["type"] in TOOL_SOURCES and item["tools"])
        yield from ((f"input[{index}].tools", no_tools(model.no_tools)) for index in sources)
    reasoning = request["reasoning"] or {}
    if not model.reasoning and reasoning.get("effort") not in (None, "none"):
        yield "reasoning.effort", NO_REASONING
    elif not _takes_effort(reasoning.get("effort"), model):
        yield "reasoning.effort", f"takes {', '.join(model.efforts or ()) or 'no effort'}"
    if not model.verbosity and request["text"].get("verbosity") not in (None, "medium"):
        yield "text.verbosity", "has no verbosity"
    if model.harmony is not None:
        yield from _missing_in_harmony(request) if model.harmony else _harmony_only(request)


def _takes_effort(effort: str | None, model: Capabilities) -> bool:
    return effort is None or model.efforts is None or bool(model.harmony) or effort in model.efforts


def applied_reasoning(reasoning: Json | None, model: Capabilities) -> Json | None:
    """Returns `reasoning` of a stored request, which was checked, with the effort that its model heeds.

    An effort that is another one to the model becomes that one. One that changes nothing becomes null: clients send
    efforts by default, so it is no error, and the response shows what was applied.
    """
    if reasoning is None or model.efforts is None or model.harmony or not model.reasoning:
        return reasoning
    effort = reasoning["effort"]
    return {**reasoning, "effort": None if effort is None else model.efforts[effort]}


def leave_out_images(request: Mapping[str, Any], model: Capabilities) -> None:
    """Puts a text in place of each image of a stored request that the model does not take: of too many, the oldest."""
    images = [part for _, part in images_of(request["input"])]
    taken = f"at most {MAX_IMAGES} images" if model.images else "no images"
    text = f"[An image was left out here: the model '{request['model']}' takes {taken}.]"
    for part in images[:-MAX_IMAGES] if model.images else images:
        part.clear()
        part.update({"type": "input_text", "text": text})


def _refused_images(images: Sequence[tuple[str, Json]], model: Capabilities) -> Iterable[tuple[str, str]]:
    """`images`: the path of each, and its part."""
    if not model.images:
        yield from ((where, "takes no images") for where, _ in images)
    yield from ((where, f"takes at most {MAX_IMAGES} images in a request") for where, _ in images[MAX_IMAGES:])
    for where, image in images:
        if not image["image_url"].startswith("data:"):
            if not model.fetches_images:
                yield f"{where}.image_url", "takes images by data URL alone, or from hosts that the operator allows"
            elif image.get("detail") == "low":
                yield f"{where}.detail", "shows an image that it fetches as it is, not in 'low' detail"


def _harmony_only(request: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    for field in ("previous_input_messages", "enable_response_messages"):
        if request.get(field):
            yield field, "does not speak harmony"


def _missing_in_harmony(request: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    """Yields the fields that gpt-oss's format cannot express."""
    if (request["reasoning"] or {}).get("effort") not in (None, *HARMONY_EFFORTS):
        yield "reasoning.effort", f"reasons with {', '.join(HARMONY_EFFORTS)} effort alone"
    extra = request["extra"]
    if extra.get("skip_special_tokens") is False:
        yield "skip_special_tokens", "never shows its special tokens"
    if extra.get("thinking_token_budget") is not None:
        yield "thinking_token_budget", "has no budget of reasoning tokens"
    for name in extra.get("chat_template_kwargs") or {}:
        if name not in HARMONY_ARGS:
            yield f"chat_template_kwargs.{name}", f"knows {' and '.join(HARMONY_ARGS)} alone"
    if request["top_logprobs"]:
        yield "top_logprobs", "gives no log probabilities"
    elif LOGPROBS in request["include"]:
        yield f"include[{request['include'].index(LOGPROBS)}]", "gives no log probabilities"


def images_of(items: Sequence[Json]) -> Iterable[tuple[str, Json]]:
    """Yields the path of each image, and its part."""
    for index, item in enumerate(items):
        for field in ("content", "output"):
            parts = item.get(field)
            for part_index, part in enumerate(parts if isinstance(parts, list) else ()):
                if part.get("type") == "input_image":
                    yield f"input[{index}].{field}[{part_index}]", part
