"""Leads a sampler through tokens that another engine committed.

A sampler with a state (a grammar, penalties, a seed, `min_tokens`) must not get committed tokens as part of the
prompt. Instead they are generated again, and this logits processor leaves the sampler one choice for each. Whatever
counts tokens or draws then stands where it stood. tests/engine/test_resume.py holds it to that.

vLLM loads a class of this module by its path, in its own process; each of its two model runners has an interface of
its own.
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
    """The `extra_args` of a request whose first tokens must be these."""
    return {FORCED: list(forced), PROMPT_LENGTH: prompt_length}


def class_path(*, second_model_runner: bool) -> str:
    """The processor for one of vLLM's model runners."""
    return f"{__name__}:{(ForcedPrefixV2 if second_model_runner else ForcedPrefix).__name__}"


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
                allow_only(logits, forced[len(output_ids)])
            return logits

        return force


class ForcedPrefixV2(LogitsProcessor):  # type: ignore[misc]
    """For its second model runner: requests live in slots, and every step names the slot of each row of logits."""

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
        for row, (slot, position) in enumerate(zip(ctx.expanded_idx_mapping.tolist(), ctx.pos.tolist(), strict=True)):
            forced, prompt_length = self._forced.get(slot, ([], 0))
            index = position + 1 - prompt_length  # of the token that comes behind the one which the model was fed
            if 0 <= index < len(forced):
                allow_only(logits[row], forced[index])
        return logits


def allow_only(logits: torch.Tensor, token: int) -> None:
    """Leaves this token as the only choice in a row of logits."""
    kept = logits[token].clone()
    logits.fill_(float("-inf"))
    logits[token] = torch.where(torch.isfinite(kept), kept, torch.zeros_like(kept))
