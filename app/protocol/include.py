"""The values of a request's `include`. Those that show results of hosted tools are in hosted_kinds.py."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from app.protocol.hosted_kinds import HOSTED_INCLUDES, SEARCH_SOURCES

LOGPROBS = "message.output_text.logprobs"
IMAGE_URLS = "message.input_image.image_url"
ENCRYPTED_REASONING = "reasoning.encrypted_content"

EMPTY_INCLUDES = ("computer_call_output.output.image_url", "file_search_call.results")
"""Values about items of tools that no request can have here: there is never anything that they could include."""

SUPPORTED_INCLUDES = (LOGPROBS, IMAGE_URLS, ENCRYPTED_REASONING, *HOSTED_INCLUDES, *EMPTY_INCLUDES)
"""The values that are accepted. Image URLs are part of input items in any case."""

REFUSED_INCLUDES: Mapping[str, str] = MappingProxyType(
    {"web_search_call.results": f"send '{SEARCH_SOURCES}', which shows the URLs of the results"}
)
"""The rest of openai's ResponseIncludable, and what to do instead; a test compares both with the package."""
