"""Engines: token ids in, token ids out; `base.py` has the contract."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

from app.protocol.requests.items.images import MAX_PIXELS
from config.models import ServedModel
from config.settings import ConfigError
from workers.engine.base import Engine

_DEFAULTS = {
    "VLLM_LOGGING_LEVEL": "WARNING",
    "TRANSFORMERS_VERBOSITY": "error",
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_MAX_IMAGE_PIXELS": str(MAX_PIXELS),
    "VLLM_MEDIA_URL_ALLOW_REDIRECTS": "0",  # it compares only the first URL with allowed_media_domains
}
_START_METHOD = "VLLM_WORKER_MULTIPROC_METHOD"


def make_engine(model: ServedModel) -> Engine:
    """Makes the engine of `model`, not started yet. Raises ConfigError.

    Importing vLLM takes seconds and blocks: call this in a thread if an event loop is running.
    """
    if model.engine == "scripted":
        from workers.engine.scripted.engine import ScriptedEngine

        return ScriptedEngine(model)
    _set_environment(model)
    try:
        with warnings.catch_warnings(action="ignore"):  # deprecations between vLLM and torch
            from workers.engine.vllm.engine import VllmEngine
    except ImportError as error:
        raise ConfigError(f"model {model.name!r}: vLLM cannot be imported here ({error})") from None
    return VllmEngine(model)


def _set_environment(model: ServedModel) -> None:
    """Sets what vLLM's import reads and its processes inherit, but overrules nothing that an operator has set."""
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)
    os.environ[_START_METHOD] = "spawn"  # a fork of a process with threads may hang, and has no lifeline
    if Path(model.path).is_dir():
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
