"""The logits processor for vLLM's second model runner. That runner needs a GPU, so these tests call the processor."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.engine.cases import demo_model
from workers.engine import make_engine

pytestmark = pytest.mark.vllm


@pytest.fixture(scope="module")
def modules() -> Any:
    make_engine(demo_model())  # imports vLLM in the environment that it needs
    import numpy
    import torch
    from vllm import SamplingParams

    from workers.engine.vllm.compat import forcing

    return SimpleNamespace(numpy=numpy, torch=torch, params=SamplingParams, forcing=forcing)


def context(modules: Any, slots: list[int], positions: list[int]) -> Any:
    """One row for each slot; `positions` are those of the tokens that the model was fed."""
    return SimpleNamespace(
        idx_mapping_np=modules.numpy.array(slots),
        expanded_idx_mapping=modules.torch.tensor(slots),
        pos=modules.torch.tensor(positions),
    )


def processor(modules: Any, **requests: tuple[list[int], int]) -> Any:
    made = modules.forcing.ForcedPrefixV2(None, None)
    for slot, (tokens, prompt_length) in requests.items():
        args = modules.forcing.extra_args(tokens, prompt_length)
        assert made.add_request(int(slot[1:]), modules.params(extra_args=args))
    return made


def chosen(modules: Any, logits: Any) -> list[int | None]:
    """The only token that each row allows; None if it allows several."""
    finite = modules.torch.isfinite(logits)
    return [int(row.nonzero()[0]) if int(row.sum()) == 1 else None for row in finite]


def test_each_row_is_forced_to_its_own_request_s_next_token(modules: Any) -> None:
    made = processor(modules, s3=([5, 6, 7], 10), s1=([2], 4))
    logits = modules.torch.randn(3, 9)
    said = made.apply(logits.clone(), context(modules, [1, 0, 3], [3, 8, 11]))
    assert chosen(modules, said) == [2, None, 7]
    assert modules.torch.equal(said[1], logits[1])
    assert said[0][2] == logits[0][2]


def test_after_the_committed_tokens_nothing_is_forced(modules: Any) -> None:
    made = processor(modules, s0=([5, 6], 10))
    logits = modules.torch.randn(1, 9)
    places = {
        position: chosen(modules, made.apply(logits.clone(), context(modules, [0], [position])))[0]
        for position in range(9, 13)
    }
    assert places == {9: 5, 10: 6, 11: None, 12: None}


def test_several_rows_of_one_request_are_forced_one_after_the_other(modules: Any) -> None:
    made = processor(modules, s2=([5, 6, 7], 10))
    ctx = context(modules, [2, 2, 2, 2], [9, 10, 11, 12])
    assert chosen(modules, made.apply(modules.torch.randn(4, 9), ctx)) == [5, 6, 7, None]


def test_a_slot_forgets_its_previous_request(modules: Any) -> None:
    made = processor(modules, s0=([5], 10))
    assert not made.add_request(0, modules.params())
    assert chosen(modules, made.apply(modules.torch.randn(1, 9), context(modules, [0], [9]))) == [None]


def test_a_token_that_another_processor_masked_is_still_forced(modules: Any) -> None:
    row = modules.torch.full((9,), float("-inf"))
    modules.forcing.allow_only(row, 4)
    assert row[4] == 0
    assert int(modules.torch.isfinite(row).sum()) == 1


def test_the_processors_fulfil_the_interfaces_of_both_model_runners(modules: Any) -> None:
    from vllm.v1.sample.logits_processor import LogitsProcessor as First
    from vllm.v1.worker.gpu.sample.logits_processor import LogitsProcessor as Second

    assert issubclass(modules.forcing.ForcedPrefix, First)
    assert issubclass(modules.forcing.ForcedPrefixV2, Second)
