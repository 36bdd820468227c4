"""The models file that all contenders read: the same engine, and nothing that only one of them could do."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from config.models import BY_VLLM, ServedModel, load_models
from config.settings import CHECKOUT
from tests.support.scripted import SCRIPTED

NAME = "bench"
DEMO = CHECKOUT / "config" / "demo"
ENGINE_ARGS: dict[str, Any] = {
    "dtype": "float32",
    "enforce_eager": True,
    "block_size": 32,
    "kv_cache_memory_bytes": 1 << 30,  # room for 256 prompts of 1,500 tokens: no contender swaps while it is measured
    "max_num_seqs": 256,
    "scheduling_policy": "priority",
}
"""Those of the demo model in config/models.toml, but for the memory. Neither side parses reasoning or tool calls."""


@dataclass(frozen=True, slots=True)
class Served:
    """A model to measure. `engine_args` are vLLM's, or the scripted engine's. With `url` it is a server elsewhere."""

    engine: str = "vllm"
    path: str = str(DEMO)
    context_length: int = 4096
    engine_args: dict[str, Any] | None = None
    url: str | None = None

    def write(self, file: Path) -> ServedModel:
        """As a models file; returns it as Longhaul reads it."""
        args = ENGINE_ARGS if self.engine_args is None else self.engine_args
        lines = ["[[models]]", f"name = {json.dumps(NAME)}", f"engine = {json.dumps(self.engine)}"]
        by_vllm = self.engine in BY_VLLM
        if self.url is not None:
            lines += [f"url = {json.dumps(self.url)}", "slots = 256"]
        lines += [f"{'path' if self.url is None else 'tokenizer'} = {json.dumps(self.path)}"] if by_vllm else []
        lines += [f"context_length = {self.context_length}", "[models.engine_args]"]
        lines += [f"{name} = {_toml(value)}" for name, value in args.items()]
        if by_vllm:
            lines[1:1] = [
                'format = "chat"',
                'tool_parser = "none"',
                'reasoning_parser = "none"',
                "default_sampling = {}",
            ]
            lines += ["[models.chat_template_args]", "enable_thinking = false"]
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return load_models(file).models[0]


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{name} = {_toml(inner)}' for name, inner in value.items())}}}"
    return json.dumps(value)


def scripted(context_length: int = 32768, **args: Any) -> Served:
    """The scripted engine, with its arguments."""
    return Served(SCRIPTED, "", context_length, args)
