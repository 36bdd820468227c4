"""What a waiting client is told of a request that a worker refuses."""

from __future__ import annotations

import pytest

from app.protocol.failures import field_of


@pytest.mark.parametrize(
    ("message", "field"),
    [
        ("text.format.schema: this JSON schema cannot be made a grammar: ...", "text.format.schema"),
        ("tools[0].format.definition: line 1", "tools[0].format.definition"),
        ("min_tokens must be at most 5", "min_tokens"),
        ("chat_template_kwargs.x cannot be set", "chat_template_kwargs.x"),
        ("the chat template refuses the messages: no role", None),
        ("image_url must be a data: URL", None),
        ("'input' holds nothing that the model can be shown", None),
    ],
)
def test_a_message_that_begins_with_a_field_names_it(message: str, field: str | None) -> None:
    assert field_of(message) == field
