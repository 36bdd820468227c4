"""`python -m config.demo_training OUT`."""

from __future__ import annotations

from config.demo_training.train import run

run()
