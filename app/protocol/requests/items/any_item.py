"""The items of `input`, as clients send them and as the store keeps them; items of hosted tools: hosted.py.

To add an item type: list it in `ITEM_TYPES` (app/protocol/item_types.py), write its model, and make the model a member
of `Item`. docs/internals/where.md lists the other steps.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, Tag, model_validator

from app.protocol.item_types import COMPACTION_TRIGGER, ITEM_REFERENCE, ITEM_TYPES, UNSUPPORTED_ITEMS
from app.protocol.requests.base import OR_ABSENT, ByType, CallId, ItemId, check_type, unsupported_value
from app.protocol.requests.items.content import (
    InputContent,
    InputFile,
    InputImage,
    InputText,
    OutputContent,
    OutputText,
    Summary,
    Thoughts,
)
from app.protocol.requests.items.hosted import OPEN_WEBUI_CODE, AnyHostedItem
from app.protocol.requests.items.local import AnyLocalItem
from app.protocol.requests.items.stored_item import InputItemModel, StoredItem
from app.protocol.requests.items.tools import AdditionalTools, ToolSearchCall, ToolSearchOutput
from app.protocol.requests.validation import refused, wrong_kind
from app.protocol.text import shortened
from app.protocol.types import Json

CalledName = Annotated[str, Field(min_length=1, max_length=256)]
"""The name of a tool that a model called; the model may have made it up."""
Token = Annotated[str, Field(min_length=1)]
"""A text that this server sealed (app/store/sealing.py)."""


class InputMessage(StoredItem, example={"role": "user", "content": "Tell me a joke."}):
    """A message of a user, of the system or of a developer."""

    prefix = "msg"

    type: Literal["message"] = "message"
    role: Literal["user", "system", "developer"]
    content: InputContent

    def _fields(self) -> Json:
        parts = [InputText(type="input_text", text=self.content)] if isinstance(self.content, str) else self.content
        return {"type": self.type, "role": self.role, "content": [part.stored() for part in parts]}


class OutputMessage(StoredItem):
    """A message of a model, for instance from an earlier response's `output`. Beside calls, `content` may be null."""

    prefix = "msg"

    type: Literal["message"] = "message"
    role: Literal["assistant"]
    content: OutputContent | None
    phase: Literal["commentary", "final_answer"] | None = None

    def _fields(self) -> Json:
        parts = (
            [OutputText(type="output_text", text=self.content)] if isinstance(self.content, str) else self.content or ()
        )
        phase = {} if self.phase is None else {"phase": self.phase}
        return {"type": self.type, "role": self.role, "content": [part.stored() for part in parts], **phase}


class _NamedCall(StoredItem):
    """A call of a tool by its name; `namespace` is that of the tool, if it has one."""

    type: str
    call_id: CallId
    name: CalledName
    namespace: Annotated[CalledName | None, OR_ABSENT] = None


class FunctionCall(_NamedCall):
    """A call of a function."""

    prefix = "fc"

    type: Literal["function_call"]
    arguments: str


class CustomToolCall(_NamedCall):
    """A call of a custom tool."""

    prefix = "ctc"

    type: Literal["custom_tool_call"]
    input: str


class FunctionCallOutput(StoredItem):
    """What a function returned: text, or parts. The call names the function.

    An output without a `call_id` answers no call, so it names its tool itself. In this way Codex reports events.
    """

    prefix = "fco"

    type: Literal["function_call_output"]
    call_id: CallId | None = None
    output: InputContent
    name: CalledName | None = None
    namespace: CalledName | None = None

    @model_validator(mode="after")
    def _check_origin(self) -> Self:
        if self.call_id is None and self.name is None:
            message = "Missing required parameter: '{path}'. An output that answers no call has a 'name' instead."
            raise refused(message, "missing_required_parameter", "call_id")
        return self

    def _fields(self) -> Json:
        output = {"output": _output(self.output)}
        if self.call_id is not None:
            return {"type": self.type, "call_id": self.call_id, **output}
        namespace = {} if self.namespace is None else {"namespace": self.namespace}
        return {"type": self.type, "name": self.name, **namespace, **output}


class CustomToolCallOutput(StoredItem):
    """What a custom tool returned: text, or parts."""

    prefix = "ctco"

    type: Literal["custom_tool_call_output"]
    call_id: CallId
    output: InputContent

    def _fields(self) -> Json:
        return {"type": self.type, "call_id": self.call_id, "output": _output(self.output)}


class ReasoningItem(StoredItem):
    """Reasoning of a model, as text or sealed."""

    prefix = "rs"

    type: Literal["reasoning"]
    summary: Summary | None = None
    content: Thoughts | None = None
    encrypted_content: Token | None = None

    def _fields(self) -> Json:
        return {
            "type": self.type,
            "summary": [part.model_dump() for part in self.summary or ()],
            "content": [part.stored() for part in self.content or ()],
            "encrypted_content": self.encrypted_content,
        }


class Compaction(StoredItem):
    """A summary of the context, sealed by this server."""

    prefix = "cmp"

    type: Literal["compaction"]
    encrypted_content: Token


class ItemReference(InputItemModel):
    """Stands for an item of a stored response or of a conversation."""

    type: Literal["item_reference"] | None = None
    id: ItemId

    def stored_under(self, new_id: str) -> Json:
        """The item itself takes the reference's place before the request is stored."""
        return {"type": ITEM_REFERENCE, "id": self.id}


class CompactionTrigger(InputItemModel):
    """As the last item of `input`: the response is a compaction of everything before it. It is not stored."""

    type: Literal["compaction_trigger"]
    id: ItemId | None = None


def _output(output: str | list[InputText | InputImage | InputFile]) -> str | list[Json]:
    return output if isinstance(output, str) else [part.stored() for part in output]


_KNOWN = (*ITEM_TYPES, ITEM_REFERENCE, OPEN_WEBUI_CODE)
_ROLES = ("user", "assistant", "system", "developer")


def _is_reference(item: Json) -> bool:
    """A reference may leave out its `type`, as in openai's types."""
    return (
        item.get("type", ITEM_REFERENCE) in (ITEM_REFERENCE, None)
        and "id" in item
        and not ("role" in item or "content" in item)
    )


def _check_item(value: Any) -> Any:
    """An item is an object with a known type; its model checks the other fields."""
    if not isinstance(value, dict):
        raise wrong_kind("an object", value)
    if _is_reference(value):
        return value
    kind = value.get("type", "message")
    if isinstance(kind, str) and ":" in kind and kind not in _KNOWN:
        message = (
            f"'{{path}}': '{shortened(kind)}' is a type of another program's own, which models here cannot read. "
            "Leave the item out, or send what it says as a message."
        )
        raise refused(message, "unsupported_parameter", "type")
    check_type(kind, _KNOWN, UNSUPPORTED_ITEMS)
    role = value.get("role", "user")
    if kind == "message" and isinstance(role, str) and role not in _ROLES:
        raise unsupported_value(role, _ROLES, "role")
    return value


def _item_tag(value: Any) -> str:
    if _is_reference(value):
        return f"<{ITEM_REFERENCE}>"
    kind = value.get("type", "message")
    return "<assistant>" if kind == "message" and value.get("role") == "assistant" else f"<{kind}>"


Item = Annotated[
    InputMessage
    | OutputMessage
    | FunctionCall
    | FunctionCallOutput
    | CustomToolCall
    | CustomToolCallOutput
    | ToolSearchCall
    | ToolSearchOutput
    | AdditionalTools
    | ReasoningItem
    | Compaction
    | AnyLocalItem
    | AnyHostedItem
    | ItemReference,
    ByType(tags={OutputMessage: ("assistant",), ItemReference: (ITEM_REFERENCE,)}, tag=_item_tag, check=_check_item),
]


InputItem = Annotated[
    Annotated[CompactionTrigger, Tag("<trigger>")] | Annotated[Item, Tag("<item>")],
    Discriminator(lambda value: "<trigger>" if _is_trigger(value) else "<item>"),
]
"""An item of a response's `input`."""


def _is_trigger(value: Any) -> bool:
    return isinstance(value, dict) and value.get("type") == COMPACTION_TRIGGER


def stored_items(items: Iterable[Item], suffix: str) -> list[Json]:
    """Returns items as the store keeps them; an item without an id gets one with `suffix`."""
    return [item.stored_under(f"{suffix}_in{index}") for index, item in enumerate(items)]
