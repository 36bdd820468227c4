"""Pictures for the tiny vision model: one shape in one colour on a plain ground."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass

from PIL import Image, ImageDraw

COLOURS = {
    "red": (220, 30, 30),
    "green": (30, 160, 50),
    "blue": (40, 70, 220),
    "yellow": (240, 220, 40),
    "purple": (140, 40, 170),
    "orange": (245, 140, 20),
}
COUNT = "Count to 30 in its colour."
HELLO = "Hello!"
GREETING = "Hello! Show me a picture."
"""What the model says to HELLO. To COUNT it answers `1 red, 2 red, ... 30 red.`"""


@dataclass(frozen=True, slots=True)
class Picture:
    """What can be seen: `a red circle`."""

    colour: str
    shape: str

    def __str__(self) -> str:
        return f"{'an' if self.colour == 'orange' else 'a'} {self.colour} {self.shape}"

    @property
    def sentence(self) -> str:
        text = str(self)
        return f"{text[0].upper()}{text[1:]}."


def draw(picture: Picture, width: int = 80, height: int = 80) -> Image.Image:
    """The picture in RGB: the shape fills the middle of a white ground."""
    image = Image.new("RGB", (width, height), (255, 255, 255))
    side = min(width, height) * 0.8
    left, top = (width - side) / 2, (height - side) / 2
    box, tone, pen = (left, top, left + side, top + side), COLOURS[picture.colour], ImageDraw.Draw(image)
    if picture.shape == "circle":
        pen.ellipse(box, fill=tone)
    elif picture.shape == "square":
        pen.rectangle(box, fill=tone)
    else:
        pen.polygon([(left + side / 2, top), (left, top + side), (left + side, top + side)], fill=tone)
    return image


def data_url(image: Image.Image, form: str = "PNG") -> str:
    """The image as `data:image/png;base64,...`."""
    file = io.BytesIO()
    image.save(file, form)
    return f"data:image/{form.lower()};base64,{base64.b64encode(file.getvalue()).decode()}"
