"""A served model -> vLLM's AsyncEngineArgs."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from vllm import AsyncEngineArgs
from vllm.config import StructuredOutputsConfig
from vllm.config.lora import MaxLoRARanks
from vllm.platforms import current_platform

from config.models import ServedModel
from config.settings import ConfigError
from workers.engine.vllm.cores import default_backend
from workers.engine.vllm.errors import one_line

_QUIET = {"disable_log_stats": True, "enable_log_requests": False, "use_tqdm_on_load": False}
_BACKEND = "xgrammar"
"""The one that knows structural tags, which all our grammars are."""


def engine_args(model: ServedModel) -> AsyncEngineArgs:
    """Raises ConfigError where the path, a name or a value cannot be used."""
    if model.path.startswith((".", "/")) and not Path(model.path).is_dir():
        raise ConfigError(f"model {model.name!r}: the path {model.path!r} is not a folder")
    _check_names(model)
    args = {**_QUIET, **_lora(model), **default_backend(model.engine_args), **model.engine_args, "model": model.path}
    if model.context_length is not None:
        args["max_model_len"] = model.context_length
    if model.reasoning_parser is not None:
        args["reasoning_parser"] = model.reasoning_parser
    try:
        args["structured_outputs_config"] = StructuredOutputsConfig(**_grammars(model))
        return AsyncEngineArgs(**args)
    except ConfigError:
        raise
    except Exception as error:  # it builds a dozen config objects, each with errors of its own
        raise ConfigError(f"model {model.name!r}: engine_args: {one_line(error)}") from None


def _check_names(model: ServedModel) -> None:
    known = {field.name for field in dataclasses.fields(AsyncEngineArgs)}
    instead: dict[str, str | None] = {
        "model": "path",
        "reasoning_parser": "reasoning_parser",
        "skip_tokenizer_init": None,
        "stream_interval": None,
    }
    if model.context_length is not None:
        instead["max_model_len"] = "context_length"
    for name in model.engine_args:
        if name not in known:
            raise ConfigError(f"model {model.name!r}: engine_args: vLLM has no argument {name!r}")
        if name in instead:
            hint = f" ({instead[name]} of the model sets it)" if instead[name] else ""
            raise ConfigError(f"model {model.name!r}: engine_args: {name!r} cannot be set here{hint}")


def _grammars(model: ServedModel) -> dict[str, Any]:
    config: dict[str, Any] = {"backend": _BACKEND, **model.engine_args.get("structured_outputs_config", {})}
    if config["backend"] != _BACKEND:
        raise ConfigError(f"model {model.name!r}: engine_args: structured_outputs_config: backend must be {_BACKEND!r}")
    return config


def _lora(model: ServedModel) -> Mapping[str, Any]:
    """What the model's adapters need, where `engine_args` says nothing else."""
    if not model.adapters:
        return {}
    most = max(_rank(model, adapter.path) for adapter in model.adapters)
    rank = next((known for known in sorted(get_args(MaxLoRARanks)) if known >= most), most)
    return {"enable_lora": True, "max_loras": _slots(model), "max_lora_rank": rank}


def _slots(model: ServedModel) -> int:
    """A slot for each adapter. vLLM's kernels for the CPU read the last slot for whoever has no adapter: it stays empty
    (0.32, lora/ops/torch_ops: `lora_b_weights[-1]`)."""
    return len(model.adapters) + (1 if current_platform.is_cpu() else 0)


def _rank(model: ServedModel, path: str) -> int:
    try:
        return int(json.loads((Path(path) / "adapter_config.json").read_text(encoding="utf-8"))["r"])
    except (OSError, ValueError, KeyError, TypeError):
        raise ConfigError(f"model {model.name!r}: {path!r} holds no LoRA adapter (adapter_config.json)") from None
