"""An engine of two ranks (tensor parallelism) on real vLLM, on the CPU.

Each is a process of its own, as where the executor is `mp`. A seeded prompt that they read in several steps does not
kill them.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from openai import Stream
from openai.types.responses import ResponseStreamEvent

from config.settings import CHECKOUT
from tests.support.installations import running
from tests.support.longhaul import Longhaul, send_all
from tests.support.processes import alive
from tests.support.services import open_folder
from tests.support.waiting import until_sync
from workers.engine.lifeline import CPU_NICENESS

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
max_num_batched_tokens = 64
max_num_seqs = 8
"""
TOKENS = 200
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
    fields: dict[str, Any] = {"ignore_eos": True, "seed": 7}
    return longhaul.client().responses.create(
        model=MODEL,
        input="word " * 200 + "Tell me a story.",
        temperature=1.0,
        max_output_tokens=TOKENS,
        background=True,
        stream=True,
        extra_body=fields,
    )


def text_of(events: list[ResponseStreamEvent]) -> str:
    return "".join(event.delta for event in events if event.type == "response.output_text.delta")


@pytest.mark.long
@pytest.mark.vllm
def test_a_response_goes_on_when_a_rank_is_killed_and_no_rank_outlives_its_worker(two_ranks: Longhaul) -> None:
    whole = list(story(two_ranks))
    ranks = two_ranks.named(("VLLM::Worker_TP",))
    assert len(ranks) == 2 and all(rank.nice() >= CPU_NICENESS for rank in ranks)
    events: list[ResponseStreamEvent] = []
    for event in story(two_ranks):
        events.append(event)
        if event.type == "response.output_text.delta":  # How many come depends on the machine.
            send_all(ranks[1:], signal.SIGKILL)
    numbers = dict.fromkeys(event.sequence_number for event in events)  # A silent stream repeats one.
    assert list(numbers) == list(range(len(numbers)))
    assert text_of(events) == text_of(whole)
    assert events[-1].type == whole[-1].type == "response.incomplete"
    until_sync(lambda: not any(map(alive, ranks)), what="the other rank ends with its engine")
    # Its last tokens may all have come before the rank died: then nobody has waited for the next engine yet.
    until_sync(lambda: len(two_ranks.named(("VLLM::Worker_TP",))) == 2, what="the ranks of the next engine")
    ranks = two_ranks.named(("VLLM::Worker_TP",))
    send_all(two_ranks.named(("celeryd",))[:1], signal.SIGKILL)
    until_sync(lambda: not any(map(alive, ranks)), what="the ranks end with their worker")
