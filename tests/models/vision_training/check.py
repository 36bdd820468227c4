"""Checks that a model sees: scenes with pictures that it was not trained on, one forward pass each (teacher-forced)."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import torch

from tests.models.vision_training.examples import IGNORED, batch, example
from tests.models.vision_training.script import random_scene


@dataclass(frozen=True, slots=True)
class Report:
    scenes: int
    exact: int
    """Scenes in which every token was right."""
    wrong: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.exact}/{self.scenes} exact" + (f"; wrong: {'; '.join(self.wrong[:6])}" if self.wrong else "")


def check(model: Any, processor: Any, scenes: int, seed: int) -> Report:
    """`scenes` random scenes drawn from `seed`."""
    rng = random.Random(f"check-{seed}")
    wrong = []
    with torch.no_grad():
        for _ in range(scenes):
            scene = random_scene(rng)
            arguments, labels = batch([example(processor, scene, rng)])
            expected, said = labels[0, 1:], model(**arguments).logits[0, :-1].argmax(-1)
            learnt = expected != IGNORED
            if not bool((said[learnt] == expected[learnt]).all()):
                text = processor.tokenizer.decode(said[learnt])
                wrong.append(f"{scene.pictures and ', '.join(map(str, scene.pictures))} -> {text[:80]!r}")
    return Report(scenes, scenes - len(wrong), tuple(wrong))
