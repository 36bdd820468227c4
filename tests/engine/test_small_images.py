"""`detail: low` makes an image small before the model's processor reads it."""

from __future__ import annotations

import base64
import io
from typing import Any

import pytest
from PIL import Image

from workers.engine.vllm.small_images import LOW_SIDE, small


def data_url(image: Image.Image, kind: str, **options: Any) -> str:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return f"data:image/{kind.lower()};base64,{base64.b64encode(file.getvalue()).decode()}"


def opened(url: str) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2])))


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "WEBP"])
def test_the_longer_side_is_bounded_and_the_colour_stays(kind: str) -> None:
    made = opened(small(data_url(Image.new("RGB", (1600, 800), (200, 30, 30)), kind)))
    assert made.size == (LOW_SIDE, LOW_SIDE // 2)
    found = made.convert("RGB").getpixel((10, 10))
    assert isinstance(found, tuple)
    assert all(abs(mine - sent) < 8 for mine, sent in zip(found, (200, 30, 30), strict=True))


def test_an_image_that_is_small_stays_as_it_is() -> None:
    url = data_url(Image.new("RGB", (LOW_SIDE, 20)), "PNG")
    assert small(url) == url


def test_what_is_transparent_stays_so() -> None:
    made = opened(small(data_url(Image.new("RGBA", (1024, 1024), (0, 0, 0, 0)), "PNG")))
    assert made.mode == "RGBA"
    assert made.getpixel((0, 0)) == (0, 0, 0, 0)


def test_a_photo_that_lies_on_its_side_is_turned_as_the_processor_would_turn_it() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    made = opened(small(data_url(Image.new("RGB", (2000, 1000)), "JPEG", exif=exif)))
    assert made.size == (LOW_SIDE // 2, LOW_SIDE)


def test_a_damaged_image_is_an_error_of_the_decoder() -> None:
    data = base64.b64decode(data_url(Image.effect_noise((1600, 800), 50), "PNG").partition(",")[2])
    cut = base64.b64encode(data[: len(data) // 2]).decode()
    with pytest.raises(OSError):
        small(f"data:image/png;base64,{cut}")


@pytest.mark.vllm
@pytest.mark.filterwarnings("ignore")  # vLLM's own warnings, at import
def test_the_processor_is_given_a_small_image_only_if_it_is_asked_for() -> None:
    from workers.engine.vllm.rendering import _own

    url = data_url(Image.new("RGB", (1600, 800)), "PNG")
    for detail, shown in (("low", small(url)), ("high", url)):
        part = {"type": "image_url", "image_url": {"url": url, "detail": detail}}
        assert _own({"role": "user", "content": [part]})["content"][0]["image_url"]["url"] == shown
