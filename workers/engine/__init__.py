"""Engines: token ids in, token ids out; `base.py` has the contract."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from app.protocol.requests.items.images import MAX_PIXELS
from config import model_files
from config.logging import CONFIG_FILE
from config.models import BY_VLLM, VLLM_SERVER, ServedModel
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
_LOGGING_FILE = "VLLM_LOGGING_CONFIG_PATH"
_START_METHOD = "VLLM_WORKER_MULTIPROC_METHOD"


def resolved(model: ServedModel) -> tuple[ServedModel, str]:
    """See `config.model_files.resolved`. Parsers that follow from the files and do not fit the tokenizer are left out;
    those of the models file stay, and `proof` says what they do not read.

    Imports vLLM, as `make_engine` does.
    """
    chosen, line = model_files.resolved(model)
    if chosen.engine not in BY_VLLM or (chosen.tool_parser is None and not chosen.guessed):
        return chosen, line
    _import_vllm(chosen)
    from workers.engine.vllm.loading import fitted

    fitting, reasons = fitted(chosen)
    return fitting, "; ".join([line, *reasons])


def make_engine(model: ServedModel) -> Engine:
    """Makes the engine of `model`, not started yet. Raises ConfigError.

    Importing vLLM takes seconds and blocks: call this in a thread if an event loop is running.
    """
    return (_import_vllm(model) if model.engine in BY_VLLM else _imported(model))(model)


def _imported(model: ServedModel) -> Callable[[ServedModel], Engine]:
    """Raises ConfigError if there is no such class."""
    module, _, name = model.engine.partition(":")
    try:
        made: Callable[[ServedModel], Engine] = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"model {model.name!r}: the engine {model.engine} cannot be imported ({error})") from None
    return made


def _import_vllm(model: ServedModel) -> Callable[[ServedModel], Engine]:
    """Raises ConfigError if vLLM cannot be imported, or is another version than this code knows."""
    _set_environment(model)
    try:
        with warnings.catch_warnings(action="ignore"):  # deprecations between vLLM and torch
            from workers.engine.server.engine import ServerEngine
            from workers.engine.vllm.compat import machine
            from workers.engine.vllm.engine import VllmEngine
    except ImportError as error:
        raise ConfigError(f"model {model.name!r}: vLLM cannot be imported here ({error})") from None
    machine.check_variables(name for name in (*_DEFAULTS, _LOGGING_FILE, _START_METHOD) if name.startswith("VLLM_"))
    return ServerEngine if model.engine == VLLM_SERVER else VllmEngine


def _set_environment(model: ServedModel) -> None:
    """Sets what vLLM's import reads and its processes inherit, but overrules nothing that an operator has set."""
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)
    if os.environ.get("VLLM_CONFIGURE_LOGGING") != "0":  # vLLM refuses both
        os.environ.setdefault(_LOGGING_FILE, str(CONFIG_FILE))
    os.environ[_START_METHOD] = "spawn"  # a fork of a process with threads may hang, and has no lifeline
    if Path(model.path).is_dir():
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
