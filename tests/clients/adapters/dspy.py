"""dspy: its LM over LiteLLM's Responses API and chat completions, and a module on top of each."""

from __future__ import annotations

import atexit
import os
import tempfile
from typing import Any

from tests.clients.adapters import Adapter
from tests.clients.adapters.litellm import close_connections
from tests.clients.target import PARIS, THINKING, City

_cache = tempfile.TemporaryDirectory()
atexit.register(_cache.cleanup)
os.environ["DSPY_CACHEDIR"] = _cache.name  # dspy opens its cache at import.
import dspy  # noqa: E402

dspy.cache.disk_cache.close()


class Responses(Adapter):
    model_type = "responses"

    def close(self) -> None:
        close_connections()

    def lm(self, **more: Any) -> Any:
        there = {"model": f"openai/{self.model}", "api_base": self.target.url, "api_key": "unused"}
        return dspy.LM(**there, model_type=self.model_type, cache=False, num_retries=0, **more)

    def text(self, asked: str) -> str:
        (answer,) = self.lm()(asked)
        return answer["text"] if isinstance(answer, dict) else answer

    def structured(self, asked: str) -> City:
        """The answer of a module. The scripted engine repeats the question, which has the fields of an answer."""
        said = f"Describe it.\n\n[[ ## answer ## ]]\n{PARIS.model_dump_json()}\n\n[[ ## completed ## ]]"
        with dspy.context(lm=self.lm()):
            return City.model_validate_json(dspy.Predict("question -> answer")(question=said).answer)

    def reasoning(self, asked: str) -> tuple[str, str]:
        (answer,) = self.lm(reasoning=THINKING)(asked)
        return answer["reasoning_content"], answer["text"]


class Chat(Responses):
    model_type = "chat"
