"""What LiteLLM and instructor alone do."""

from __future__ import annotations

from typing import Any

import pytest

from tests.clients.target import City, Target, called

pytestmark = [
    pytest.mark.long,
    # litellm 1.109.1: about its own types, at the first call.
    pytest.mark.filterwarnings(r"ignore:Items? .* using the `ReadOnly` qualifier:UserWarning"),
]


def test_litellm_reads_and_deletes_a_response(target: Target) -> None:
    import litellm

    from tests.clients.adapters.litellm import Responses

    with Responses(target) as adapter:
        response = adapter.said(target.script.hello)
        at = {**adapter.at, "custom_llm_provider": "openai"}
        assert litellm.get_responses(response.id, **at).output_text == target.script.hello_answer
        litellm.delete_responses(response.id, **at)
        with pytest.raises(litellm.NotFoundError):
            litellm.get_responses(response.id, **at)


@pytest.mark.parametrize("way", ["Responses", "Chat"])
def test_instructor_asks_again_with_the_error(target: Target, way: str) -> None:
    """The second request has the first answer as instructor writes it back, and a tool's result with the error."""
    from instructor.core import InstructorRetryException
    from pydantic import field_validator

    from tests.clients.adapters import instructor

    class Nowhere(City):
        @field_validator("name")
        @classmethod
        def _refused(cls, name: str) -> str:
            raise ValueError(f"there is no {name}")

    requests: list[dict[str, Any]] = []
    with getattr(instructor, way)(target) as adapter:
        adapter.instructor.on("completion:kwargs", lambda **sent: requests.append(sent))
        with pytest.raises(InstructorRetryException, match="there is no Paris"):
            adapter.fill(Nowhere, called("Nowhere"), max_retries=2)
    assert len(requests) > 1
    if way == "Chat":
        assert [message["role"] for message in requests[-1]["messages"]][:3] == ["user", "assistant", "tool"]
