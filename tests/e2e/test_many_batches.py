"""The long form of `test_batches.py`: thousands of lines, on vLLM."""

from __future__ import annotations

import pytest

from tests.e2e.acceptance.installed import accept

pytestmark = [pytest.mark.long, pytest.mark.vllm]


def test_thousands_of_lines_on_vllm_while_a_worker_is_killed() -> None:
    accept("demo", lines=2000, windowed=200, tell=print)
