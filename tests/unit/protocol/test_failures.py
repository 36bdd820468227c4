"""What a waiting client is told of a request that a worker refuses."""

from __future__ import annotations

import pytest

from app.protocol.failures import failure, field_of


@pytest.mark.parametrize(
    ("message", "field"),
    [
        ("text.format.schema: this JSON schema cannot be made a grammar: ...", "text.format.schema"),
        ("tools[0].format.definition: line 1", "tools[0].format.definition"),
        ("min_tokens must be at most 5", "min_tokens"),
        ("chat_template_kwargs.x cannot be set", "chat_template_kwargs.x"),
        ("prompt is too long: 9 tokens", None),
        ("prompt: it has 9 tokens", None),
        ("prompt[3]: it is no token", None),
        ("the chat template refuses the messages: no role", None),
        ("image_url must be a data: URL", None),
        ("'input' holds nothing that the model can be shown", None),
    ],
)
def test_a_message_that_begins_with_a_field_names_it(message: str, field: str | None) -> None:
    assert field_of(message) == field


@pytest.mark.parametrize("code", ["context_length_exceeded", "invalid_prompt"])
def test_what_an_engine_calls_the_prompt_is_the_callers_input(code: str) -> None:
    assert failure({"code": code, "message": "prompt is too long: 9 tokens"}).error.param == "input"
