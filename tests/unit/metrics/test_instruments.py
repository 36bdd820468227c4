"""What the instruments say of what they are told."""

from __future__ import annotations

from contextlib import suppress

from prometheus_client import CollectorRegistry

from app.bounds import Bound, BoundReached
from app.metrics.bounds import BoundsCollector
from app.metrics.instruments import ApiMetrics, WorkerMetrics
from app.protocol.errors import InvalidRequest, LimitReached, ModelPaused, NotFound, ShareUsed, Unavailable
from app.protocol.limits import Allowance, LimitKind, LimitState, Shortage
from app.queue.message import Priority
from tests.support.scrapes import scrape_of


def worker() -> tuple[WorkerMetrics, CollectorRegistry]:
    registry = CollectorRegistry()
    return WorkerMetrics("m", registry), registry


def test_the_first_token_counts_once_and_later_ones_by_their_distance() -> None:
    metrics, registry = worker()
    times = metrics.turn(lambda: 7.0, Priority.FLEX)
    for tokens in (0, 1, 4, 0, 1):
        times.note(tokens)
    found = scrape_of(registry)
    labels = {"tier": "flex", "mode": "background"}
    assert found.value("longhaul_first_token_seconds_count", **labels) == 1
    assert found.value("longhaul_first_token_seconds_sum", **labels) == 7.0
    assert found.value("longhaul_inter_token_seconds_count") == 2
    assert found.value("longhaul_generated_tokens_total") == 6


def test_a_turn_that_goes_on_has_no_first_token() -> None:
    metrics, registry = worker()
    metrics.turn(None, Priority.BACKGROUND).note(1)
    assert scrape_of(registry).value("longhaul_first_token_seconds_count") == 0


def test_a_commit_that_failed_does_not_count() -> None:
    metrics, registry = worker()
    with metrics.commit(3):
        pass
    with suppress(ValueError), metrics.commit(5):
        raise ValueError
    assert scrape_of(registry).value("longhaul_journal_commit_chunks_sum") == 3
    assert scrape_of(registry).value("longhaul_journal_commit_seconds_count") == 1


def limited(project: str) -> LimitReached:
    limit = LimitState(project, "*", LimitKind.REQUESTS_PER_MINUTE, 1, 1.0)
    return LimitReached(Shortage(limit, Allowance(limit, None), 1, 60.0))


def test_a_refusal_counts_by_its_code_and_that_of_a_limit_by_its_limit_and_project() -> None:
    registry = CollectorRegistry()
    metrics = ApiMetrics(registry)
    for error in (None, InvalidRequest("no"), NotFound("no")):
        metrics.refused(error)
    assert scrape_of(registry).value("longhaul_refusals_total") == 0
    for error in (limited("p1"), ModelPaused("m"), Unavailable("full", code="too_many_readers"), ShareUsed("no")):
        metrics.refused(error)
    samples = scrape_of(registry).families["longhaul_refusals"].samples
    counted = {tuple(each.labels.values()) for each in samples if each.name.endswith("_total") and each.value}
    assert counted == {
        ("rate_limit_exceeded", "requests_per_minute", "p1"),
        ("model_paused", "", ""),
        ("too_many_readers", "", ""),
        ("rate_limit_exceeded", "", ""),
    }


def test_a_bound_shows_what_is_held_and_how_often_something_did_not_fit() -> None:
    registry = CollectorRegistry()
    readers, bodies = Bound("large readers", 2), Bound("bodies", 100, unit="bytes of ", shares=False)
    registry.register(BoundsCollector([readers, bodies]))
    held = readers.take("a"), bodies.take(None, 70)
    for _ in range(2):
        with suppress(BoundReached):
            readers.take("a", 2)
    found = scrape_of(registry)
    assert found.value("longhaul_bound_held", bound="large_readers") == 1
    assert found.value("longhaul_bound_size", bound="large_readers") == 2
    assert found.value("longhaul_bound_held_bytes", bound="bodies") == 70
    assert found.value("longhaul_bound_refusals_total", bound="large_readers", reason="total") == 2
    for each in held:
        each.release()
    assert scrape_of(registry).value("longhaul_bound_held", bound="large_readers") == 0


def test_what_alerts_ask_for_counts_from_0_on() -> None:
    api, (_, worker_registry) = CollectorRegistry(), worker()
    ApiMetrics(api).answered("POST", "/v1/responses", 200, 0.01)

    def counts(registry: CollectorRegistry, family: str, suffix: str, label: str) -> dict[str, float]:
        samples = scrape_of(registry).families[family].samples
        return {each.labels[label]: each.value for each in samples if each.name.endswith(suffix)}

    assert counts(api, "longhaul_http_requests", "_total", "status") == {"200": 1, "429": 0, "500": 0, "503": 0}
    assert counts(api, "longhaul_refusals", "_total", "code") == dict.fromkeys(
        ("model_paused", "queue_timeout", "service_unavailable"), 0
    )
    assert counts(worker_registry, "longhaul_run_seconds", "_count", "status") == {"failed": 0}
