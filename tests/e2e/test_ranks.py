"""An engine of two ranks (tensor parallelism) on real vLLM, on the CPU."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
from openai import Stream
from openai.types.responses import ResponseStreamEvent

from config.settings import CHECKOUT
from tests.support.installations import running
from tests.support.longhaul import Longhaul, send_all
from tests.support.services import open_folder
from tests.support.waiting import until_sync

MODEL = "two-ranks"
MODELS = f"""
[[models]]
name = "{MODEL}"
path = "{CHECKOUT / "config" / "demo"}"
context_length = 4096
chat_template_args = {{ enable_thinking = false }}
default_sampling = {{ temperature = 0.0 }}
[models.engine_args]
dtype = "float32"
enforce_eager = true
block_size = 32
kv_cache_memory_bytes = 67108864
tensor_parallel_size = 2
"""
TOKENS = 700
"""Seconds on any machine: the rank is killed long before the end."""


@pytest.fixture
def two_ranks() -> Iterator[Longhaul]:
    with open_folder() as folder:
        models = folder / "models.toml"
        models.write_text(MODELS)
        first, *others = sorted(os.sched_getaffinity(0))
        cores = f"{first}|{others[0] if others else first}"  # vLLM wants a NUMA node for each rank, or to be told.
        with running(Longhaul(folder / "home", models, VLLM_CPU_OMP_THREADS_BIND=cores)) as installation:
            yield installation


def story(longhaul: Longhaul) -> Stream[ResponseStreamEvent]:
    fields: dict[str, Any] = {"ignore_eos": True}
    return longhaul.client().responses.create(
        model=MODEL,
        input="Tell me a story.",
        max_output_tokens=TOKENS,
        background=True,
        stream=True,
        extra_body=fields,
    )


def _runs(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def text_of(events: list[ResponseStreamEvent]) -> str:
    return "".join(event.delta for event in events if event.type == "response.output_text.delta")


@pytest.mark.long
@pytest.mark.vllm
def test_a_response_whose_rank_is_killed_goes_on_in_the_middle_of_its_text(two_ranks: Longhaul) -> None:
    whole = list(story(two_ranks))
    ranks = two_ranks.named(("VLLM::Worker_TP",))
    assert len(ranks) == 2
    events: list[ResponseStreamEvent] = []
    for event in story(two_ranks):
        events.append(event)
        if event.type == "response.output_text.delta":  # How many come depends on the machine.
            send_all(ranks[1:], signal.SIGKILL)
    numbers = dict.fromkeys(event.sequence_number for event in events)  # A silent stream repeats one.
    assert list(numbers) == list(range(len(numbers)))
    assert text_of(events) == text_of(whole)
    assert events[-1].type == whole[-1].type == "response.incomplete"
    until_sync(lambda: not any(map(_runs, ranks)), what="the other rank ends with its engine")
    until_sync(lambda: len(two_ranks.named(("VLLM::Worker_TP",))) == 2, what="the next engine has two ranks")
