"""What vLLM's errors say, in one line."""

from __future__ import annotations

from pydantic import ValidationError
from vllm.exceptions import VLLMError


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
