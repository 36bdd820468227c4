"""What vLLM's errors say, in one line."""

from __future__ import annotations

import re

from pydantic import ValidationError
from vllm.exceptions import VLLMError

_KILLED = re.compile(r"Failed core proc\(s\): \{(\}|[^}]*: -\d)")
"""What vLLM (0.32, v1/engine/utils.py) says of a start during which a process of the engine was ended by a signal, or
ended so that nobody knows how."""


def was_killed(error: BaseException) -> bool:
    """Whether an engine could not start because somebody (the kernel, short of memory) killed it: not its fault."""
    return isinstance(error, RuntimeError) and _KILLED.search(str(error)) is not None


def one_line(error: BaseException) -> str:
    """What it says to a user."""
    return " ".join(_said(error).split())


def _said(error: BaseException) -> str:
    """Of pydantic's several complaints, one that names a field."""
    if isinstance(error, ValidationError):
        details = max(error.errors(include_url=False, include_input=False), key=lambda each: len(each["loc"]))
        field = next((f"{part}: " for part in details["loc"] if str(part).isidentifier()), "")
        return field + details["msg"].removeprefix("Value error, ")
    if isinstance(error, VLLMError) and error.args:
        return str(error.args[0])  # str() of it repeats the parameter and its value
    if isinstance(error, ValueError | RuntimeError) and str(error):
        return str(error)
    return f"{type(error).__name__}: {error}"
