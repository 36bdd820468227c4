"""`python -m tests.models.demo OUT`."""

from __future__ import annotations

from tests.models.demo.train import run

run()
