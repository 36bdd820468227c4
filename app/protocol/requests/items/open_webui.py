"""What Open WebUI stores of a chat, and sends as `input` when the chat goes on at this server.

It keeps an answer as items with notes of its own on them, whatever connection gave the answer. Reasoning that it cut
out of a text has parts of type `output_text`. Code that it ran for the model is an item of a type of its own; here it
becomes a `code_interpreter_call`, so the model is shown the code and what came of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import orjson
from pydantic import Field

from app.protocol.hosted_kinds import CODE_INTERPRETER
from app.protocol.requests.base import Part
from app.protocol.requests.items.stored_item import StatusItem
from app.protocol.types import Json

CODE_TYPE = "open_webui:code_interpreter"
_SAID = ("stdout", "stderr", "result")
"""Keys of an output that have text for the model, in the order in which it reads them."""


class Notes(Part):
    """Notes of Open WebUI on an item. They are for its own pages, and kept nowhere."""

    attributes: Any = None
    duration: Any = None
    ended_at: Any = None
    end_tag: Any = None
    start_tag: Any = None
    started_at: Any = None


class OpenWebUiCode(Notes, StatusItem):
    """Code that Open WebUI ran for a model. It is stored, and comes back, as a `code_interpreter_call`."""

    prefix = CODE_INTERPRETER.id_prefix

    type: Literal["open_webui:code_interpreter"]
    code: str
    lang: Annotated[str, Field(max_length=64)] | None = None
    output: Any = None

    def _fields(self) -> Json:
        logs = _text_of(self.output)
        outputs = [] if logs is None else [{"type": "logs", "logs": logs}]
        return {"type": CODE_INTERPRETER.call_type, "code": self.code, "container_id": "open_webui", "outputs": outputs}


def _text_of(output: Any) -> str | None:
    """What the code printed and returned; None: nothing came of it."""
    if output is None or isinstance(output, str):
        return output
    if isinstance(output, Mapping) and any(output.get(name) for name in _SAID):
        return "\n".join(_as_text(output[name]) for name in _SAID if output.get(name))
    return _as_text(output)


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else orjson.dumps(value).decode()
