"""What a caller is told of an error: its code."""

from __future__ import annotations

from workers.engine.base import EngineError, InvalidPrompt, InvalidSampling, PromptTooLong
from workers.generation.turns.compaction import SummaryCut
from workers.generation.turns.inputs import ContextLost, ContextTooLong, UnreadableItem

_ERROR_CODES: dict[type[EngineError], str] = {
    UnreadableItem: "invalid_prompt",
    ContextLost: "previous_response_not_found",
    ContextTooLong: "context_length_exceeded",
    InvalidPrompt: "invalid_prompt",
    PromptTooLong: "context_length_exceeded",
    SummaryCut: "context_length_exceeded",
    InvalidSampling: "invalid_prompt",
}


def code_of_error(error: EngineError) -> str:
    """The code of a failed response's error."""
    return _ERROR_CODES.get(type(error), "server_error")
