"""One request on its way through the engine: what vLLM is given, and what its outputs become."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vllm import SamplingParams
from vllm.inputs import tokens_input

from app.protocol.events.deltas import FinishReason
from workers.engine.base import CannotContinue, EngineDelta, EngineError, Sampling
from workers.engine.vllm import forcing
from workers.engine.vllm.logprobs import LogprobReader
from workers.engine.vllm.sampling import has_memory, sampling_params

_FINISH = {"stop": FinishReason.STOP, "repetition": FinishReason.STOP, "length": FinishReason.LENGTH}


class Generation:
    """`room`: output tokens that fit behind the prompt. Raises InvalidSampling or CannotContinue.

    Where the sampler has no memory, committed tokens are prompt; else they are forced.
    """

    def __init__(
        self,
        prompt: Sequence[int],
        sampling: Sampling,
        committed: Sequence[int],
        room: int,
        *,
        can_force: bool,
        logprobs: LogprobReader,
    ) -> None:
        self.params: SamplingParams = sampling_params(sampling, room)
        self._left: int = self.params.max_tokens - len(committed)
        self._tokens = list(prompt)
        self._media = getattr(prompt, "media", None)
        self._salt = sampling.extra.get("cache_salt")
        self._sampling = sampling
        self._reader = logprobs
        self._forced: list[int] = []
        """Tokens that must come, in order, and are not delivered."""
        if committed and has_memory(sampling):
            self._force(committed, can_force)
        else:
            self._tokens += committed
            self.params.max_tokens = max(self._left, 1)

    @property
    def is_over(self) -> bool:
        """The committed tokens were all that it may have."""
        return self._left < 1

    @property
    def input(self) -> Any:
        if self._media is None:
            made: dict[str, Any] = dict(tokens_input(self._tokens))
        else:
            made = {**self._media, "prompt_token_ids": self._tokens}
        return made if self._salt is None else {**made, "cache_salt": self._salt}

    @property
    def parser_args(self) -> Mapping[str, Any] | None:
        """What the engine's own reasoning parser must know, to see where a grammar sets in."""
        structured = self._sampling.structured
        return None if structured is None else {"chat_template_kwargs": dict(structured.template_args)}

    def delta(self, output: Any) -> EngineDelta | None:
        """None: nothing but what was committed already. Raises EngineError."""
        completion = output.outputs[0]
        reason = completion.finish_reason
        if reason is not None and reason not in _FINISH:
            raise EngineError(f"the engine ended the request: {reason}")
        known = self._known(completion.token_ids) if self._forced else 0
        tokens = tuple(completion.token_ids[known:])
        if not tokens and reason is None:
            return None
        found = completion.logprobs[known:] if completion.logprobs else None
        return EngineDelta(
            token_ids=tokens,
            finish_reason=_FINISH[reason] if reason is not None else None,
            cached_tokens=output.num_cached_tokens or 0,
            logprobs=self._reader.read(tokens, found, self._sampling.logprobs or 0),
        )

    def _force(self, committed: Sequence[int], can_force: bool) -> None:
        if not can_force:
            raise CannotContinue
        self._forced = list(committed)
        self.params.extra_args = forcing.extra_args(committed, len(self._tokens))

    def _known(self, token_ids: Sequence[int]) -> int:
        """How many of the first of these were forced."""
        known = min(len(self._forced), len(token_ids))
        if self._forced[:known] != list(token_ids[:known]):
            raise CannotContinue  # it went another way: never go on wrongly
        del self._forced[:known]
        return known
