"""The model in EngineCore's own process, for machines without an accelerator."""

from vllm.v1.executor.uniproc_executor import UniProcExecutor


class InCore(UniProcExecutor):
    pass
