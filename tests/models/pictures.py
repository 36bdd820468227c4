"""Pictures for the tiny vision model: one shape in one colour on a plain ground."""

from __future__ import annotations

import base64
import io
import random
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
SHAPES = ("circle", "square", "triangle")
GROUNDS = ((255, 255, 255), (0, 0, 0), (128, 128, 128), (225, 225, 225), (60, 60, 60))


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


def draw(picture: Picture, width: int = 80, height: int = 80, rng: random.Random | None = None) -> Image.Image:
    """The picture in RGB. `rng` varies ground, place, size and tone; without it the shape fills the middle of white."""
    ground = rng.choice(GROUNDS) if rng else GROUNDS[0]
    image = Image.new("RGB", (width, height), ground)
    side = min(width, height) * (rng.uniform(0.5, 0.95) if rng else 0.8)
    left = rng.uniform(0, width - side) if rng else (width - side) / 2
    top = rng.uniform(0, height - side) if rng else (height - side) / 2
    box = (left, top, left + side, top + side)
    tone = tuple(min(255, max(0, part + (rng.randint(-25, 25) if rng else 0))) for part in COLOURS[picture.colour])
    pen = ImageDraw.Draw(image)
    if picture.shape == "circle":
        pen.ellipse(box, fill=tone)
    elif picture.shape == "square":
        pen.rectangle(box, fill=tone)
    else:
        pen.polygon([(left + side / 2, top), (left, top + side), (left + side, top + side)], fill=tone)
    return image


def random_picture(rng: random.Random) -> Picture:
    return Picture(rng.choice(list(COLOURS)), rng.choice(SHAPES))


def encoded(image: Image.Image, form: str = "PNG") -> bytes:
    file = io.BytesIO()
    image.save(file, form)
    return file.getvalue()


def data_url(image: Image.Image, form: str = "PNG") -> str:
    """The image as `data:image/png;base64,...`."""
    return f"data:image/{form.lower()};base64,{base64.b64encode(encoded(image, form)).decode()}"
