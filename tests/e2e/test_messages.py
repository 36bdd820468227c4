"""Messages on vLLM: the page's examples, and a second turn from the prefix cache."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import pytest

from config.settings import CHECKOUT
from tests.support.longhaul import Longhaul

pytestmark = pytest.mark.vllm

PAGE = (CHECKOUT / "docs" / "messages.md").read_text(encoding="utf-8")


def test_the_examples_of_the_page_run(longhaul: Longhaul) -> None:
    examples = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert examples
    for code in examples:
        program = [sys.executable, "-c", code.replace("http://127.0.0.1:8000", longhaul.url)]
        assert subprocess.run(program, check=True, capture_output=True).stdout.strip()


def test_a_second_turn_comes_from_the_prefix_cache(longhaul: Longhaul) -> None:
    asked: dict[str, Any] = {
        "model": "longhaul-demo",
        "max_tokens": 32,
        "system": "You are a helper of few words. " * 60,
    }
    first = {"role": "user", "content": "My name is Ada."}
    with longhaul.http() as http:
        answer = http.post("/v1/messages", json={**asked, "messages": [first]}).raise_for_status().json()
        said = {"role": "assistant", "content": answer["content"]}
        turns = [first, said, {"role": "user", "content": "What is my name?"}]
        used = http.post("/v1/messages", json={**asked, "messages": turns}).raise_for_status().json()["usage"]
    cached = used["cache_read_input_tokens"]
    assert cached >= 0.9 * (cached + used["input_tokens"]), used
