"""vLLM's own metrics, where a worker serves metrics."""

from __future__ import annotations

from dataclasses import replace

import pytest
from prometheus_client import REGISTRY

from config.settings import ConfigError, Settings
from tests.engine.cases import Case, demo_model
from tests.support.scrapes import scrape_of
from tests.support.scripted import SCRIPTED
from tests.support.waiting import until
from workers.engine.base import Sampling
from workers.worker import with_statistics


def test_an_engine_keeps_statistics_if_somebody_may_read_them() -> None:
    off, on = Settings(), Settings(metrics_port=9400)
    model = demo_model()
    assert with_statistics(model, off) is model
    assert with_statistics(model, on).engine_args["disable_log_stats"] is False
    chosen = replace(model, engine_args={"disable_log_stats": True})
    assert with_statistics(chosen, on).engine_args["disable_log_stats"] is True
    scripted = replace(model, engine=SCRIPTED)
    assert with_statistics(scripted, on) is scripted


STOCK = (
    "e2e_request_latency_seconds",
    "generation_tokens",
    "inter_token_latency_seconds",
    "kv_cache_usage_perc",
    "num_requests_running",
    "num_requests_waiting",
    "prefix_cache_hits",
    "prefix_cache_queries",
    "prompt_tokens",
    "request_prefill_time_seconds",
    "request_queue_time_seconds",
    "request_success",
    "time_to_first_token_seconds",
)
"""What the board that comes with vLLM asks for."""


@pytest.mark.vllm
@pytest.mark.asyncio(loop_scope="package")
async def test_the_metrics_of_vllms_own_board_are_there_and_have_data(vllm_case: Case) -> None:
    before = scrape_of(REGISTRY)
    tokens = await vllm_case.tokens([1, 2, 3], Sampling(max_tokens=5))
    assert {f"vllm:{name}" for name in STOCK} <= set(before.families)

    def grown(name: str) -> float:
        return scrape_of(REGISTRY).value(f"vllm:{name}") - before.value(f"vllm:{name}")

    assert tokens
    await until(lambda: grown("generation_tokens_total") == len(tokens), what="vLLM counts behind its answers")
    assert grown("time_to_first_token_seconds_count") == 1


@pytest.mark.vllm
@pytest.mark.filterwarnings("ignore")  # vLLM's own, at import
def test_an_engine_that_sends_spans_keeps_statistics() -> None:
    """Without them vLLM fails each request that it would trace."""
    from workers.engine.vllm.arguments import engine_args

    def arguments(**more: object) -> bool:
        model = demo_model()
        return engine_args(replace(model, engine_args={**model.engine_args, **more})).disable_log_stats

    assert arguments() is True
    assert arguments(otlp_traces_endpoint="http://127.0.0.1:4317") is False
    with pytest.raises(ConfigError, match="'otlp_traces_endpoint' needs vLLM's statistics"):
        arguments(otlp_traces_endpoint="http://127.0.0.1:4317", disable_log_stats=True)
