"""Makes a sampler walk over tokens that another engine committed.

Where the sampler has a memory (a grammar, penalties, a seed, `min_tokens`, ...), a request that goes on
behind committed tokens must not take them as prompt. They are generated again, and this logits processor
leaves the sampler no other choice: everything that counts tokens or draws advances as it did the first
time. vLLM loads it by class path, in its own process; it has two model runners with a class each.

Tried on the real engine: shared facts of this project, and tests/engine/test_resume.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from vllm import SamplingParams
from vllm.v1.sample.logits_processor import AdapterLogitsProcessor
from vllm.v1.worker.gpu.sample.logits_processor import LogitsContext, LogitsProcessor

FORCED = "longhaul_forced"
PROMPT_LENGTH = "longhaul_prompt_length"


def extra_args(forced: Sequence[int], prompt_length: int) -> dict[str, Any]:
    """What a request's `extra_args` must hold for these tokens to be its first."""
    return {FORCED: list(forced), PROMPT_LENGTH: prompt_length}


class ForcedPrefix(AdapterLogitsProcessor):  # type: ignore[misc]
    """For vLLM's first model runner."""

    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(self, params: SamplingParams) -> Any:
        forced = (params.extra_args or {}).get(FORCED)
        if not forced:
            return None

        def force(output_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
            if len(output_ids) < len(forced):
                only(logits, forced[len(output_ids)])
            return logits

        return force


class ForcedPrefixV2(LogitsProcessor):  # type: ignore[misc]
    """For its second one: requests live in slots, and every step is told which row of logits is whose."""

    def __init__(self, vllm_config: Any, req_states: Any) -> None:
        super().__init__(vllm_config, req_states)
        self._forced: dict[int, tuple[list[int], int]] = {}
        """By slot: the tokens, and the length of the prompt."""

    def add_request(self, req_idx: int, sampling_params: SamplingParams) -> bool:
        extra = sampling_params.extra_args or {}
        self._forced.pop(req_idx, None)
        if extra.get(FORCED):
            self._forced[req_idx] = (extra[FORCED], extra[PROMPT_LENGTH])
        return req_idx in self._forced

    def apply(self, logits: torch.Tensor, ctx: LogitsContext) -> torch.Tensor:
        if self._forced.keys().isdisjoint(ctx.idx_mapping_np.tolist()):
            return logits
        rows = zip(ctx.expanded_idx_mapping.tolist(), ctx.pos.tolist(), strict=True)
        for row, (slot, position) in enumerate(rows):
            forced, prompt_length = self._forced.get(slot, ([], 0))
            place = position + 1 - prompt_length
            if 0 <= place < len(forced):
                only(logits[row], forced[place])
        return logits


def only(logits: torch.Tensor, token: int) -> None:
    """Leaves this token alone in a row of logits."""
    kept = logits[token].clone()
    logits.fill_(float("-inf"))
    logits[token] = torch.where(torch.isfinite(kept), kept, torch.zeros_like(kept))
