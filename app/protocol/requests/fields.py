"""Types of single request fields."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from app.protocol.requests.validation import refused

MAX_INT = 2**31 - 1
MAX_SEED = 2**63 - 1

Text = Annotated[str, Field(max_length=512)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
Tokens = Annotated[int, Field(ge=1, le=MAX_INT)]
Metadata = Annotated[
    dict[Annotated[str, Field(min_length=1, max_length=64)], Annotated[str, Field(max_length=512)]],
    Field(max_length=16),
]


@dataclass(frozen=True, slots=True)
class SupportedValues:
    """Marks a field that is known but of which only these values are supported yet: they mean what we do anyhow.

    Any other value is refused with a sentence that names the field. null is among the values by itself.
    """

    values: tuple[Any, ...] = ()

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self._check)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"enum": [None, *self.values]}

    def _check(self, value: Any) -> Any:
        # True == 1 in Python, so the types must agree too.
        if value is None or any(type(value) is type(known) and value == known for known in self.values):
            return value
        words = [repr(known) if isinstance(known, str) else str(known).lower() for known in self._told]
        but = f" (only {' or '.join(words)} is)" if words else ""
        raise refused(f"'{{path}}' is not supported yet{but}.", "unsupported_parameter")

    @property
    def _told(self) -> list[Any]:
        """The values that are worth telling: not the empty ones."""
        return [known for known in self.values if isinstance(known, str)]
