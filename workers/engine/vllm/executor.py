"""The executor that `cores` chooses: what EngineCore finds by its name."""

from __future__ import annotations

from vllm.v1.executor.uniproc_executor import UniProcExecutor


class InCore(UniProcExecutor):  # type: ignore[misc]  # vLLM's types are not looked at
    """vLLM's executor for one device, under a name that the CPU's platform leaves alone."""
