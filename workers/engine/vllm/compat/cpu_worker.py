"""vLLM's worker for the CPU, without its deaths of seeded requests whose prompts are read in several steps.

Each of these steps samples a token, and vLLM discards it. To undo the draw it rewinds the request's random generator,
which a CPU's generator cannot: the engine dies. Here, a token that will be discarded is not drawn from it at all. So a
seed has as many draws as the output has tokens, however the prompt was read.
"""

from __future__ import annotations

from typing import Any

from vllm.v1.worker.cpu_worker import CPUWorker
from vllm.v1.worker.gpu_input_batch import InputBatch
from vllm.v1.worker.gpu_model_runner import GPUModelRunner


class SeededCpuWorker(CPUWorker):  # type: ignore[misc]  # vLLM's types are not followed
    """vLLM finds this class by its path (configuration.SEEDED_CPU_WORKER)."""

    def sample_tokens(self, grammar_output: Any) -> Any:
        """Samples a step, while the generators of discarded rows are put aside."""
        if self.use_v2_model_runner:  # its draws depend on the seed and the position alone
            return super().sample_tokens(grammar_output)
        runner: GPUModelRunner = self.model_runner
        batch: InputBatch = runner.input_batch
        generators = batch.generators
        is_discarded = runner.discard_request_mask.np
        aside = {row: generators.pop(row) for row in list(generators) if is_discarded[row]}
        try:
            return super().sample_tokens(grammar_output)
        finally:
            generators.update(aside)
