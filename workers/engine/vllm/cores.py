"""Where the model runs on machines without an accelerator: in EngineCore's own process.

vLLM puts it into a process of its own there, since only a new process can be told OpenMP's threads. EngineCore and that
process then hand every step to each other through shared memory, which both watch in busy loops: on a small machine
half of all CPU goes there, and whoever else wants a core waits for it. But EngineCore is a new process itself: told
OpenMP's threads when it starts, it can run the model, and nothing spins. (vLLM 0.32: `CpuPlatform` takes "mp" where
it is asked for "uni", by that name alone.)
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from vllm import AsyncEngineArgs
from vllm.platforms import current_platform
from vllm.utils.cpu_resource_utils import get_allowed_cpu_list

_IN_CORE = "workers.engine.vllm.executor.InCore"
_THREADS = "OMP_NUM_THREADS"
_TUNED = ("VLLM_CPU_OMP_THREADS_BIND", "VLLM_CPU_NUM_OF_RESERVED_CPU")
"""Who sets one of these has arranged the cores for vLLM's own executor."""
_SIZES = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")


def default_backend(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """The engine argument that makes it so, where the machine has no accelerator and nobody has arranged it otherwise.

    `given`: the model's own engine arguments, by which several processes may share it.
    """
    tuned = any(name in os.environ for name in _TUNED) or any(given.get(size, 1) != 1 for size in _SIZES)
    return {} if tuned or not current_platform.is_cpu() else {"distributed_executor_backend": _IN_CORE}


@contextmanager
def threads(args: AsyncEngineArgs) -> Iterator[None]:
    """Processes that start in here compute on all cores but one, as vLLM's own executor has it: that is the others'.

    `OMP_NUM_THREADS` of the worker's environment goes before.
    """
    if args.distributed_executor_backend != _IN_CORE or _THREADS in os.environ:
        yield
        return
    cores = {(cpu.numa_node, cpu.physical_core) for cpu in get_allowed_cpu_list()}
    os.environ[_THREADS] = str(max(1, len(cores) - 1))
    try:
        yield
    finally:
        del os.environ[_THREADS]
