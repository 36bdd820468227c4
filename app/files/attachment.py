"""A part of an item that is a file: where it is, and what it becomes."""

from __future__ import annotations

import base64
import binascii
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from pydantic_core import PydanticCustomError

from app.fetching.body import codec_of
from app.fetching.fetched import Fetched
from app.files.documents import Document
from app.files.downloads import name_of
from app.files.errors import refused
from app.protocol.errors import InvalidRequest
from app.protocol.requests.bodies.files import FilePurpose
from app.protocol.requests.items.images import check_data_url, media_type_of, unfolded
from app.protocol.types import Json

Place = tuple[int, str, int]
"""The item's index, its field, the part's index in it."""


class Key(NamedTuple):
    """A file that is read once, however many parts name it."""

    is_image: bool
    source: str
    value: str


@dataclass(frozen=True, slots=True)
class Attachment:
    """A part that is a file."""

    place: Place
    part: Json
    param: str

    @property
    def key(self) -> Key:
        return Key(self.is_image, self.source, self.part[self.source])

    @property
    def where(self) -> str:
        index, field, part = self.place
        return f"{self.param}[{index}].{field}[{part}]"

    @property
    def is_image(self) -> bool:
        return bool(self.part["type"] == "input_image")

    @property
    def purposes(self) -> tuple[FilePurpose, ...]:
        """Purposes that an uploaded file may have."""
        return ("user_data", "vision") if self.is_image else ("user_data",)

    @property
    def source(self) -> str:
        """The field that says where the file is."""
        fields = ("image_url", "file_id") if self.is_image else ("file_data", "file_id", "file_url")
        return next(field for field in fields if field in self.part)

    @property
    def source_where(self) -> str:
        return f"{self.where}.{self.source}"

    def stored(self, document: Document, read: str) -> Json:
        """Returns the part with what was read. `file_data` is not kept."""
        if self.is_image:
            return {**self.part, "image_url": read}
        kept = {name: value for name, value in self.part.items() if name != "file_data"}
        return {**kept, "filename": self.part.get("filename") or document.name, "text": read}


def document_of(found: Fetched, attachment: Attachment) -> Document:
    """The file at the part's URL."""
    read = partial(beginning, found.body)
    return Document(name_of(found), len(found.body), read, attachment.source_where, codec_of(found.content_type))


def expected_bytes(file: Document, attachment: Attachment) -> int:
    """The bytes that a file that is no PDF will bring in."""
    return file.size * 4 // 3 + 100 if attachment.is_image else file.size


def replaced(items: Sequence[Json], made: Mapping[Place, Json]) -> list[Json]:
    """Returns the items with these parts in place of those that were there."""
    all_items = list(items)
    for (index, field, place), part in made.items():
        item = all_items[index]
        all_items[index] = {**item, field: [*item[field][:place], part, *item[field][place + 1 :]]}
    return all_items


def image_url(body: bytes, where: str) -> str:
    """Returns the picture as a data URL. Raises InvalidRequest for what is none."""
    kind = media_type_of(body)
    url = f"data:{kind or 'image/png'};base64,{base64.b64encode(body).decode()}"
    try:
        check_data_url(url)
    except PydanticCustomError as error:
        context = error.context or {}
        raise InvalidRequest(context["message"].replace("{path}", where), where, context["code"]) from None
    return url


def data_in(sent: str, where: str) -> bytes:
    """Returns the bytes of a data URL, or of base64 alone. Raises InvalidRequest."""
    head, comma, rest = sent.partition(",")
    is_url = sent[:5].lower() == "data:"
    if is_url and not (comma and head.lower().endswith(";base64")):
        raise refused(where, "invalid_value", "expected a data URL in base64 ('data:application/pdf;base64,...')")
    try:
        return base64.b64decode(unfolded(rest if is_url else sent), validate=True)
    except (binascii.Error, ValueError):
        raise refused(where, "invalid_base64", "expected valid base64, as a data URL or alone") from None


async def beginning(body: bytes, stop: int) -> AsyncGenerator[bytes, None]:
    """Reads a body that is in memory as a stored file is read: up to `stop`."""
    yield body[:stop]
