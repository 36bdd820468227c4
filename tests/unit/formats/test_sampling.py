"""The sampling parameters of stored requests."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.requests import stored_request
from workers.engine.output_format import Structured
from workers.formats.sampling import priority_of, sampling_of


def test_fields_and_extras_go_to_the_sampler() -> None:
    extra = {"top_k": 3, "seed": 0, "stop": ["x"], "priority": 4, "chat_template_kwargs": {}}
    sampling = sampling_of(stored_request(max_output_tokens=7, extra=extra), Structured("{}", "tools"), "legal")
    assert (sampling.temperature, sampling.top_p, sampling.max_tokens) == (0.0, 1.0, 7)
    assert sampling.extra == {"top_k": 3, "seed": 0}
    assert (sampling.structured, sampling.adapter) == (Structured("{}", "tools"), "legal")


LOGPROBS: list[tuple[dict[str, Any], int | None]] = [
    ({}, None),
    ({"top_logprobs": 5}, 5),
    ({"include": ["message.output_text.logprobs"]}, 0),
    ({"include": ["message.output_text.logprobs"], "top_logprobs": 20}, 20),
    ({"include": ["message.input_image.image_url"]}, None),
]


@pytest.mark.parametrize(("fields", "most"), LOGPROBS)
def test_log_probabilities_are_requested_by_include_or_top_logprobs(fields: dict[str, Any], most: int | None) -> None:
    assert sampling_of(stored_request(**fields)).logprobs == most


def test_a_request_s_own_priority_overrides_its_queue_priority() -> None:
    assert priority_of(stored_request(), 6) == 6
    assert priority_of(stored_request(extra={"priority": 0}), 6) == 0
