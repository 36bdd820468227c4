"""One request on its way through the engine: its input for vLLM, and vLLM's outputs as deltas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from vllm import SamplingParams
from vllm.inputs import tokens_input

from app.heavy import PROJECT
from app.protocol.events.deltas import FinishReason
from workers.engine.base import CannotContinue, EngineDelta, EngineRequest, InvalidSampling, RequestAborted
from workers.engine.grammar_compiler import CHEAPER
from workers.engine.mask_budget import BUDGET_SECONDS, Cost
from workers.engine.vllm.compat import masks
from workers.engine.vllm.compat.plugin import longhaul_forcing
from workers.engine.vllm.logprobs import LogprobReader
from workers.engine.vllm.output.thoughts import Start, thoughts_args
from workers.engine.vllm.rendering import ImagesByUrl
from workers.engine.vllm.sampling import has_state, sampling_params

_FINISH = {"stop": FinishReason.STOP, "repetition": FinishReason.STOP, "length": FinishReason.LENGTH}

_LEAVE_OUT = ("allowed_token_ids", "bad_words", "stop_token_ids", "min_tokens")
"""Parameters that may forbid tokens which a grammar needs."""


class CheckedRequest:
    """`room`: output tokens that fit after the prompt. `reasoner`: the engine's own reasoning parser finds where a
    grammar begins to apply; else it applies from the first token, and thoughts are part of it. Raises InvalidSampling
    or CannotContinue.

    Committed tokens become part of the prompt if the sampler has no state; otherwise they are forced.
    """

    def __init__(
        self,
        request: EngineRequest,
        room: int,
        *,
        can_force: bool,
        logprobs: LogprobReader,
        reasoner: bool = True,
    ) -> None:
        prompt, sampling, committed = request.prompt, request.sampling, request.committed
        structured = sampling.structured
        self._reasoner = reasoner
        self._start = structured.thoughts.start(prompt) if structured and structured.thoughts else None
        if structured and self._start is not None:
            tag = structured.thoughts.tag(structured.tag, self._start, reasoner=reasoner)
            sampling = replace(sampling, structured=replace(structured, tag=tag))
        self.params: SamplingParams = sampling_params(sampling, room)
        self.params.stream_interval = request.tokens_per_delta
        self.cost = Cost() if structured is None else structured.cost
        """Cost of its grammar."""
        if structured is not None:
            self.params.extra_args = masks.extra_args(PROJECT.get(), self.cost.seconds)
        self._left: int = self.params.max_tokens - len(committed)
        self._tokens = list(prompt)
        self._prompt_length = len(prompt)
        self._media = getattr(prompt, "media", None)
        self._salt = sampling.extra.get("cache_salt")
        self._sampling = sampling
        self._reader = logprobs
        self._delivered = False
        self._forced: list[int] = []
        """Tokens that the engine has still to generate, in order; they are not delivered."""
        if committed and has_state(sampling):
            self._force(committed, can_force)
        else:
            self._tokens += committed
            self.params.max_tokens = max(self._left, 1)

    @property
    def is_over(self) -> bool:
        """The committed tokens use up `max_tokens`."""
        return self._left < 1

    @property
    def input(self) -> Any:
        if isinstance(self._media, ImagesByUrl):
            behind = self._tokens[self._prompt_length :]
            made: dict[str, Any] = {"prompt_token_ids": [*self._media.token_ids, *behind]}
            made["content_parts"] = list(self._media.parts)
        elif self._media is None:
            made = dict(tokens_input(self._tokens))
        else:
            made = {**self._media, "prompt_token_ids": self._tokens}
        return made if self._salt is None else {**made, "cache_salt": self._salt}

    @property
    def reasoning(self) -> dict[str, Any]:
        """For the engine's own reasoning parser, which finds where the grammar starts to apply."""
        if (structured := self._sampling.structured) is None:
            return {}
        if not self._reasoner:
            return {"reasoning_ended": True}
        if self._start is None:
            return {"reasoning_parser_kwargs": {"chat_template_kwargs": dict(structured.template_args)}}
        args = thoughts_args(structured.template_args, self._start)
        # A free answer's thoughts are part of its grammar.
        return {
            "reasoning_parser_kwargs": {"chat_template_kwargs": args},
            "reasoning_ended": self._start is not Start.OPEN,
        }

    def delta(self, completion: Any, cached_tokens: int) -> EngineDelta | None:
        """The delta of vLLM's CompletionOutput; None if it holds only tokens that were committed already.

        Raises CannotContinue, RequestAborted, or InvalidSampling for a grammar that got too dear.
        """
        reason = completion.finish_reason
        if reason is not None and reason not in _FINISH:
            raise self._dear() if completion.stop_reason == masks.DEAR else self.aborted(reason)
        known = self._known(completion.token_ids) if self._forced else 0
        tokens = tuple(completion.token_ids[known:])
        if not tokens and reason is None:
            return None
        self._delivered = True
        found = completion.logprobs[known:] if completion.logprobs else None
        return EngineDelta(
            token_ids=tokens,
            finish_reason=_FINISH[reason] if reason is not None else None,
            cached_tokens=cached_tokens,
            logprobs=self._reader.read(tokens, found, self._sampling.logprobs or 0),
        )

    def _dear(self) -> InvalidSampling:
        assert self._sampling.structured is not None
        return InvalidSampling(
            f"{self._sampling.structured.request_field}: its grammar takes ever longer to check, and those of all "
            f"requests have {1000 * BUDGET_SECONDS:.0f} ms for each token; {CHEAPER}"
        )

    def aborted(self, reason: str, details: str = "") -> RequestAborted:
        """For an end that _FINISH does not name: the request may succeed later. vLLM aborts all requests when it stops,
        and calls it "error" if it failed within this one. `details`: what it says of that.

        It also fails where a grammar and the other parameters leave no token, and then at the same place again.
        """
        structured = self._sampling.structured
        names = [name for name in _LEAVE_OUT if self._sampling.extra.get(name)]
        refusal = None
        if reason == "error" and structured is not None and names and not self._delivered:
            fields = " and ".join([*names, structured.request_field])
            refusal = InvalidSampling(f"{fields}: together they leave no token to go on with")
        said = f"it says {reason!r}" + (details and f": {details}")
        return RequestAborted(said, counts=reason == "error", refusal=refusal)

    def _force(self, committed: Sequence[int], can_force: bool) -> None:
        if not can_force:
            raise CannotContinue
        self._forced = list(committed)
        forced = longhaul_forcing.extra_args(committed, len(self._tokens))
        self.params.extra_args = {**(self.params.extra_args or {}), **forced}

    def _known(self, token_ids: Sequence[int]) -> int:
        """How many of these tokens, from the first, were forced. Raises CannotContinue if others came."""
        known = min(len(self._forced), len(token_ids))
        if self._forced[:known] != list(token_ids[:known]):
            raise CannotContinue
        del self._forced[:known]
        return known
