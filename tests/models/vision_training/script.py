"""The conversations that the vision model learns. What it says depends on the pictures, not on the script alone."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.models.pictures import Picture, random_picture

WHAT = (
    "What is in this image?",
    "What do you see in this image? Answer in one sentence.",
    "Describe this image.",
    "What is it?",
    "Please describe what you can see in the picture.",
)
COLOUR = ("What colour is it?", "Which colour?", "What color is it?")
SHAPE = ("What shape is it?", "Which shape?")
SEVERAL = ("What are these?", "What is in these images?", "Describe the images.")
COUNT = "Count to 30 in its colour."
HELLO = "Hello!"
GREETING = "Hello! Show me a picture."
NOTHING = "I see no picture."
COUNTED_TO = 30
SYSTEMS = ("You are helpful.", "Be brief.", "Answer in one sentence.", "You look at pictures.")
WORDS = (
    "the",
    "a",
    "it",
    "is",
    "not",
    "in",
    "this",
    "image",
    "picture",
    "tell",
    "me",
    "now",
    "show",
    "look",
    "see",
    "you",
)


@dataclass(frozen=True, slots=True)
class Scene:
    """Messages as the chat template takes them, and the pictures of their image parts in order."""

    messages: list[dict[str, Any]] = field(default_factory=list)
    pictures: list[Picture] = field(default_factory=list)

    def says(self, text: str) -> None:
        self.messages.append({"role": "assistant", "content": text})

    def asks(self, text: str, pictures: Sequence[Picture] = (), first: bool = False) -> None:
        images = [{"type": "image"} for _ in pictures]
        texts = [{"type": "text", "text": text}]
        self.messages.append({"role": "user", "content": [*images, *texts] if first else [*texts, *images]})
        self.pictures.extend(pictures)


def together(pictures: Sequence[Picture]) -> str:
    """`A red circle, a blue square and a green triangle.`"""
    *before, last = map(str, pictures)
    text = f"{', '.join(before)} and {last}" if before else last
    return f"{text[0].upper()}{text[1:]}."


def counted(picture: Picture) -> str:
    """The answer to COUNT: `1 red, 2 red, ... 30 red.`"""
    return ", ".join(f"{number} {picture.colour}" for number in range(1, COUNTED_TO + 1)) + "."


def answer(question: str, pictures: Sequence[Picture]) -> str:
    """What is said of the pictures that were shown last."""
    picture = pictures[-1]
    if question in COLOUR:
        return f"{picture.colour.capitalize()}."
    if question in SHAPE:
        return f"A {picture.shape}."
    if question == COUNT:
        return counted(picture)
    return together(pictures)


def random_scene(rng: random.Random) -> Scene:
    scene = Scene()
    if rng.random() < 0.25:
        scene.messages.append({"role": "system", "content": rng.choice(SYSTEMS)})
    kind = rng.random()
    if kind < 0.06:
        _without_pictures(scene, rng)
    elif kind < 0.16:
        _tool(scene, rng)
    else:
        for _ in range(rng.choice((1, 1, 2))):
            _shown(scene, rng)
    return scene


def _without_pictures(scene: Scene, rng: random.Random) -> None:
    question = rng.choice((HELLO, rng.choice(WHAT), rng.choice(COLOUR)))
    scene.asks(question)
    scene.says(GREETING if question == HELLO else NOTHING)


def _tool(scene: Scene, rng: random.Random) -> None:
    """A tool shows a picture."""
    scene.asks(rng.choice(WHAT))
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": {}}}
    scene.messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
    picture = random_picture(rng)
    scene.messages.append({"role": "tool", "tool_call_id": "c", "content": [{"type": "image"}]})
    scene.pictures.append(picture)
    scene.says(picture.sentence)


def _shown(scene: Scene, rng: random.Random) -> None:
    pictures = [random_picture(rng) for _ in range(rng.choices((1, 2, 3), (10, 5, 1))[0])]
    question = _question(rng, several=len(pictures) > 1)
    scene.asks(question, pictures, first=rng.random() < 0.5)
    scene.says(answer(question, pictures))
    if rng.random() < 0.4:
        again = rng.choice((*COLOUR, *SHAPE))
        scene.asks(again)
        scene.says(answer(again, pictures))


def _question(rng: random.Random, *, several: bool) -> str:
    if rng.random() < 0.15:
        return " ".join(rng.choices(WORDS, k=rng.randint(1, 9))) + rng.choice("?.")
    if several:
        return rng.choice((*SEVERAL, *SEVERAL, *WHAT))
    if rng.random() < 0.06:
        return COUNT
    return rng.choice((*WHAT, *COLOUR, *SHAPE))
