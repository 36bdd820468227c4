"""The values of a request's `include`, defined once for every package that looks for them."""

from __future__ import annotations

from typing import Literal, get_args

LOGPROBS = "message.output_text.logprobs"
ENCRYPTED_REASONING = "reasoning.encrypted_content"
CODE_OUTPUTS = "code_interpreter_call.outputs"
SEARCH_SOURCES = "web_search_call.action.sources"

IncludeValue = Literal[
    "message.output_text.logprobs",
    "message.input_image.image_url",
    "reasoning.encrypted_content",
    "code_interpreter_call.outputs",
    "web_search_call.action.sources",
]
INCLUDED: tuple[str, ...] = get_args(IncludeValue)
"""What `include` may name. Image URLs are part of input items in any case."""

NOT_INCLUDED = frozenset(
    {
        "computer_call_output.output.image_url",
        "file_search_call.results",
        "web_search_call.results",
    }
)
"""The rest of openai's ResponseIncludable; a test compares both lists with the package."""
