"""One line of plain text from an error of vLLM or pydantic."""

from __future__ import annotations

from pydantic import ValidationError
from vllm.exceptions import VLLMError, VLLMUnprocessableEntityError, VLLMValidationError

_OWN_NAMES = {"logprobs": "top_logprobs", "max_tokens": "max_output_tokens"}
"""Parameters of vLLM that requests name otherwise."""
_NAMING = (VLLMUnprocessableEntityError, VLLMValidationError)
"""Errors that may name a parameter."""


def sampling_message(error: BaseException) -> str:
    """The message for a user, behind the name of the parameter that vLLM refuses."""
    name, message = error.parameter if isinstance(error, _NAMING) else None, error_message(error)
    return message if name is None or message.startswith(name) else f"{_OWN_NAMES.get(name, name)}: {message}"


def error_message(error: BaseException) -> str:
    """The message for a user."""
    return " ".join(_message(error).split())


def _message(error: BaseException) -> str:
    if isinstance(error, ValidationError):  # of several complaints, the one that names a field most precisely
        details = max(error.errors(include_url=False, include_input=False), key=lambda each: len(each["loc"]))
        field = next((f"{part}: " for part in details["loc"] if str(part).isidentifier()), "")
        return field + details["msg"].removeprefix("Value error, ")
    if isinstance(error, VLLMError) and error.args:
        return str(error.args[0])  # str() of it repeats the parameter and its value
    if isinstance(error, ValueError | RuntimeError) and str(error):
        return str(error)
    return f"{type(error).__name__}: {error}"
