"""`python -m tests.models.vision_training OUT`."""

from __future__ import annotations

from tests.models.vision_training.train import run

run()
