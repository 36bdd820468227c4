"""Query parameters: what a model lets pass, and how a refusal names the rest."""

from __future__ import annotations

import pytest
from starlette.requests import Request

from app.api.queries import ItemsQuery, Query, ReadQuery
from app.api.routes.organization.audit_logs import AuditQuery
from app.api.routes.organization.usage import UsageQuery
from app.protocol.errors import InvalidRequest


def request(query: str) -> Request:
    return Request({"type": "http", "query_string": query.encode(), "headers": []})


async def refusal(model: type[Query], query: str) -> tuple[str | None, str | None]:
    with pytest.raises(InvalidRequest) as caught:
        await model.read(request(query))
    return caught.value.error.param, caught.value.error.code


async def test_a_list_may_be_repeated_under_both_names() -> None:
    read = await UsageQuery.read(request("start_time=5&models=a&models[]=b&models=c"))
    assert (read.start_time, read.models) == (5, ("a", "b", "c"))


@pytest.mark.parametrize(
    ("query", "param", "code"),
    [
        ("limit=1&limit=1", "limit", "invalid_value"),
        ("limit[]=1", "limit[]", "unknown_parameter"),
        ("limit=0", "limit", "integer_below_min_value"),
        ("limit=1_0", "limit", "invalid_value"),
        ("limit=" + "9" * 400, "limit", "integer_above_max_value"),
        ("order=up", "order", "invalid_value"),
        ("include[]=everything", "include[]", "invalid_value"),
        ("include=web_search_call.results", "include", "unsupported_parameter"),
        ("after=a%00", "after", "invalid_value"),
        ("colour=red&limit=0", "colour", "unknown_parameter"),
        ("limit=0&colour=red", "limit", "integer_below_min_value"),
    ],
)
async def test_a_refusal_names_the_first_parameter_at_fault_as_it_was_sent(query: str, param: str, code: str) -> None:
    assert await refusal(ItemsQuery, query) == (param, code)


async def test_a_long_name_is_shown_shortened() -> None:
    param, _ = await refusal(Query, f"{'x' * 5000}=1")
    assert param is not None and len(param) < 100


async def test_what_is_missing_is_named() -> None:
    assert await refusal(UsageQuery, "") == ("start_time", "missing_required_parameter")


@pytest.mark.parametrize("query", ["starting_after=1", "include_obfuscation=true", "starting_after=1&stream=false"])
async def test_only_a_stream_can_be_resumed_or_padded(query: str) -> None:
    assert await refusal(ReadQuery, query) == (query.split("=")[0], "invalid_value")


async def test_leading_zeros_count_for_nothing() -> None:
    assert (await ReadQuery.read(request(f"stream=true&starting_after={'0' * 30}5"))).starting_after == 5
    assert (await ReadQuery.read(request(f"stream=true&starting_after={'0' * 30}"))).starting_after == 0


async def test_the_documentation_has_every_parameter_by_its_name() -> None:
    documented = {each["name"]: each for each in AuditQuery.parameters()}
    assert documented["effective_at[gt]"]["schema"]["type"] == "integer"
    assert documented["event_types"]["schema"] == {"type": "array", "items": {"type": "string"}, "maxItems": 100}
    assert [each["name"] for each in UsageQuery.parameters() if each["required"]] == ["start_time"]
