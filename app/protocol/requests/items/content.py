"""The parts of a message's content, and of a tool's output."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag, model_validator

from app.protocol.requests.base import (
    RequestModel,
    TextOrList,
    check_no_nul,
    check_object_type,
    tag_of,
)
from app.protocol.requests.fields import MAX_PARTS, CacheTtl, Notes, SupportedValues
from app.protocol.requests.items.images import check_data_url
from app.protocol.requests.validation import refused
from app.protocol.types import Json

UNSUPPORTED_PARTS = frozenset({"input_file", "input_audio"})

_WEB = ("https://", "http://")


class CacheBreakpoint(RequestModel):
    """Where a cached prefix may end. A hint, kept nowhere: the engine's cache needs no marks."""

    mode: Literal["explicit"]
    ttl: CacheTtl | None = None


class InputText(RequestModel):
    """Text for the model."""

    type: Literal["input_text"]
    text: str
    prompt_cache_breakpoint: CacheBreakpoint | None = None

    def stored(self) -> Json:
        return {"type": "input_text", "text": self.text}


def _check_image_url(value: Any) -> Any:
    if not isinstance(value, str) or value.startswith(_WEB):
        return value
    if not value.startswith("data:"):
        raise refused("Invalid '{path}': expected an http(s) URL, or a data URL of an image.", "invalid_value")
    check_data_url(value)
    return value


class InputImage(RequestModel):
    """An image, for models that take images. With `detail: low` the model sees it at most 512 pixels wide and high."""

    type: Literal["input_image"]
    image_url: Annotated[str, BeforeValidator(_check_image_url), AfterValidator(check_no_nul)]
    detail: Literal["auto", "high", "original", "low"] | None = None
    file_id: Annotated[str | None, SupportedValues()] = None
    prompt_cache_breakpoint: CacheBreakpoint | None = None

    @model_validator(mode="after")
    def _check_detail(self) -> Self:
        if self.detail == "low" and self.image_url.startswith(_WEB):
            message = (
                "'{path}': an image at a URL is shown as it is, so 'low' is not supported for it. "
                "Send the image as a data URL, or leave 'detail' out."
            )
            raise refused(message, "unsupported_parameter", "detail")
        return self

    def stored(self) -> Json:
        return {"type": "input_image", "image_url": self.image_url, "detail": self.detail or "auto"}


class OutputText(RequestModel):
    """Text that a model wrote."""

    type: Literal["output_text", "input_text"]
    text: str
    annotations: Notes | None = None
    logprobs: Notes | None = None

    def stored(self) -> Json:
        return {
            "type": "output_text",
            "text": self.text,
            "annotations": self.annotations or [],
            "logprobs": self.logprobs or [],
        }


class Refusal(RequestModel):
    """A refusal that a model wrote."""

    type: Literal["refusal"]
    refusal: str


class SummaryText(RequestModel):
    type: Literal["summary_text"]
    text: str


class ReasoningText(RequestModel):
    """Open WebUI calls the parts of its reasoning `output_text`."""

    type: Literal["reasoning_text", "output_text"]
    text: str

    def stored(self) -> Json:
        return {"type": "reasoning_text", "text": self.text}


InputPart = Annotated[
    Annotated[InputText, Tag("<input_text>")] | Annotated[InputImage, Tag("<input_image>")],
    Discriminator(tag_of),
    BeforeValidator(check_object_type(("input_text", "input_image"), UNSUPPORTED_PARTS)),
]
OutputPart = Annotated[
    Annotated[OutputText, Tag("<output_text>")]
    | Annotated[OutputText, Tag("<input_text>")]
    | Annotated[Refusal, Tag("<refusal>")],
    Discriminator(tag_of),
    BeforeValidator(check_object_type(("output_text", "input_text", "refusal"))),
]
InputContent = TextOrList[str, Annotated[list[InputPart], Field(max_length=MAX_PARTS, fail_fast=True)]]
OutputContent = TextOrList[str, Annotated[list[OutputPart], Field(max_length=MAX_PARTS, fail_fast=True)]]
Summary = Annotated[
    list[Annotated[SummaryText, BeforeValidator(check_object_type(("summary_text",)))]],
    Field(max_length=MAX_PARTS, fail_fast=True),
]
Thoughts = Annotated[
    list[Annotated[ReasoningText, BeforeValidator(check_object_type(("reasoning_text", "output_text")))]],
    Field(max_length=MAX_PARTS, fail_fast=True),
]
