"""What happens if another version of vLLM is installed than this code knows: a clear error when the model is loaded."""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import Any

import vllm

from config.settings import ConfigError


class VllmChanged(ConfigError):
    """An internal of vLLM is not as it is expected."""

    def __init__(self, what: str) -> None:
        super().__init__(f"vLLM {vllm.__version__} is not the version that this Longhaul needs: {what}")


def expect_attribute(owner: Any, name: str) -> None:
    """Raises VllmChanged if vLLM has no attribute of this name."""
    if not hasattr(owner, name):
        raise VllmChanged(f"{getattr(owner, '__name__', type(owner).__name__)} has no {name!r}")


def replace_in(owner: Any, name: str, value: Any) -> None:
    """Sets an attribute in place of vLLM's. Raises VllmChanged if there is none of this name."""
    expect_attribute(owner, name)
    setattr(owner, name, value)


def expect_text(module: ModuleType, text: str) -> None:
    """Raises VllmChanged unless the module's source has this text, which a message is recognized by."""
    if text not in inspect.getsource(module):
        raise VllmChanged(f"{module.__name__} has no {text!r}")
