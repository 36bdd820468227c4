"""Where the model runs on a machine without an accelerator: in EngineCore's own process.

vLLM starts a second process there, because OpenMP's number of threads can only be set for a new process. EngineCore and
that process pass every step through shared memory, which both poll in busy loops: on a small machine that takes half of
all CPU time. But EngineCore is a new process itself. Its environment sets OpenMP's threads, it runs the model, and
nothing polls.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from vllm import AsyncEngineArgs

from workers.engine.vllm.compat import machine
from workers.engine.vllm.compat.processes import IN_CORE_EXECUTOR

_THREADS = "OMP_NUM_THREADS"
_SIZES = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")


def default_executor(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """The engine argument that chooses this executor; nothing if there is an accelerator or the operator arranged the
    cores or several processes.

    `given`: the engine arguments of the model's configuration.
    """
    tuned = any(name in os.environ for name in machine.CPU_TUNING) or any(given.get(size, 1) != 1 for size in _SIZES)
    return {} if tuned or not machine.runs_on_cpu() else {"distributed_executor_backend": IN_CORE_EXECUTOR}


@contextmanager
def compute_threads(args: AsyncEngineArgs) -> Iterator[None]:
    """Processes that start in this block compute on all cores but one, as with vLLM's own executor.

    The worker and other programs need that core. An `OMP_NUM_THREADS` in the worker's environment takes precedence.
    """
    if args.distributed_executor_backend != IN_CORE_EXECUTOR or _THREADS in os.environ:
        yield
        return
    os.environ[_THREADS] = str(max(1, machine.physical_cores() - 1))
    try:
        yield
    finally:
        del os.environ[_THREADS]
