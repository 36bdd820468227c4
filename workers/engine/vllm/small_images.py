"""`detail: low`: an image is made small before the model's processor reads it, and takes fewer tokens of the prompt."""

from __future__ import annotations

import base64
import io

from PIL import Image, ImageOps

LOW_SIDE = 512
"""Pixels of the longer side, as in OpenAI's API."""


def small(url: str) -> str:
    """The image of a data URL in base64, with no side above LOW_SIDE, as a data URL; the same URL if it is small.

    Raises what the decoder raises for an image that is damaged. Blocks for as long as decoding takes.
    """
    with Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))) as image:
        if max(image.size) <= LOW_SIDE:
            return url
        image.draft(None, (LOW_SIDE, LOW_SIDE))  # a JPEG is decoded at a smaller scale at once
        made = ImageOps.exif_transpose(image).convert("RGBA" if image.has_transparency_data else "RGB")
    made.thumbnail((LOW_SIDE, LOW_SIDE))
    file = io.BytesIO()
    made.save(file, "PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def can_be_read(url: str) -> bool:
    """Whether the image of a data URL in base64 can be decoded. Blocks for as long as that takes."""
    try:
        with Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))) as image:
            image.load()
    except Exception:  # whatever a decoder raises
        return False
    return True
