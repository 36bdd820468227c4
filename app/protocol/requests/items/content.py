"""The parts of a message's content, and of a tool's output."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from app.protocol.requests.base import OR_ABSENT, ByType, Part, TextOrList, check_no_nul
from app.protocol.requests.fields import MAX_PARTS, Notes
from app.protocol.requests.items.images import check_data_url, unfolded
from app.protocol.requests.validation import refused
from app.protocol.types import Json

UNSUPPORTED_PARTS = frozenset({"input_audio"})
MAX_NAME_CHARS = 512

_WEB = ("https://", "http://")


class InputText(Part):
    """Text for the model."""

    type: Literal["input_text"]
    text: str

    def stored(self) -> Json:
        return {"type": "input_text", "text": self.text}


def _check_image_url(value: Any) -> Any:
    if not isinstance(value, str) or value.startswith(_WEB):
        return value
    if not value.startswith("data:"):
        raise refused("Invalid '{path}': expected an http(s) URL, or a data URL of an image.", "invalid_value")
    url = unfolded(value)
    check_data_url(url)
    return url


ImageUrl = Annotated[str, BeforeValidator(_check_image_url), AfterValidator(check_no_nul)]


def _check_file_url(url: str) -> str:
    if not url.startswith(_WEB):
        raise refused("Invalid '{path}': expected an http(s) URL.", "invalid_value")
    return check_no_nul(url)


FileUrl = Annotated[str, AfterValidator(_check_file_url)]
FileId = Annotated[str, Field(min_length=1, max_length=128), AfterValidator(check_no_nul)]


class InputImage(Part):
    """An image, for models that take images: by URL, or a file. With both, the URL has what was read of the file.

    With `detail: low` the model sees it at most 512 pixels wide and high.
    """

    type: Literal["input_image"]
    image_url: ImageUrl | None = None
    file_id: FileId | None = None
    detail: Literal["auto", "high", "original", "low"] | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.image_url is None and self.file_id is None:
            message = "Missing required parameter: '{path}'. An image has an 'image_url', or a 'file_id'."
            raise refused(message, "missing_required_parameter", "image_url")
        return self

    def stored(self) -> Json:
        named = {"image_url": self.image_url, "file_id": self.file_id}
        sent = {name: value for name, value in named.items() if value is not None}
        return {"type": "input_image", **sent, "detail": self.detail or "auto"}


class InputFile(Part):
    """A file whose text the model reads: one that was uploaded, its bytes in base64, or one at a URL.

    With an id and bytes, its bytes are what was sent. `text` is what was read of it: items that are sent back have it,
    and their files are not read again.
    """

    type: Literal["input_file"]
    file_id: Annotated[FileId | None, OR_ABSENT] = None
    file_data: Annotated[str | None, Field(min_length=1), OR_ABSENT] = None
    file_url: Annotated[FileUrl | None, OR_ABSENT] = None
    filename: Annotated[str | None, Field(min_length=1, max_length=MAX_NAME_CHARS), OR_ABSENT] = None
    text: Annotated[str | None, OR_ABSENT] = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        others = self.file_id is not None or self.file_data is not None
        if self.text is None and self.file_url is None and not others:
            message = "Missing required parameter: '{path}'. A file has a 'file_id', 'file_data', or a 'file_url'."
            raise refused(message, "missing_required_parameter", "file_id")
        if self.text is None and self.file_url is not None and others:
            message = "Invalid '{path}': a file has a 'file_url', or a 'file_id' or 'file_data', and not both."
            raise refused(message, "mutually_exclusive_parameters", "file_url")
        if self.file_id is None and self.file_url is None and self.filename is None:
            message = "Missing required parameter: '{path}'. Models are told the name of a file."
            raise refused(message, "missing_required_parameter", "filename")
        return self


class OutputText(Part):
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


class Refusal(Part):
    """A refusal that a model wrote."""

    type: Literal["refusal"]
    refusal: str


class SummaryText(Part):
    type: Literal["summary_text"]
    text: str


class ReasoningText(Part):
    """Open WebUI calls the parts of its reasoning `output_text`."""

    type: Literal["reasoning_text", "output_text"]
    text: str

    def stored(self) -> Json:
        return {"type": "reasoning_text", "text": self.text}


InputPart = Annotated[InputText | InputImage | InputFile, ByType(UNSUPPORTED_PARTS)]
OutputPart = Annotated[OutputText | Refusal, ByType()]
InputContent = TextOrList[str, Annotated[list[InputPart], Field(max_length=MAX_PARTS, fail_fast=True)]]
OutputContent = TextOrList[str, Annotated[list[OutputPart], Field(max_length=MAX_PARTS, fail_fast=True)]]
Summary = Annotated[list[Annotated[SummaryText, ByType()]], Field(max_length=MAX_PARTS, fail_fast=True)]
Thoughts = Annotated[list[Annotated[ReasoningText, ByType()]], Field(max_length=MAX_PARTS, fail_fast=True)]
