"""`/v1/organization/usage/completions`: what projects used."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby

from fastapi import APIRouter, Depends, Request
from starlette.datastructures import QueryParams
from starlette.responses import Response

from app.api import admin_schemas as schemas
from app.api.dependencies import RuntimeOf, only_query
from app.api.errors import reply
from app.api.params import boolean, integer, one_of, repeatable, unsupported_value, values_of
from app.api.route_docs import USAGE_PARAMETERS, error_answers
from app.protocol.errors import InvalidRequest
from app.protocol.types import Json
from app.store.tenants import usage
from app.store.tenants.usage import Total, UsageFilter

router = APIRouter(prefix="/v1/organization/usage", tags=["organization"])

MINUTE_SECONDS = 60
MAX_TIME = 253_402_300_740
"""The last minute of the year 9999, the last that Python's dates have."""
MAX_RESULTS = 10_000
"""Of one page, over all its buckets."""

GROUPS = ("project_id", "user_id", "api_key_id", "model", "batch", "service_tier", "api_source")
_FILTERS = repeatable("group_by", "project_ids", "user_ids", "api_key_ids", "models")
_NAMES = ("start_time", "end_time", "bucket_width", "limit", "page", "batch")


@dataclass(frozen=True, slots=True)
class Width:
    """The width of buckets. A bucket begins at a full minute, hour or day (UTC)."""

    seconds: int
    unit: str
    default: int
    most: int
    """Buckets of one page."""


WIDTHS = {
    "1d": Width(86_400, "day", 7, 31),
    "1h": Width(3_600, "hour", 24, 168),
    "1m": Width(60, "minute", 60, 1440),
}


@router.get(
    "/completions",
    summary="What projects used, by time",
    responses={200: {"model": schemas.UsagePage}, **error_answers(400, 414, 503)},
    openapi_extra={"parameters": USAGE_PARAMETERS},
    response_model=None,
    dependencies=[Depends(only_query(*_NAMES, *_FILTERS, repeated=_FILTERS))],
)
async def completions(request: Request, runtime: RuntimeOf) -> Response:
    query = request.query_params
    width = WIDTHS[one_of(query, "bucket_width", tuple(WIDTHS))]
    end = _end(query)
    starts = _starts(_start(query), end, width, integer(query, "limit", 1, width.most) or width.default)
    groups = _groups(query)
    if not starts or ("batch" in query and boolean(query, "batch")):  # No response belongs to a batch yet.
        totals: list[Total] = []
    else:
        wanted = UsageFilter(
            start=_moment(starts[0]),
            end=_moment(min(_next(starts[-1], width), end)),
            unit=width.unit,
            groups=groups,
            projects=values_of(query, "project_ids"),
            keys=values_of(query, "api_key_ids"),
            models=values_of(query, "models"),
            accounts=values_of(query, "user_ids"),
        )
        totals = await usage.read(runtime.db, wanted, MAX_RESULTS + 1)
        if len(totals) > MAX_RESULTS:
            starts, totals = _cut(starts, totals)
    return reply(_page(starts, end, width, totals, groups))


def _start(query: QueryParams) -> int:
    """The minute in which the page begins."""
    if (start := integer(query, "start_time", 0, MAX_TIME)) is None:
        raise InvalidRequest("Missing required parameter: 'start_time'.", "start_time", "missing_required_parameter")
    if "page" in query:
        page = integer(query, "page", 0, MAX_TIME)
        assert page is not None
        start = max(start, page)
    return start - start % MINUTE_SECONDS


def _end(query: QueryParams) -> int:
    """The end of the last minute that is asked for."""
    end = integer(query, "end_time", 0, MAX_TIME)
    end = int(time.time()) + 1 if end is None else end
    return end + -end % MINUTE_SECONDS


def _starts(start: int, end: int, width: Width, limit: int) -> list[int]:
    """The times at which the page's buckets begin."""
    starts: list[int] = []
    while start < end and len(starts) < limit:
        starts.append(start)
        start = _next(start, width)
    return starts


def _next(start: int, width: Width) -> int:
    return start - start % width.seconds + width.seconds


def _groups(query: QueryParams) -> frozenset[str]:
    sent = values_of(query, "group_by")
    for name in sent:
        if name not in GROUPS:
            raise unsupported_value("group_by", name, GROUPS)
    return frozenset(sent)


def _cut(starts: Sequence[int], totals: Sequence[Total]) -> tuple[list[int], list[Total]]:
    """Leaves out the bucket that is not complete, and those after it."""
    first_left_out = int(totals[-1].start.timestamp())
    if first_left_out == starts[0]:
        message = f"One bucket has more than {MAX_RESULTS} results; group by less, or ask for fewer projects."
        raise InvalidRequest(message, "group_by", "too_many_results")
    kept = [total for total in totals if total.start.timestamp() < first_left_out]
    return [start for start in starts if start < first_left_out], kept


def _page(starts: Sequence[int], end: int, width: Width, totals: Sequence[Total], groups: frozenset[str]) -> Json:
    by_start = {int(start.timestamp()): list(found) for start, found in groupby(totals, lambda total: total.start)}
    data = [
        {
            "object": "bucket",
            "start_time": start,
            "end_time": min(_next(start, width), end),
            "results": [_result(total, groups) for total in by_start.get(start, ())],
        }
        for start in starts
    ]
    rest = _next(starts[-1], width) if starts else end
    has_more = rest < end
    return {"object": "page", "data": data, "has_more": has_more, "next_page": str(rest) if has_more else None}


def _result(total: Total, groups: frozenset[str]) -> Json:
    return {
        "object": "organization.usage.completions.result",
        "num_model_requests": total.requests,
        "input_tokens": total.input_tokens,
        "input_cached_tokens": total.cached_tokens,
        "input_uncached_tokens": total.input_tokens - total.cached_tokens,
        "output_tokens": total.output_tokens,
        "output_reasoning_tokens": total.reasoning_tokens,
        **dict.fromkeys(GROUPS),
        **total.group,
        "batch": False if "batch" in groups else None,
        "api_source": "unlabeled" if "api_source" in groups else None,
    }


def _moment(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
