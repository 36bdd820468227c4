"""A served model to vLLM's AsyncEngineArgs."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vllm import AsyncEngineArgs
from vllm.config import StructuredOutputsConfig

from config.models import ServedModel
from config.settings import ConfigError
from workers.engine.vllm.compat import machine, renderer
from workers.engine.vllm.compat.configuration import SEEDED_CPU_WORKER
from workers.engine.vllm.cpu_executor import default_executor
from workers.engine.vllm.errors import error_message

_DEFAULTS = {
    "disable_log_stats": True,
    "enable_log_requests": False,
    "use_tqdm_on_load": False,
    "renderer_num_workers": renderer.THREADS,
}
_BACKEND = "xgrammar"
"""The only backend for structural tags; all our grammars are structural tags."""
_MIN_RANK = 8
"""vLLM takes each power of two from here on, up to a bound of its own, as the most that an adapter's rank may be."""


def engine_args(model: ServedModel) -> AsyncEngineArgs:
    """Raises ConfigError if the path, a name or a value cannot be used."""
    if model.path.startswith((".", "/")) and not Path(model.path).is_dir():
        raise ConfigError(f"model {model.name!r}: the path {model.path!r} is not a folder")
    _check_names(model)
    args = {
        **_DEFAULTS,
        **_statistics(model),
        **_lora(model),
        **default_executor(model.engine_args),
        **({"worker_cls": SEEDED_CPU_WORKER} if machine.runs_on_cpu() else {}),
        **model.engine_args,
        "model": model.path,
    }
    if model.context_length is not None:
        args["max_model_len"] = model.context_length
    if model.revision is not None:
        args["revision"] = args["code_revision"] = model.revision  # vLLM takes the tokenizer of `revision`, too
    if model.reasoning_parser is not None:
        args["reasoning_parser"] = model.reasoning_parser
    try:
        args["structured_outputs_config"] = StructuredOutputsConfig(**_grammars(model))
        return AsyncEngineArgs(**args)
    except ConfigError:
        raise
    except Exception as error:  # vLLM builds a dozen config objects, each with its own errors
        raise ConfigError(f"model {model.name!r}: engine_args: {error_message(error)}") from None


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
    if model.revision is not None:
        instead |= {"revision": "revision", "code_revision": "revision"}
    for name in model.engine_args:
        if name not in known:
            raise ConfigError(f"model {model.name!r}: engine_args: vLLM has no argument {name!r}")
        if name in instead:
            hint = f" ({instead[name]} of the model sets it)" if instead[name] else ""
            raise ConfigError(f"model {model.name!r}: engine_args: {name!r} cannot be set here{hint}")


def _statistics(model: ServedModel) -> Mapping[str, Any]:
    """Its spans have times of vLLM's statistics: without them, vLLM fails each request that it would trace."""
    if model.engine_args.get("otlp_traces_endpoint") is None:
        return {}
    if model.engine_args.get("disable_log_stats"):
        raise ConfigError(
            f"model {model.name!r}: engine_args: 'otlp_traces_endpoint' needs vLLM's statistics; leave out "
            "'disable_log_stats'"
        )
    return {"disable_log_stats": False}


def _grammars(model: ServedModel) -> dict[str, Any]:
    config: dict[str, Any] = {"backend": _BACKEND, **model.engine_args.get("structured_outputs_config", {})}
    if config["backend"] != _BACKEND:
        raise ConfigError(f"model {model.name!r}: engine_args: structured_outputs_config: backend must be {_BACKEND!r}")
    return config


def _lora(model: ServedModel) -> Mapping[str, Any]:
    """The defaults that a model with adapters needs; `engine_args` may overrule them."""
    if not model.adapters:
        return {}
    rank = max(_rank(model, adapter.path) for adapter in model.adapters)
    slots = machine.lora_slots(len(model.adapters))
    return {"enable_lora": True, "max_loras": slots, "max_lora_rank": max(_MIN_RANK, 1 << (rank - 1).bit_length())}


def _rank(model: ServedModel, path: str) -> int:
    try:
        return int(json.loads((Path(path) / "adapter_config.json").read_text(encoding="utf-8"))["r"])
    except (OSError, ValueError, KeyError, TypeError):
        raise ConfigError(f"model {model.name!r}: {path!r} holds no LoRA adapter (adapter_config.json)") from None
