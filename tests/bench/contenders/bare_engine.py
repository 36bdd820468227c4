"""The process of `Bare`: an AsyncLLM, and a unix socket that receives loads.

    python -m tests.bench.contenders.bare_engine MODELS_FILE SOCKET

Its protocol is that of the client: it reads a load, writes `ready`, reads a line, writes figures.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import uvloop

os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from vllm import SamplingParams
from vllm.inputs import tokens_input
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.async_llm import AsyncLLM

from config.models import ServedModel, load_models
from tests.bench.client.tally import Tally, own_cpu
from tests.bench.load import Load, Time
from workers.engine.vllm.arguments import engine_args
from workers.engine.vllm.cpu_executor import compute_threads

Prompt = Sequence[int]


class BareEngine:
    def __init__(self, model: ServedModel) -> None:
        self._template_args = dict(model.chat_template_args)
        args = engine_args(model)
        with compute_threads(args):
            self._llm = AsyncLLM.from_engine_args(args)
        self._rounds = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        load = Load.decode(await reader.readline())
        prompts = [self._rendered(load.prompt)] * load.requests
        await self._all(load, prompts[: load.warmup], Tally())
        gc.collect()
        writer.write(b"ready\n")
        await reader.readline()
        tally, begun, cpu = Tally(), time.perf_counter(), own_cpu()
        await self._all(load, prompts, tally)
        writer.write(tally.figures(time.perf_counter() - begun, own_cpu() - cpu, realtime=False).encode() + b"\n")
        await writer.drain()
        writer.close()

    def _rendered(self, text: str) -> Prompt:
        """Rendered before the clock starts: bare vLLM is measured without template and tokenizer."""
        tokens: Any = self._llm.renderer.get_tokenizer().apply_chat_template(
            [{"role": "user", "content": text}],
            add_generation_prompt=True,
            tokenize=True,
            return_dict=False,
            **self._template_args,
        )
        return list(tokens)

    async def _all(self, load: Load, prompts: Sequence[Prompt], tally: Tally) -> None:
        self._rounds += 1
        left = iter(enumerate(prompts))
        params = SamplingParams(
            max_tokens=load.body["max_output_tokens"],
            ignore_eos=load.body.get("ignore_eos", False),
            temperature=0.0,
            output_kind=RequestOutputKind.DELTA,
        )

        async def ask() -> None:
            for number, prompt in left:
                await self._one(f"{self._rounds}-{number}", prompt, params, tally)

        await asyncio.gather(*(ask() for _ in range(load.concurrency)))

    async def _one(self, name: str, prompt: Prompt, params: SamplingParams, tally: Tally) -> None:
        begun = time.perf_counter()
        seen: list[float] = []
        tokens = 0
        async for output in self._llm.generate(tokens_input(list(prompt)), params, name):
            seen.append(time.perf_counter())
            tokens += len(output.outputs[0].token_ids)
        tally.ok += 1
        tally.tokens += tokens
        tally.deltas += len(seen)
        tally.times[Time.TTFT].append(seen[0] - begun)
        tally.times[Time.GAP] += [later - sooner for sooner, later in pairwise(seen)]
        if tokens > 1:
            tally.times[Time.INTER_TOKEN].append((seen[-1] - seen[0]) / (tokens - 1))


async def main(models: Path, socket: Path) -> None:
    engine = BareEngine(load_models(models).models[0])
    server = await asyncio.start_unix_server(engine.serve, str(socket), limit=1 << 28)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main(Path(sys.argv[1]), Path(sys.argv[2])))
