"""`python -m tests.models.gpt_oss_training OUT`."""

from __future__ import annotations

from tests.models.gpt_oss_training.train import run

run()
