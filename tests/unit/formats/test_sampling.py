"""The sampling parameters of stored requests."""

from __future__ import annotations

from typing import Any

import pytest

from app.protocol.requests.bodies.vllm_params import ENGINE_PARAMS
from app.store.layout import LAYOUT
from tests.support.requests import stored_request
from workers.engine.base import InvalidSampling, check_extra
from workers.engine.output_format import Structured
from workers.formats.sampling import priority_of, sampling_of
from workers.formats.summary import summary_request


def test_fields_and_extras_go_to_the_sampler() -> None:
    extra = {"top_k": 3, "seed": 0, "stop": ["x"], "priority": 4, "chat_template_kwargs": {}}
    sampling = sampling_of(stored_request(max_output_tokens=7, extra=extra), Structured("{}", "tools"), "legal")
    assert (sampling.temperature, sampling.top_p, sampling.max_tokens) == (0.0, 1.0, 7)
    assert sampling.extra == {"top_k": 3, "seed": 0}
    assert (sampling.structured, sampling.adapter) == (Structured("{}", "tools"), "legal")


def test_a_top_p_of_zero_is_the_most_likely_token() -> None:
    sampling = sampling_of(stored_request(temperature=1.5, top_p=0.0))
    assert (sampling.temperature, sampling.top_p) == (0.0, 1.0)


def test_a_parameter_of_a_newer_version_is_refused_by_name() -> None:
    request = stored_request(extra={"top_q": 1, "top_k": 2})
    sampling = sampling_of(request)
    assert sampling.extra == {"top_q": 1, "top_k": 2}
    with pytest.raises(InvalidSampling, match=r"^top_q is not a sampling parameter .* this worker's version$"):
        check_extra(sampling.extra)
    assert "top_q" in summary_request(request, 1000)["extra"]


PARAMS = """
    top_k min_p repetition_penalty seed min_tokens ignore_eos stop include_stop_str_in_output stop_token_ids bad_words
    logit_bias allowed_token_ids skip_special_tokens thinking_token_budget chat_template_kwargs cache_salt priority
"""


def test_every_worker_of_this_layout_knows_every_parameter() -> None:
    """A new one needs another LAYOUT, so that older workers leave it to newer ones."""
    assert (set(ENGINE_PARAMS), LAYOUT) == (set(PARAMS.split()), 1)


LOGPROBS: list[tuple[dict[str, Any], int | None]] = [
    ({}, None),
    ({"top_logprobs": 5}, 5),
    ({"include": ["message.output_text.logprobs"]}, 0),
    ({"include": ["message.output_text.logprobs"], "top_logprobs": 20}, 20),
    ({"include": ["message.input_image.image_url"]}, None),
]


def test_log_probabilities_are_requested_by_include_or_top_logprobs() -> None:
    for fields, most in LOGPROBS:
        assert sampling_of(stored_request(**fields)).logprobs == most


def test_a_request_s_own_priority_overrides_its_queue_priority() -> None:
    assert priority_of(stored_request(), 6) == 6
    assert priority_of(stored_request(extra={"priority": 0}), 6) == 0
