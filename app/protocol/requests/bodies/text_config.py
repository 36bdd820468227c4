"""`text` and `reasoning`: the format of the answer, and how the model reasons before it."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from pydantic import Field

from app.protocol.requests.base import ByType, RequestModel
from app.protocol.requests.capabilities import HARMONY_EFFORTS, Capabilities
from app.protocol.requests.fields import SupportedValues
from app.protocol.requests.tools.any_tool import check_object_schema
from app.protocol.types import Json


class PlainFormat(RequestModel):
    type: Literal["text"]


class JsonObjectFormat(RequestModel):
    """The text is any JSON object."""

    type: Literal["json_object"]


class JsonSchemaFormat(RequestModel):
    """The text is JSON that matches a schema."""

    type: Literal["json_schema"]
    name: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_-]+$")]
    schema_: Annotated[dict[str, Any], check_object_schema("invalid_json_schema"), Field(alias="schema", min_length=1)]
    strict: bool | None = None
    description: str | None = None

    def stored(self) -> Json:
        return {**super().stored(), "strict": bool(self.strict)}


Format = Annotated[PlainFormat | JsonObjectFormat | JsonSchemaFormat, ByType()]
Verbosity = Literal["low", "medium", "high"]


class TextConfig(RequestModel):
    """The format of the answer's text. `verbosity` is for models whose chat template takes it."""

    format: Format | None = None
    verbosity: Verbosity | None = None

    def stored(self) -> Json:
        verbosity = {} if self.verbosity is None else {"verbosity": self.verbosity}
        return {"format": {"type": "text"} if self.format is None else self.format.stored(), **verbosity}


Summary = Literal["auto", "concise", "detailed"]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class Reasoning(RequestModel):
    """How a model reasons. Every `summary` shows the reasoning itself: models here make no summary of it."""

    effort: Effort | None = None
    summary: Summary | None = None
    generate_summary: Summary | None = None
    """The old name of `summary`."""
    context: Literal["auto", "current_turn", "all_turns"] | None = None
    """Whose reasoning the model is shown again."""
    mode: Annotated[str | None, SupportedValues(("standard",))] = None

    def stored(self) -> Json:
        context = {} if self.context is None else {"context": self.context}
        return {"effort": self.effort, "summary": self.summary or self.generate_summary, **context}


def nearest_effort(reasoning: Json | None, model: Capabilities) -> Json | None:
    """Returns `reasoning` of a stored request with the nearest effort that the model takes: the next lower one, or
    else its lowest."""
    if reasoning is None or reasoning["effort"] is None:
        return reasoning
    effort, taken = reasoning["effort"], HARMONY_EFFORTS if model.harmony else model.efforts
    if not model.reasoning:
        return {**reasoning, "effort": None}
    if taken is None or effort in taken:
        return reasoning
    order = get_args(Effort)
    known = [each for each in order if each in taken]
    lower = [each for each in known if order.index(each) < order.index(effort)]
    return {**reasoning, "effort": lower[-1] if lower else next(iter(known), None)}
