"""Fields that a harmony model cannot do are refused by name before anything is stored."""

from __future__ import annotations

from typing import Any

import pytest

from app.protocol.errors import InvalidRequest
from app.protocol.requests.capabilities import Capabilities, check_capabilities
from tests.support.requests import stored_request

HARMONY = Capabilities(images=False, tools=True, reasoning=True, verbosity=False, harmony=True)
OTHER = Capabilities(images=False, tools=True, reasoning=True, verbosity=False)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"reasoning": {"effort": "minimal"}}, "reasoning.effort"),
        ({"reasoning": {"effort": "none"}}, "reasoning.effort"),
        ({"reasoning": {"effort": "xhigh"}}, "reasoning.effort"),
        ({"extra": {"skip_special_tokens": False}}, "skip_special_tokens"),
        ({"extra": {"thinking_token_budget": 0}}, "thinking_token_budget"),
        ({"extra": {"chat_template_kwargs": {"builtin_tools": []}}}, "chat_template_kwargs.builtin_tools"),
    ],
)
def test_fields_that_harmony_cannot_show_are_refused(fields: dict[str, Any], named: str) -> None:
    request = stored_request(**fields)
    check_capabilities(request, OTHER)
    with pytest.raises(InvalidRequest) as caught:
        check_capabilities(request, HARMONY)
    assert (caught.value.error.param, caught.value.error.code) == (named, "unsupported_parameter")


@pytest.mark.parametrize(
    "fields",
    [
        {"reasoning": {"effort": "high"}},
        {"reasoning": {"effort": None, "summary": None}},
        {"extra": {"chat_template_kwargs": {"model_identity": "You are Ada.", "reasoning_effort": "low"}}},
        {"extra": {"skip_special_tokens": True, "cache_salt": "x"}},
        {"enable_response_messages": True, "previous_input_messages": [{"role": "user", "content": "x"}]},
    ],
)
def test_fields_that_harmony_knows_are_accepted(fields: dict[str, Any]) -> None:
    check_capabilities(stored_request(**fields), HARMONY)
