"""What must be added for a kind of hosted tool or a type of item: a missing part fails here."""

from __future__ import annotations

import re
import typing
from contextlib import suppress
from typing import Any

import pytest
from mcp_types import CallToolResult

from app.api.docs.schemas import Response
from app.protocol.events.deltas import WholeCall
from app.protocol.events.machine import ResponseStream
from app.protocol.hosted_kinds import HOSTED_KINDS, KIND_OF_TOOL, HostedToolKind
from app.protocol.include import REFUSED_INCLUDES, SUPPORTED_INCLUDES
from app.protocol.item_types import ITEM_REFERENCE, ITEM_TYPES, UNSUPPORTED_ITEMS
from app.protocol.requests.items.any_item import Item
from app.protocol.requests.items.hosted import OPEN_WEBUI_CODE
from app.protocol.requests.tools.any_tool import UNSUPPORTED_TOOLS, Tool
from config.server_kind import ServerKind
from tests.support.deltas import fed
from workers.formats.calls.client_tools import NO_CLIENT_TOOLS
from workers.formats.calls.hosted import HostedCall, NameStyle
from workers.formats.calls.hosted_formats import FORMATS
from workers.formats.steps import steps_of
from workers.mcp.results import ResultOptions, result_of

UNSEALED = {"compaction"}
"""Item types that become another type before a worker renders them."""


def types_of(union: Any) -> set[str]:
    """The values of `type` that the members of a union have."""
    members = typing.get_args(typing.get_args(union)[0])
    models = [typing.get_args(member)[0] if hasattr(member, "__metadata__") else member for member in members]
    return {each for model in models for each in re.findall("'(.+?)'", str(model.model_fields["type"].annotation))}


def test_every_item_type_has_a_model() -> None:
    assert types_of(Item) == {*ITEM_TYPES, ITEM_REFERENCE, OPEN_WEBUI_CODE}
    assert not UNSUPPORTED_ITEMS & set(ITEM_TYPES)


@pytest.mark.parametrize("item_type", sorted(set(ITEM_TYPES) - UNSEALED))
def test_every_item_type_can_be_rendered(item_type: str) -> None:
    """A type that no prompt knows is an InvalidPrompt; of the others this item lacks the fields."""
    with suppress(KeyError):
        list(steps_of([{"type": item_type}], NameStyle.CHAT, NO_CLIENT_TOOLS))


def test_every_type_of_hosted_tool_has_a_model() -> None:
    assert types_of(Tool) >= KIND_OF_TOOL.keys()
    assert not UNSUPPORTED_TOOLS & set(KIND_OF_TOOL)


def test_no_value_of_include_is_both_supported_and_refused() -> None:
    assert not {*REFUSED_INCLUDES} & set(SUPPORTED_INCLUDES)


def test_every_kind_of_hosted_tool_has_a_format() -> None:
    assert {found.kind for found in FORMATS} == set(HOSTED_KINDS)


def test_every_call_of_a_hosted_tool_is_in_the_schema_of_a_response() -> None:
    shapes = typing.get_args(typing.get_args(Response.model_fields["output"].annotation)[0])
    types = {typing.get_args(shape.model_fields["type"].annotation)[0] for shape in shapes}
    assert {kind.call_type for kind in HOSTED_KINDS} <= types


def test_every_kind_of_mcp_server_runs_a_hosted_tool_and_shows_its_results() -> None:
    kinds = typing.get_args(ServerKind)
    assert {kind.server_kind for kind in HOSTED_KINDS} == set(kinds)
    for kind in kinds:
        assert result_of(
            HostedCall("t", "{}", kind, "s", "search"), CallToolResult(content=[]), ResultOptions(9)
        ).fields


@pytest.mark.parametrize("kind", [kind for kind in HOSTED_KINDS if kind.text_field is None], ids=lambda kind: kind.name)
def test_a_whole_call_needs_no_code_of_its_own_in_the_event_machine(kind: HostedToolKind) -> None:
    stream, events = fed(WholeCall(kind, "tool", "{}", {"detail": "x"}))
    item = stream.response["output"][0]
    assert (item["type"], item["detail"]) == (kind.call_type, "x")
    assert ResponseStream.restore(events).pending == stream.pending == (0,)
