"""`POST /v1/responses/input_tokens`: a request whose prompt is counted, and for which nothing is generated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from app.protocol.errors import InvalidRequest
from app.protocol.requests.bodies.create_response import Prompt
from app.protocol.requests.bodies.request import ResponseRequest, checked_request
from app.protocol.requests.fields import ModelName, SupportedValues
from app.protocol.requests.validation import validate
from app.protocol.tasks import COUNT


class CountTokens(Prompt, example={"model": "longhaul-demo", "input": "Hello!"}):
    """The body of `POST /v1/responses/input_tokens`."""

    # A server of one model needs no name.
    model: ModelName | None = None  # type: ignore[assignment]
    personality: Annotated[str | None, SupportedValues()] = None


def count_request(sent: Mapping[str, Any], only_model: str | None) -> ResponseRequest:
    """Returns a request with the task COUNT. `only_model` is used if it names no model. Raises InvalidRequest."""
    model = validate(CountTokens, sent).model or only_model
    if model is None:
        raise InvalidRequest("Missing required parameter: 'model'.", "model", "missing_required_parameter")
    body = {**sent, "model": model, "store": False}
    body.pop("personality", None)
    request = checked_request(body, COUNT)
    if request.fields.compacts:
        where = f"input[{len(sent['input']) - 1}]"
        raise InvalidRequest(f"Invalid '{where}': the tokens of a compaction are not counted.", where, "invalid_value")
    return request
