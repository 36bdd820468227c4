"""Images are checked by their first bytes, before anything is stored."""

from __future__ import annotations

import base64
import io
import struct
from typing import Any

import pytest
from PIL import Image

from app.protocol.errors import InvalidRequest
from app.protocol.requests.bodies.request import checked_request
from app.protocol.requests.capabilities import MAX_IMAGES, Capabilities, check_capabilities
from app.protocol.requests.items.images import MAX_HEADER_CHARS, MAX_JPEG_SEGMENTS, MAX_PIXELS, is_readable, size_of

FIELD = "input[0].content[1].image_url"
SEES = Capabilities(images=True, tools=True, reasoning=True, verbosity=True)


def encoded(form: str, size: tuple[int, int] = (30, 20), **options: Any) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", size, (200, 30, 30)).save(file, form, **options)
    return file.getvalue()


def url(data: bytes, kind: str = "png") -> str:
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


def asking(*urls: str) -> dict[str, Any]:
    images = [{"type": "input_image", "image_url": each} for each in urls]
    content = [{"type": "input_text", "text": "What is it?"}, *images]
    return {"model": "m", "input": [{"role": "user", "content": content}]}


def refusal(image_url: str) -> tuple[str | None, str | None]:
    with pytest.raises(InvalidRequest) as caught:
        checked_request(asking(image_url))
    return caught.value.error.param, caught.value.error.code


PNG = encoded("PNG")


def png_of(width: int, height: int) -> bytes:
    """A small file that says that it is large."""
    return PNG[:16] + struct.pack(">II", width, height) + PNG[24:]


def jpeg_segment(marker: int, data: bytes) -> bytes:
    return bytes([0xFF, marker]) + struct.pack(">H", len(data) + 2) + data


@pytest.mark.parametrize(
    ("form", "options"),
    [
        ("PNG", {}),
        ("GIF", {}),
        ("JPEG", {}),
        ("JPEG", {"progressive": True}),
        ("JPEG", {"exif": b"Exif\0\0" + bytes(60_000)}),
        ("WEBP", {}),
        ("WEBP", {"lossless": True}),
        ("WEBP", {"exif": b"Exif\0\0" + bytes(20)}),
    ],
)
def test_the_size_is_read_from_the_header_of_every_format(form: str, options: dict[str, Any]) -> None:
    data = encoded(form, (313, 77), **options)
    assert size_of(data) == (313, 77)
    assert is_readable(url(data, form.lower()))


@pytest.mark.parametrize("head", ["data:image/jpg;base64,", "data:image/png;name=a.png;base64,"])
def test_a_data_url_may_have_parameters_and_an_old_name(head: str) -> None:
    checked_request(asking(head + base64.b64encode(PNG).decode()))


@pytest.mark.parametrize("image_url", ["https://example.com/a.bmp", "http://example.com/"])
def test_a_url_of_the_web_is_not_looked_at_here(image_url: str) -> None:
    checked_request(asking(image_url))


@pytest.mark.parametrize(
    ("image_url", "code"),
    [
        ("data:image/png,hello", "unsupported_image_media_type"),
        ("data:image/png;base64", "unsupported_image_media_type"),
        ("data:text/plain;base64,aGVsbG8=", "unsupported_image_media_type"),
        (url(encoded("BMP"), "bmp"), "unsupported_image_media_type"),
        ("data:image/svg+xml;base64,PHN2Zy8+", "unsupported_image_media_type"),
        ("data:image/png;base64,not base64", "invalid_base64_image"),
        ("data:image/png;base64,aGk", "invalid_base64_image"),
        ("data:image/png;base64,a=k=", "invalid_base64_image"),
        ("data:image/png;base64,äaaa", "invalid_base64_image"),
        (url(PNG) + "\n", "invalid_base64_image"),
        ("data:image/png;base64,", "invalid_image"),
        (url(b"hello"), "invalid_image"),
        (url(encoded("BMP")), "invalid_image"),
        (url(encoded("TIFF")), "invalid_image"),
        (url(PNG[:20]), "invalid_image"),
        (url(png_of(0, 7)), "invalid_image"),
        (url(b"RIFF....WAVEfmt "), "invalid_image"),
        (url(b"\xff\xd8\xff\xe0" + bytes(50)), "invalid_image"),
        (url(png_of(MAX_PIXELS, 2)), "image_too_large"),
        (url(png_of(2**31, 2**31)), "image_too_large"),
    ],
)
def test_what_is_no_image_is_refused_by_its_field(image_url: str, code: str) -> None:
    assert refusal(image_url) == (FIELD, code)


def test_the_largest_image_is_accepted_and_the_refusal_of_a_larger_one_says_the_bound() -> None:
    checked_request(asking(url(png_of(MAX_PIXELS, 1))))
    with pytest.raises(InvalidRequest, match=f"at most {MAX_PIXELS} pixels, but got {MAX_PIXELS + 1} x 1"):
        checked_request(asking(url(png_of(MAX_PIXELS + 1, 1))))


def test_a_jpeg_of_endless_segments_is_given_up() -> None:
    data, comment = encoded("JPEG"), jpeg_segment(0xFE, b"")
    assert size_of(data[:2] + comment * (MAX_JPEG_SEGMENTS // 2) + data[2:]) == (30, 20)
    assert size_of(data[:2] + comment * MAX_JPEG_SEGMENTS + data[2:]) is None


def test_a_size_behind_megabytes_of_metadata_is_not_looked_for() -> None:
    data, block = encoded("JPEG"), jpeg_segment(0xFE, bytes(65_000))
    assert is_readable(url(data[:2] + block * 5 + data[2:], "jpeg"))
    assert not is_readable(url(data[:2] + block * (MAX_HEADER_CHARS // 65_000) + data[2:], "jpeg"))


def test_a_request_has_at_most_so_many_images() -> None:
    full = [url(PNG)] * MAX_IMAGES
    check_capabilities(stored(*full), SEES)
    with pytest.raises(InvalidRequest, match=f"takes at most {MAX_IMAGES} images in a request") as caught:
        check_capabilities(stored(*full, url(PNG)), SEES)
    assert caught.value.error.param == f"input[0].content[{MAX_IMAGES + 1}]"


def test_a_model_whose_workers_fetch_nothing_takes_no_url_of_the_web() -> None:
    with pytest.raises(InvalidRequest, match="takes images by data URL alone") as caught:
        check_capabilities(stored("https://example.com/a.png"), SEES)
    assert caught.value.error.param == FIELD


def stored(*urls: str) -> dict[str, Any]:
    return checked_request(asking(*urls)).stored("resp_1", {})
