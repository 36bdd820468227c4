"""vLLM's schedulers, within the budget of masks (`workers.engine.mask_budget`), and its check of grammars, left out.

vLLM loads a class of this module by its path, in the engine's process. It measures what each request's grammar takes,
and ends a request that takes too much: its last output names DEAR as the reason.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from vllm import SamplingParams
from vllm.config import VllmConfig
from vllm.sampling_params import StructuredOutputsParams
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import GrammarOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import backend_xgrammar
from vllm.v1.structured_output.backend_xgrammar import XgrammarGrammar
from vllm.v1.structured_output.request import StructuredOutputRequest

from workers.engine.mask_budget import Running, mean_after, to_end
from workers.engine.vllm.compat.changed import VllmChanged, replace_in

MASKS = "longhaul_masks"
DEAR = "longhaul_dear_masks"


def extra_args(project: str | None, promised: float) -> dict[str, Any]:
    """The `extra_args` of a request of this project, whose masks took `promised` seconds in the probe's walk."""
    return {MASKS: [project, promised]}


def class_path(*, asynchronous: bool) -> str:
    """The scheduler in place of vLLM's, which plans a step ahead if it is `asynchronous`."""
    return f"{__name__}.{(AsyncBudgetScheduler if asynchronous else BudgetScheduler).__name__}"


def trust_grammars(config: VllmConfig, tokenizer: Any) -> None:
    """Has vLLM take the grammars of this process as they are: each was tried within limits before.

    Otherwise it parses each once more, on the event loop, where nothing bounds it. Raises VllmChanged if it still does.
    """
    replace_in(backend_xgrammar, "validate_xgrammar_grammar", lambda _params: None)
    wrong = SamplingParams(structured_outputs=StructuredOutputsParams(structural_tag='{"no": "tag"}'))
    try:
        wrong.verify(config.model_config, None, config.structured_outputs_config, tokenizer)
    except ValueError as error:
        raise VllmChanged(f"it checks grammars ({error})") from None


def _time_grammars() -> None:
    """Has each grammar of this process add up the CPU seconds that its masks and its tokens take."""
    replace_in(XgrammarGrammar, "fill_bitmask", _timed(XgrammarGrammar.fill_bitmask))
    replace_in(XgrammarGrammar, "accept_tokens", _timed(XgrammarGrammar.accept_tokens))


def _timed(call: Callable[..., Any]) -> Callable[..., Any]:
    def timed(grammar: Any, *args: Any) -> Any:
        began = time.thread_time()
        try:
            return call(grammar, *args)
        finally:
            grammar.longhaul_seconds = getattr(grammar, "longhaul_seconds", 0.0) + time.thread_time() - began

    return timed


class _Budget:
    """A mixin around a scheduler of vLLM."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        _time_grammars()
        self._running: dict[str, Running] = {}

    def get_grammar_bitmask(self, scheduler_output: Any) -> Any:
        made: GrammarOutput | None = super().get_grammar_bitmask(scheduler_output)  # type: ignore[misc]
        requests = _requests(self)
        running = {name: each for name, each in self._running.items() if name in requests}
        for request_id in () if made is None else made.structured_output_request_ids:
            request: Request = requests[request_id]
            structured: StructuredOutputRequest = request.structured_output_request
            seconds = vars(structured.grammar).pop("longhaul_seconds", 0.0)
            before = running.get(request_id)
            project, promised = (request.sampling_params.extra_args or {}).get(MASKS, (None, 0.0))
            mean = mean_after(before.seconds if before else 0.0, seconds)
            running[request_id] = Running(request_id, project, promised, mean)
        self._running = running
        return made

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        outputs = super().update_from_output(scheduler_output, model_runner_output)  # type: ignore[misc]
        _end(self, to_end(list(self._running.values())), outputs)
        return outputs


def _requests(scheduler: Scheduler) -> dict[str, Request]:
    requests: dict[str, Request] = scheduler.requests
    return requests


def _end(scheduler: Scheduler, request_ids: Sequence[str], outputs: dict[int, EngineCoreOutputs]) -> None:
    """Ends them as failed, because they are dear. `outputs` are those of a step, by client."""
    request: Request
    for request in scheduler.finish_requests(request_ids, RequestStatus.FINISHED_ERROR):
        last = EngineCoreOutput(request.request_id, [], finish_reason=request.get_finished_reason(), stop_reason=DEAR)
        outputs.setdefault(request.client_index, EngineCoreOutputs()).outputs.append(last)


class BudgetScheduler(_Budget, Scheduler):  # type: ignore[misc]  # vLLM's types are not followed
    pass


class AsyncBudgetScheduler(_Budget, AsyncScheduler):  # type: ignore[misc]
    pass
