"""instructor: pydantic models from the arguments of a call that the model must make, in both APIs."""

from __future__ import annotations

from typing import Any

import instructor

from tests.clients.adapters import Adapter
from tests.clients.adapters.openai import user
from tests.clients.target import City, Target, called


class Responses(Adapter):
    mode = instructor.Mode.RESPONSES_TOOLS

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        self.client = target.installation.client()
        self.instructor = instructor.from_openai(self.client, mode=self.mode)

    def close(self) -> None:
        self.client.close()

    def fill(self, model: type, asked: str, function: str = "create", **more: Any) -> Any:
        """Fills a pydantic model by a request that asks so."""
        if self.mode is instructor.Mode.RESPONSES_TOOLS:
            function_of, said = self.instructor.responses, {"input": asked}
        else:
            function_of, said = self.instructor.chat.completions, {"messages": [user(asked)]}
        return getattr(function_of, function)(model=self.model, response_model=model, **said, **more)

    def structured(self, asked: str) -> Any:
        filled = self.fill(City, called("City"))
        *_, last = seen = list(self.fill(City, called("PartialCity"), "create_partial"))
        assert (last.model_dump(), len({str(each) for each in seen}) > 1) == (filled.model_dump(), True)
        return City(**filled.model_dump())


class Chat(Responses):
    mode = instructor.Mode.TOOLS
