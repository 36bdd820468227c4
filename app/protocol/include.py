"""The values of a request's `include`. Those that show results of hosted tools are in hosted_kinds.py."""

from __future__ import annotations

from app.protocol.hosted_kinds import HOSTED_INCLUDES

LOGPROBS = "message.output_text.logprobs"
IMAGE_URLS = "message.input_image.image_url"
ENCRYPTED_REASONING = "reasoning.encrypted_content"

SUPPORTED_INCLUDES = (LOGPROBS, IMAGE_URLS, ENCRYPTED_REASONING, *HOSTED_INCLUDES)
"""The values that are honoured. Image URLs are part of input items in any case."""

REFUSED_INCLUDES = frozenset(
    {
        "computer_call_output.output.image_url",
        "file_search_call.results",
        "web_search_call.results",
    }
)
"""The rest of openai's ResponseIncludable; a test compares both lists with the package."""
