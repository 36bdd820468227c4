"""Types of single request fields."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import orjson
from pydantic import Field, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from app.protocol.requests.validation import refused

MAX_INT = 2**31 - 1
MAX_SEED = 2**63 - 1

MAX_ITEMS = 10_000
"""Most items of `input`. A context of 128k tokens has far fewer; more would hold up others (docs/operations.md)."""
MAX_PARTS = 1024
"""Most parts of one item: of a message, of reasoning, of what a tool returned."""
MAX_NOTES = 16_384
"""Annotations, or log probabilities, of one text."""
MAX_TOOLS = 1024
"""Most entries of `tools`; a namespace is one."""
MAX_INCLUDED = 64

ModelName = Annotated[str, Field(min_length=1, max_length=256)]
Text = Annotated[str, Field(max_length=512)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
Tokens = Annotated[int, Field(ge=1, le=MAX_INT)]
Metadata = Annotated[
    dict[Annotated[str, Field(min_length=1, max_length=64)], Annotated[str, Field(max_length=512)]],
    Field(max_length=16),
]


@dataclass(frozen=True, slots=True)
class SupportedValues:
    """Marks a field that is known, but supports only these values: those that ask for what the server does anyway.

    Any other value is refused with a sentence that names the field. null is always supported.
    """

    values: tuple[Any, ...] = ()
    instead: str = ""
    """What a caller can do instead: a clause."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self.check)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"enum": [None, *self.values]}

    def check(self, value: Any, field: str = "") -> Any:
        """Returns the value, or raises an error for a validator; `field` is a key of the object that is checked."""
        # True == 1 in Python, so the types must agree too.
        if value is None or any(type(value) is type(known) and value == known for known in self.values):
            return value
        names = [repr(known) for known in self.values if isinstance(known, str)]
        exception = f" (only {' or '.join(names)} is)" if names else ""
        advice = f"; {self.instead}" if self.instead else ""
        raise refused(f"'{{path}}' is not supported yet{exception}{advice}.", "unsupported_parameter", field)


@dataclass(frozen=True, slots=True)
class MaxBytes:
    """Marks a field with a bound on its size: the bytes of its value as compact JSON."""

    limit: int

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def _check(self, value: Any) -> Any:
        if (size := len(orjson.dumps(value))) > self.limit:
            message = f"Invalid '{{path}}': expected at most {self.limit} bytes of JSON, but got {size} instead."
            raise refused(message, "object_above_max_size")
        return value


@dataclass(frozen=True, slots=True)
class OneOf:
    """Marks a string field with these values: a `Literal` whose values are listed elsewhere."""

    values: Sequence[str]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.literal_schema(list(self.values))


MAX_OPAQUE_BYTES = 64 * 1024
"""Largest opaque object. Codex puts the state of its git repositories into them."""

ClientMetadata = Annotated[dict[str, str], MaxBytes(MAX_OPAQUE_BYTES)]
"""`client_metadata`, which Codex sends for its vendor's telemetry. Opaque: it is kept nowhere."""

OPAQUE = frozenset({"client_metadata", "internal_chat_message_metadata_passthrough"})
"""Keys of a request and of its items that change no answer, so a repeated request may differ in them."""

Notes = Annotated[list[dict[str, Any]], Field(max_length=MAX_NOTES, fail_fast=True)]

CacheRetention = Literal["in_memory", "24h"]
"""`prompt_cache_retention`: a hint. The engine's prefix cache keeps what fits into its memory, however old it is."""

ServiceTier = Literal["auto", "default", "flex", "priority", "fast", "scale", "ultrafast"]

CacheTtl = Literal["30m", "12h"]
"""`ttl` of `prompt_cache_options`: a hint, as `CacheRetention` is."""
