"""Images in data URLs, checked by their first bytes. No pixel is decoded here: the worker does that.

The four formats are those of OpenAI's API. Their headers are read here, not by an image library: libraries walk
through as many chunks as a file has, and this code runs on the API's event loop (imagesize 2.0.1 took 108 ms for a
made-up JPEG of 768 KiB, this module 0.1 ms; a request may have 100 images).
"""

from __future__ import annotations

import binascii
import re
import string
from collections.abc import Callable

from pydantic_core import PydanticCustomError

from app.protocol.requests.validation import refused

MAX_PIXELS = 2**25
"""The most pixels of an image: about 33 million, 100 MB when decoded."""
MAX_JPEG_SEGMENTS = 256
"""Segments before the size of a JPEG; cameras write about twenty."""

MAX_HEADER_CHARS = 2**20
"""Characters of base64 in which the header must end: the metadata that cameras write before it take far less."""

_DIGITS = (string.ascii_letters + string.digits + "+/").encode()
_HEAD = re.compile(r"data:image/(png|jpe?g|gif|webp)(?:;[\w=.-]{1,64}){0,4};base64,")
_EXPECTED = "a PNG, JPEG, GIF or WebP image"

Size = tuple[int, int]
"""Width and height in pixels."""


def unfolded(text: str) -> str:
    """Returns base64 in one line: `base64` and encoders of e-mails fold it, and others indent what they fold."""
    return "".join(text.split())


def check_data_url(url: str) -> None:
    """Raises an error for a validator unless `url` holds one of the four formats, in base64, of at most MAX_PIXELS."""
    head = _HEAD.match(url)
    if head is None:
        message = f"Invalid '{{path}}': expected a data URL of {_EXPECTED} in base64 ('data:image/png;base64,...')."
        raise refused(message, "unsupported_image_media_type")
    data = _beginning(url[head.end() :])
    if data is None:
        raise refused("Invalid '{path}': expected valid base64 after 'base64,'.", "invalid_base64_image")
    size = size_of(data)
    if size is None or 0 in size:
        raise refused(f"Invalid '{{path}}': the data are not {_EXPECTED}.", "invalid_image")
    width, height = size
    if width * height > MAX_PIXELS:
        message = f"Invalid '{{path}}': expected an image of at most {MAX_PIXELS} pixels, but got {width} x {height}."
        raise refused(message, "image_too_large")


def is_readable(url: str) -> bool:
    """Whether `check_data_url` accepts the URL."""
    try:
        check_data_url(url)
    except PydanticCustomError:
        return False
    return True


def _beginning(text: str) -> bytes | None:
    """The first bytes of a text in base64, which is checked to its end; None if it is not valid."""
    if len(text) % 4 or not text.isascii():
        return None
    digits = text.encode().removesuffix(b"=").removesuffix(b"=")
    return None if digits.translate(None, _DIGITS) else binascii.a2b_base64(text[:MAX_HEADER_CHARS])


def size_of(data: bytes) -> Size | None:
    """The size of an image by its header; None if it has none of the four formats."""
    read = next((read for magic, _, read in _FORMATS if data.startswith(magic)), None)
    try:
        return None if read is None else read(data)
    except IndexError:  # the header is cut
        return None


def media_type_of(data: bytes) -> str | None:
    """The type of an image by its first bytes; None if it has none of the four formats."""
    return next((media_type for magic, media_type, _ in _FORMATS if data.startswith(magic)), None)


def _png(data: bytes) -> Size | None:
    return (_big(data, 16, 4), _big(data, 20, 4)) if data[12:16] == b"IHDR" else None


def _gif(data: bytes) -> Size:
    return _little(data, 6, 2), _little(data, 8, 2)


def _webp(data: bytes) -> Size | None:
    kind = data[8:16]
    if kind == b"WEBPVP8X":
        return _little(data, 24, 3) + 1, _little(data, 27, 3) + 1
    if kind == b"WEBPVP8L":
        bits = _little(data, 21, 4)
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if kind == b"WEBPVP8 ":
        return _little(data, 26, 2) & 0x3FFF, _little(data, 28, 2) & 0x3FFF
    return None


def _jpeg(data: bytes) -> Size | None:
    """The size is in the first frame header (SOF). Segments before it are skipped by their lengths."""
    place = 2
    for _ in range(MAX_JPEG_SEGMENTS):
        if data[place] != 0xFF:
            return None
        marker = data[place + 1]
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            return _big(data, place + 7, 2), _big(data, place + 5, 2)
        place += 2 + _big(data, place + 2, 2)
    return None


def _big(data: bytes, place: int, count: int) -> int:
    return int.from_bytes(_bytes(data, place, count), "big")


def _little(data: bytes, place: int, count: int) -> int:
    return int.from_bytes(_bytes(data, place, count), "little")


def _bytes(data: bytes, place: int, count: int) -> bytes:
    """Raises IndexError if the data end before."""
    if place + count > len(data):
        raise IndexError(place)
    return data[place : place + count]


_FORMATS: tuple[tuple[bytes, str, Callable[[bytes], Size | None]], ...] = (
    (b"\x89PNG\r\n\x1a\n", "image/png", _png),
    (b"\xff\xd8\xff", "image/jpeg", _jpeg),
    (b"GIF87a", "image/gif", _gif),
    (b"GIF89a", "image/gif", _gif),
    (b"RIFF", "image/webp", _webp),
)
