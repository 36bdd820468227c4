"""What must be added for a kind of hosted tool or a type of item: a missing part fails here."""

from __future__ import annotations

import typing

import pytest

from app.api.docs.schemas import Response
from app.protocol.events.deltas import WholeCall
from app.protocol.events.machine import ResponseStream
from app.protocol.hosted_kinds import HOSTED_KINDS, HostedToolKind
from tests.support.deltas import fed


def test_every_call_of_a_hosted_tool_is_in_the_schema_of_a_response() -> None:
    shapes = typing.get_args(typing.get_args(Response.model_fields["output"].annotation)[0])
    types = {typing.get_args(shape.model_fields["type"].annotation)[0] for shape in shapes}
    assert {kind.call_type for kind in HOSTED_KINDS} <= types


@pytest.mark.parametrize("kind", [kind for kind in HOSTED_KINDS if kind.text_field is None], ids=lambda kind: kind.name)
def test_a_whole_call_needs_no_code_of_its_own_in_the_event_machine(kind: HostedToolKind) -> None:
    stream, events = fed(WholeCall(kind, "tool", "{}", {"detail": "x"}))
    item = stream.response["output"][0]
    assert (item["type"], item["detail"]) == (kind.call_type, "x")
    assert ResponseStream.restore(events).pending == stream.pending == (0,)
