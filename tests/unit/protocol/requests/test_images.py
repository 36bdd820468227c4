"""Images are checked by their first bytes, before anything is stored."""

from __future__ import annotations

import base64
import io
import struct
from dataclasses import replace
from typing import Any

import pytest
from PIL import Image

from app.protocol.errors import InvalidRequest
from app.protocol.requests.bodies.request import checked_request
from app.protocol.requests.capabilities import MAX_IMAGES, Capabilities, check_capabilities, leave_out_images
from app.protocol.requests.items.images import MAX_HEADER_CHARS, MAX_JPEG_SEGMENTS, MAX_PIXELS, is_readable, size_of
from tests.support.refusals import PNG, data_url, png_of

FIELD = "input[0].content[1].image_url"
SEES = Capabilities(images=True, tools=True, reasoning=True, verbosity=True)


def encoded(form: str, size: tuple[int, int] = (30, 20), **options: Any) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", size, (200, 30, 30)).save(file, form, **options)
    return file.getvalue()


def asking(*urls: str) -> dict[str, Any]:
    images = [{"type": "input_image", "image_url": each} for each in urls]
    content = [{"type": "input_text", "text": "What is it?"}, *images]
    return {"model": "m", "input": [{"role": "user", "content": content}]}


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
    assert is_readable(data_url(data, form.lower()))


def test_a_url_is_of_the_web_or_has_data_with_any_parameters() -> None:
    for head in ("data:image/jpg;base64,", "data:image/png;name=a.png;base64,"):
        checked_request(asking(head + base64.b64encode(PNG).decode()))
        folded = checked_request(asking(head + base64.encodebytes(PNG).decode().replace("\n", "\r\n\t ")))
        assert "\\t" not in str(folded.fields.model_dump()["input"])
    for url in ("https://example.com/a.bmp", "http://example.com/"):
        checked_request(asking(url))


def test_the_largest_image_is_accepted_and_the_refusal_of_a_larger_one_says_the_bound() -> None:
    checked_request(asking(data_url(png_of(MAX_PIXELS, 1))))
    with pytest.raises(InvalidRequest, match=f"at most {MAX_PIXELS} pixels, but got {MAX_PIXELS + 1} x 1"):
        checked_request(asking(data_url(png_of(MAX_PIXELS + 1, 1))))


def test_a_size_behind_endless_segments_or_megabytes_of_metadata_is_given_up() -> None:
    data, comment, block = encoded("JPEG"), jpeg_segment(0xFE, b""), jpeg_segment(0xFE, bytes(65_000))
    assert size_of(data[:2] + comment * (MAX_JPEG_SEGMENTS // 2) + data[2:]) == (30, 20)
    assert size_of(data[:2] + comment * MAX_JPEG_SEGMENTS + data[2:]) is None
    assert is_readable(data_url(data[:2] + block * 5 + data[2:], "jpeg"))
    assert not is_readable(data_url(data[:2] + block * (MAX_HEADER_CHARS // 65_000) + data[2:], "jpeg"))


def test_a_request_has_at_most_so_many_images() -> None:
    full = [data_url(PNG)] * MAX_IMAGES
    check_capabilities(stored(*full), SEES)
    with pytest.raises(InvalidRequest, match=f"takes at most {MAX_IMAGES} images in a request") as caught:
        check_capabilities(stored(*full, data_url(PNG)), SEES)
    assert caught.value.error.param == f"input[0].content[{MAX_IMAGES + 1}]"


def test_a_model_whose_workers_fetch_nothing_takes_no_url_of_the_web() -> None:
    with pytest.raises(InvalidRequest, match="takes images by data URL alone") as caught:
        check_capabilities(stored("https://example.com/a.png"), SEES)
    assert caught.value.error.param == FIELD


def test_a_model_shows_an_image_that_its_worker_fetches_as_it_is() -> None:
    fetches = replace(SEES, fetches_images=True)
    request = stored("https://example.com/a.png")
    check_capabilities(request, fetches)
    request["input"][0]["content"][1]["detail"] = "low"
    with pytest.raises(InvalidRequest, match="not in 'low' detail") as caught:
        check_capabilities(request, fetches)
    assert caught.value.error.param == FIELD.replace("image_url", "detail")


def stored(*urls: str) -> dict[str, Any]:
    return checked_request(asking(*urls)).stored("resp_1", {})


def test_of_too_many_images_the_oldest_are_left_out_of_a_session() -> None:
    request = stored(*[data_url(PNG)] * (MAX_IMAGES + 1))
    leave_out_images(request, SEES)
    _, first, *others = request["input"][0]["content"]
    said = "[An image was left out here: the model 'm' takes at most 100 images.]"
    assert first == {"type": "input_text", "text": said}
    assert {part["type"] for part in others} == {"input_image"}
