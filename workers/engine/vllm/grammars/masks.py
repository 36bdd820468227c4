"""vLLM's schedulers, within the budget of masks (`workers.engine.mask_budget`).

vLLM loads a class of this module by its path, in the engine's process. It measures what each request's grammar takes,
and ends a request that takes too much: its last output names DEAR as the reason.
"""

from __future__ import annotations

from typing import Any

from workers.engine.mask_budget import Running, mean_after, to_end
from workers.engine.vllm import compat

MASKS = "longhaul_masks"
DEAR = "longhaul_dear_masks"


def extra_args(project: str | None, promised: float) -> dict[str, Any]:
    """The `extra_args` of a request of this project, whose masks took `promised` seconds in the probe's walk."""
    return {MASKS: [project, promised]}


def class_path(*, asynchronous: bool) -> str:
    """The scheduler in place of vLLM's, which plans a step ahead if it is `asynchronous`."""
    return f"{__name__}.{(AsyncBudgetScheduler if asynchronous else BudgetScheduler).__name__}"


class _Budget:
    """Around a scheduler of vLLM."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        compat.time_grammars()
        self._running: dict[str, Running] = {}

    def get_grammar_bitmask(self, scheduler_output: Any) -> Any:
        made = super().get_grammar_bitmask(scheduler_output)  # type: ignore[misc]
        running = compat.still_there(self, self._running)
        for request_id, seconds in () if made is None else compat.take_spent(self, made):
            before = running.get(request_id)
            project, promised = compat.extra_args_of(self, request_id).get(MASKS, (None, 0.0))
            mean = mean_after(before.seconds if before else 0.0, seconds)
            running[request_id] = Running(request_id, project, promised, mean)
        self._running = running
        return made

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        outputs = super().update_from_output(scheduler_output, model_runner_output)  # type: ignore[misc]
        compat.end_requests(self, to_end(list(self._running.values())), outputs, DEAR)
        return outputs


class BudgetScheduler(_Budget, compat.Scheduler):  # type: ignore[misc]  # vLLM's types are not followed
    pass


class AsyncBudgetScheduler(_Budget, compat.AsyncScheduler):  # type: ignore[misc]
    pass
