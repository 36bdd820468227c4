"""Filters of responses become conditions with parameters, and nothing else."""

from __future__ import annotations

from dataclasses import fields
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.protocol.status import Status
from app.queue.message import Priority
from app.store.operations.filters import TIERS, ResponseFilter, batch_test, window

FULL = ResponseFilter(
    ids=("resp_1", "resp_2"),
    status=(Status.FAILED, Status.QUEUED),
    project="proj_1",
    model="m",
    key="key_1",
    batch="batch_1",
    request_id="job-7",
    service_tier="flex",
    error_code="server_error",
    metadata=(("run", "nightly"), ('a"b', "\0")),
    created_after=datetime(2026, 1, 1, tzinfo=UTC),
    created_before=datetime(2026, 2, 1, tzinfo=UTC),
    only_kept=True,
)

times = st.datetimes(min_value=datetime(2000, 1, 1), timezones=st.just(UTC))
texts = st.text(min_size=1, max_size=20)
filters = st.builds(
    ResponseFilter,
    ids=st.lists(texts, max_size=3).map(tuple),
    status=st.lists(st.sampled_from(Status), max_size=3).map(tuple),
    project=st.none() | texts,
    model=st.none() | texts,
    key=st.none() | texts,
    batch=st.none() | texts,
    request_id=st.none() | texts,
    service_tier=st.none() | st.sampled_from(sorted(TIERS)),
    error_code=st.none() | texts,
    metadata=st.dictionaries(texts, st.text(max_size=20), max_size=3).map(lambda pairs: tuple(pairs.items())),
    created_after=st.none() | times,
    created_before=st.none() | times,
    only_kept=st.booleans(),
)


@given(filters)
def test_a_filter_is_the_same_after_it_was_stored(only: ResponseFilter) -> None:
    assert ResponseFilter.from_json(only.as_json()) == only


def test_a_filter_is_read_by_the_names_that_earlier_versions_stored() -> None:
    said = {"statuses": ["queued"], "tier": "flex", "since": "2026-01-01T00:00:00+00:00"}
    assert ResponseFilter.from_json(said) == ResponseFilter(
        status=(Status.QUEUED,), service_tier="flex", created_after=FULL.created_after
    )


def test_a_filter_that_another_version_has_written_is_not_taken_for_one_that_says_less() -> None:
    with pytest.raises(ValueError, match="weather"):
        ResponseFilter.from_json({"weather": "fine"})


@given(filters)
def test_no_value_is_part_of_the_statement(only: ResponseFilter) -> None:
    plain = ResponseFilter(
        **{
            each.name: getattr(FULL, each.name) if getattr(only, each.name) else each.default
            for each in fields(ResponseFilter)
            if each.name not in ("status", "metadata")
        },
        status=only.status,
        metadata=tuple((str(number), "") for number in range(len(only.metadata))),
    )
    assert window(only, Status, 10, None, descending=True).text == window(plain, Status, 10, None, descending=True).text


def test_every_field_limits_what_is_read_and_what_tells_apart_lines_of_a_batch_is_about_no_whole_batch() -> None:
    assert ResponseFilter().is_empty
    nothing = window(ResponseFilter(), Status, 10, None, descending=True).text
    of_batches = {"status", "project", "model", "key", "batch", "created_after", "created_before"}
    for name in (each.name for each in fields(ResponseFilter)):
        one = ResponseFilter(**{name: getattr(FULL, name)})
        assert window(one, Status, 10, None, descending=True).text != nothing, name
        assert one.is_empty == (name in ("status", "only_kept")), name
        assert (batch_test(one) is not None) == (name in of_batches), name
    assert batch_test(ResponseFilter(project="proj_1", service_tier="flex")) is None


@pytest.mark.parametrize(
    ("statuses", "is_whole"),
    [((), True), ((Status.IN_PROGRESS, Status.QUEUED), True), ((Status.QUEUED,), False), ((Status.IN_PROGRESS,), None)],
)
def test_a_cancel_of_what_waits_is_about_batches_and_one_of_what_runs_too_ends_them(
    statuses: tuple[Status, ...], is_whole: bool | None
) -> None:
    found = batch_test(ResponseFilter(status=statuses))
    assert (found and found.is_whole) == is_whole


def test_a_tier_has_its_foreground_and_background_and_default_has_work_in_windows() -> None:
    assert {tier: sorted(Priority(each).name for each in TIERS[tier]) for tier in TIERS} == {
        "flex": ["FLEX", "FLEX_FOREGROUND"],
        "default": ["BACKGROUND", "FOREGROUND", "WINDOW"],
        "priority": ["PRIORITY_BACKGROUND", "PRIORITY_FOREGROUND"],
    }
