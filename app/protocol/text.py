"""Short texts: values cut to a length for messages to callers, and errors for the log."""

from __future__ import annotations

import traceback
from pathlib import PurePath

MAX_SHOWN_CHARS = 64
"""How much of a caller's own value an error message repeats."""

MAX_ERROR_CHARS = 300
"""Longest text of an error in a line of the log."""
MAX_MESSAGE_CHARS = 1000
"""Longest message of an error for callers, and longest name of its field."""


def shortened(value: str, max_chars: int = MAX_SHOWN_CHARS) -> str:
    """Returns `value`, or its beginning and an ellipsis: `max_chars` characters in all."""
    return value if len(value) <= max_chars else value[: max_chars - 1] + "…"


def bounded(message: str) -> str:
    """Returns `message`, or its beginning and its end: what is wrong and what would be right stand there, and between
    them what the caller sent."""
    if len(message) <= MAX_MESSAGE_CHARS:
        return message
    end = MAX_MESSAGE_CHARS // 4
    return f"{message[: MAX_MESSAGE_CHARS - end - 1]}…{message[-end:]}"


def one_line(error: BaseException, max_chars: int = MAX_ERROR_CHARS) -> str:
    """Returns an error's type and message without line ends, in at most `max_chars` characters."""
    message = " ".join(str(error).split()) or "no message"
    return shortened(f"{type(error).__name__}: {message}", max_chars)


def type_and_places(error: BaseException) -> str:
    """Returns an error's type and the frames that it came through, innermost first, without its message.

    The message of an unforeseen error may quote a prompt; the frames do not.
    """
    frames = reversed(traceback.extract_tb(error.__traceback__))
    places = (f"{PurePath(frame.filename).name}:{frame.lineno} in {frame.name}" for frame in frames)
    return f"{type(error).__name__} at {' < '.join(places)}"


def is_worth_a_line(count: int) -> bool:
    """Whether an event that a stranger can cause without end is logged: the 1st, the 10th, the 100th, ..."""
    return str(count).strip("0") == "1"
