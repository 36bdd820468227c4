"""The engine's processes: how they start, what they say of themselves, and how they end."""

from __future__ import annotations

import re

from vllm import AsyncEngineArgs
from vllm.config import ModelConfig, VllmConfig
from vllm.v1.engine import utils
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError
from vllm.v1.executor.uniproc_executor import UniProcExecutor

from workers.engine.vllm.compat.changed import expect_text
from workers.engine.vllm.compat.machine import device
from workers.engine.vllm.compat.renderer import NoEngine

__all__ = ["AsyncLLM", "EngineDeadError"]

_FAILED = "Failed core proc(s): "
_KILLED = re.compile(re.escape(_FAILED) + r"\{(\}|[^}]*: -\d)")
"""vLLM's message about a start during which a signal ended a process of the engine, or during which a process ended for
an unknown reason."""


class InCore(UniProcExecutor):  # type: ignore[misc]  # vLLM's types are not followed
    """vLLM's executor for one device, which runs the model in EngineCore's own process.

    `CpuPlatform` replaces that executor by "mp" when it is asked for as "uni"; it does not know this name.
    """


IN_CORE_EXECUTOR = f"{__name__}.{InCore.__name__}"


def start(config: VllmConfig, args: AsyncEngineArgs) -> AsyncLLM:
    """Starts the engine's processes and waits for them. Raises VllmChanged, and whatever vLLM raises."""
    expect_text(utils, _FAILED)
    return AsyncLLM.from_vllm_config(
        config, disable_log_stats=args.disable_log_stats, enable_log_requests=args.enable_log_requests
    )


def was_killed(error: BaseException) -> bool:
    """Whether a start failed because a process of the engine was killed, for instance for lack of memory."""
    return isinstance(error, RuntimeError) and _KILLED.search(str(error)) is not None


def is_dead(llm: AsyncLLM) -> bool:
    return bool(llm.errored)


def unfinished(llm: AsyncLLM) -> int:
    """How many requests it has."""
    return int(llm.get_num_unfinished_requests())


def model_config_of(llm: AsyncLLM | NoEngine) -> ModelConfig:
    return llm.model_config


def requests_at_once(llm: AsyncLLM) -> int:
    """How many requests it generates at once: each of its engines has as many slots."""
    slots: int = llm.vllm_config.scheduler_config.max_num_seqs
    engines: int = llm.vllm_config.parallel_config.data_parallel_size
    return slots * engines


def cache_tokens(llm: AsyncLLM) -> int | None:
    """How many tokens its KV caches hold: each of its engines says the same. None: the model has no such cache."""
    tokens: int | None = llm.vllm_config.cache_config.kv_cache_size_tokens
    return tokens and tokens * llm.vllm_config.parallel_config.data_parallel_size


def device_name(llm: AsyncLLM) -> str | None:
    """The devices that it computes on, as their driver names the first one; None: the driver does not say."""
    count: int = llm.vllm_config.parallel_config.world_size * llm.vllm_config.parallel_config.data_parallel_size
    name = device()
    return name if name is None or count == 1 else f"{count} x {name}"


def end_streams(llm: AsyncLLM) -> None:
    """Raises EngineDeadError in every reader: `shutdown` alone would leave them waiting. From now on vLLM takes the end
    of its processes for no crash."""
    llm.engine_core.resources.engine_manager.manager_stopped.set()
    llm.output_processor.propagate_error(EngineDeadError())
    if llm.output_handler is not None:
        llm.output_handler.cancel()


def shut_down(llm: AsyncLLM) -> None:
    """Ends what vLLM keeps for an engine, and kills the processes that are left. Blocks."""
    llm.shutdown(timeout=0)


def end_zeromq(llm: AsyncLLM) -> None:
    """Ends ZeroMQ's threads, which vLLM leaves to the garbage collector. To be called after `shut_down`, on the loop.

    It waits until the sockets are closed, and vLLM closes them on the loop.
    """
    llm.engine_core.resources.ctx.destroy()
