"""The rules about what belongs to projects: usage, limits and stored bytes."""

from __future__ import annotations

from collections.abc import Iterator

from app.protocol.limits import LimitKind
from tests.faults import accounts
from tests.faults.evidence import Evidence

PLACES = (LimitKind.QUEUED_RESPONSES, LimitKind.QUEUED_BYTES, LimitKind.UNFINISHED_RESPONSES)


def the_ledger_is_the_sum_of_all_usage(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """For each key, the admin API names the sum of its responses' usage, to the token."""
    expected, told = accounts.used(evidence.accounts, evidence.writes), evidence.ledger or {}
    for project, key in expected.keys() | told.keys():
        if (sums := expected.get((project, key))) != (answer := told.get((project, key))):
            yield project, f"the ledger has {answer} for {key}, and its responses used {sums}"


def ended_responses_reserve_nothing(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """When everything has ended no place is taken, and the day's tokens are what was used, and no more."""
    used = accounts.charged(evidence.accounts, evidence.writes)
    for limit in evidence.limits:
        if limit.kind in PLACES and limit.used != 0:
            yield limit.project, f"{limit.used} of {limit.kind.value} are taken, and nothing is queued or runs"
        is_of_day = limit.kind is LimitKind.TOKENS_PER_DAY and evidence.is_one_day
        if is_of_day and limit.used != used[limit.project]:
            yield limit.project, f"{limit.used} tokens of the day are taken instead of {used[limit.project]}"


def limits_are_never_exceeded(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """At no time more was queued, or had not ended, than the project's limits allow."""
    yield from accounts.exceeded(evidence.accounts, evidence.limits)


def stored_bytes_are_those_of_the_rows(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """What each project stores is counted to the byte."""
    for project, (counted, occupied) in evidence.stored.items():
        if counted != occupied:
            yield project, f"{counted} stored bytes are counted, and its rows have {occupied}"
