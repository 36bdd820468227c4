"""The machine as vLLM sees it, and the environment variables that vLLM reads."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from vllm import envs
from vllm.platforms import current_platform
from vllm.utils.cpu_resource_utils import get_allowed_cpu_list
from vllm.version import __version__

from workers.engine.vllm.compat.changed import VllmChanged

CPU_TUNING = ("VLLM_CPU_OMP_THREADS_BIND", "VLLM_CPU_NUM_OF_RESERVED_CPU")
"""Environment variables by which an operator assigns the cores to vLLM's own CPU executor."""
_SOCKET_FOLDER = "VLLM_RPC_BASE_PATH"


def check_variables(names: Iterable[str]) -> None:
    """Raises VllmChanged for a variable that vLLM does not read: it would be ignored in silence."""
    unknown = {*names, *CPU_TUNING, _SOCKET_FOLDER}.difference(envs.environment_variables)
    if unknown:
        raise VllmChanged(f"it does not read {', '.join(sorted(unknown))}")


def set_socket_folder(folder: Path) -> None:
    """Where vLLM makes the sockets of the engines that start from now on; it leaves them there."""
    os.environ[_SOCKET_FOLDER] = str(folder)


def runs_on_cpu() -> bool:
    """Whether vLLM found no accelerator on this machine."""
    return bool(current_platform.is_cpu())


def device() -> str | None:
    """The device as its driver names it; None: the driver does not say."""
    try:
        return str(current_platform.get_device_name())
    except Exception:  # each platform asks a library of its own, which may raise anything
        return None


def physical_cores() -> int:
    """The cores that this process may use, hyper-threads not counted."""
    return len({(cpu.numa_node, cpu.physical_core) for cpu in get_allowed_cpu_list()})


def lora_slots(adapters: int) -> int:
    """A slot for each adapter. vLLM's CPU kernels read the last slot for requests without an adapter, so there it stays
    empty (lora/ops/torch_ops: `lora_b_weights[-1]`)."""
    return adapters + (1 if runs_on_cpu() else 0)


def grammar_cache_bytes() -> int:
    """Bytes of compiled grammars that the engine keeps."""
    return int(envs.VLLM_XGRAMMAR_CACHE_MB) * 2**20


def own_version() -> str:
    """The version of vLLM here."""
    return str(__version__)
