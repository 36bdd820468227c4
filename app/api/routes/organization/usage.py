"""`/v1/organization/usage/completions`: what projects used."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from typing import Annotated, Literal

from pydantic import Field

from app.api.admin_objects import UsageBucket, UsagePage, UsageResult
from app.api.dependencies import RuntimeOf
from app.api.docs.routes import error_answers
from app.api.queries import DIGITS, Flag, Names, Query, Time
from app.api.routes.organization.common import organization_router
from app.api.routes.route import Asked
from app.protocol.errors import InvalidRequest
from app.store.tenants import usage
from app.store.tenants.usage import Total, UsageFilter

router = organization_router("usage")

MINUTE_SECONDS = 60
MAX_RESULTS = 10_000
"""Most results of one page, over all its buckets."""

Group = Literal["project_id", "user_id", "api_key_id", "model", "batch", "service_tier", "api_source"]


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


class UsageQuery(Query):
    start_time: Time
    end_time: Time | None = None
    bucket_width: Literal["1d", "1h", "1m"] = Field("1d", description="The time of one bucket.")
    limit: Annotated[int, Field(ge=1, le=1440), DIGITS] | None = Field(None, description="How many buckets.")
    page: Time | None = Field(None, description="`next_page` of the page before.")
    batch: Flag | None = Field(None, description="Usage of batches only, or of all else.")
    group_by: tuple[Group, ...] = Field((), description="What usage is told apart by.")
    project_ids: Names = Field((), description="Usage of these projects only.")
    user_ids: Names = Field((), description="Usage of these service accounts only.")
    api_key_ids: Names = Field((), description="Usage of these keys only.")
    models: Names = Field((), description="Usage of these models only.")

    @property
    def width(self) -> Width:
        return WIDTHS[self.bucket_width]

    @property
    def start(self) -> int:
        """The minute in which the page begins."""
        start = max(self.start_time, self.page or 0)
        return start - start % MINUTE_SECONDS

    def check(self) -> None:
        """Raises InvalidRequest for more buckets than a page may have."""
        if self.limit is not None and self.limit > self.width.most:
            message = f"Invalid value for 'limit': a page has at most {self.width.most} buckets of this width."
            raise InvalidRequest(message, "limit", "invalid_value")


@router.get("/completions", summary="What projects used, by time", responses=error_answers(414))
async def completions(query: Asked[UsageQuery], runtime: RuntimeOf) -> UsagePage:
    query.check()
    end = _end(query.end_time)
    width, groups = query.width, frozenset[str](query.group_by)
    starts = _starts(query.start, end, width, query.limit or width.default)
    if not starts:
        totals: list[Total] = []
    else:
        wanted = UsageFilter(
            start=_moment(starts[0]),
            end=_moment(min(_next(starts[-1], width), end)),
            unit=width.unit,
            groups=groups,
            projects=query.project_ids,
            keys=query.api_key_ids,
            models=query.models,
            accounts=query.user_ids,
            batch=query.batch,
        )
        totals = await usage.read(runtime.db, wanted, MAX_RESULTS + 1)
        if len(totals) > MAX_RESULTS:
            starts, totals = _cut(starts, totals)
    return _page(starts, end, width, totals, groups)


def _end(sent: int | None) -> int:
    """The end of the last minute that is asked for."""
    end = int(time.time()) + 1 if sent is None else sent
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


def _cut(starts: Sequence[int], totals: Sequence[Total]) -> tuple[list[int], list[Total]]:
    """Leaves out the bucket that is not complete, and those after it."""
    first_left_out = int(totals[-1].start.timestamp())
    if first_left_out == starts[0]:
        message = f"One bucket has more than {MAX_RESULTS} results; group by less, or ask for fewer projects."
        raise InvalidRequest(message, "group_by", "too_many_results")
    kept = [total for total in totals if total.start.timestamp() < first_left_out]
    return [start for start in starts if start < first_left_out], kept


def _page(starts: Sequence[int], end: int, width: Width, totals: Sequence[Total], groups: frozenset[str]) -> UsagePage:
    by_start = {int(start.timestamp()): list(found) for start, found in groupby(totals, lambda total: total.start)}
    data = [
        UsageBucket(
            start_time=start,
            end_time=min(_next(start, width), end),
            results=[_result(total, groups) for total in by_start.get(start, ())],
        )
        for start in starts
    ]
    rest = _next(starts[-1], width) if starts else end
    has_more = rest < end
    return UsagePage(data=data, has_more=has_more, next_page=str(rest) if has_more else None)


def _result(total: Total, groups: frozenset[str]) -> UsageResult:
    return UsageResult(
        num_model_requests=total.requests,
        input_tokens=total.input_tokens,
        input_cached_tokens=total.cached_tokens,
        input_uncached_tokens=total.input_tokens - total.cached_tokens,
        output_tokens=total.output_tokens,
        output_reasoning_tokens=total.reasoning_tokens,
        **total.group,
        api_source="unlabeled" if "api_source" in groups else None,
    )


def _moment(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
