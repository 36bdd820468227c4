"""Every metric that a process counts itself, each with one sentence. docs/metrics.md lists them; a test compares both.

A class is handed to whoever knows its facts, and no caller asks whether metrics are on: what a process whose registry
nobody can read would count for its responses goes nowhere. An observation takes one to two microseconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import product
from typing import cast, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from app.metrics.buckets import CHUNKS, LONG, SHORT, TOKENS
from app.metrics.labels import Bounded
from app.protocol.errors import ApiError, LimitReached, ShareUsed, Unavailable
from app.protocol.status import Status
from app.queue.message import class_of
from config.server_kind import ServerKind

FAILURES = ("429", "500", "503")
"""Statuses that come in bursts. A route counts them from 0 on, because a rate does not see a first value."""
REFUSALS = ("model_paused", "queue_timeout", "service_unavailable")
"""Codes of refusals that come in bursts."""
UNKNOWN_TOOL = "unknown"
"""The kind of a call of a tool that does not exist."""

Registry = CollectorRegistry | None


class _Unread:
    """An instrument that nobody can read."""

    def labels(self, *_: str) -> _Unread:
        return self

    def inc(self, _amount: float = 1) -> None:
        pass

    def observe(self, _amount: float) -> None:
        pass


def _histogram(
    name: str, text: str, labels: tuple[str, ...], buckets: tuple[float, ...], registry: Registry
) -> Histogram:
    if registry is None:
        return cast(Histogram, _Unread())
    return Histogram(name, text, labels, buckets=buckets, registry=registry)


def _counter(name: str, text: str, labels: tuple[str, ...], registry: Registry) -> Counter:
    if registry is None:
        return cast(Counter, _Unread())
    return Counter(name, text, labels, registry=registry)


class ApiMetrics:
    """Instruments of an API process."""

    def __init__(self, registry: Registry = None) -> None:
        self._requests = _counter(
            "longhaul_http_requests",
            "Requests by the status of their answer, or 101 for a WebSocket.",
            ("method", "route", "status"),
            registry,
        )
        self._request_seconds = _histogram(
            "longhaul_http_request_seconds",
            "Seconds from the head of a request to the start of its answer.",
            ("method", "route"),
            SHORT,
            registry,
        )
        self._refusals = _counter(
            "longhaul_refusals",
            "Requests, and messages of WebSockets, that were refused although nothing was wrong with them, by the code"
            " of their error (429, 503); with the limit and its project if a limit was reached.",
            ("code", "limit", "project"),
            registry,
        )
        _at_zero(self._refusals, *((code, "", "") for code in REFUSALS))
        self.outside_endings = outside_endings(registry)
        self._projects = Bounded()
        self._answers: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}
        """The counters of each kind of answer: finding one by its labels takes longer than counting."""

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        """An answer begins, so many seconds after its request. The method and the route are of few."""
        key = method, route, status
        if (found := self._answers.get(key)) is None:
            requests = _at_zero(self._requests, *((method, route, failure) for failure in FAILURES))
            times = self._request_seconds.labels(method, route)
            found = self._answers[key] = requests.labels(method, route, str(status)), times
        found[0].inc()
        found[1].observe(seconds)

    def refused(self, error: ApiError | None) -> None:
        """A request is refused because of this error; counts unless the request was wrong."""
        if isinstance(error, LimitReached):
            limit = error.shortage.limit
            labels = limit.kind.value, self._projects.label(limit.project)
        elif isinstance(error, ShareUsed | Unavailable):
            labels = "", ""
        else:
            return
        self._refusals.labels(error.error.code, *labels).inc()


def _at_zero(counter: Counter, *labels: tuple[str, ...]) -> Counter:
    """The counter, with these labels from the start on: a rate needs a value before the first event."""
    for values in labels:
        counter.labels(*values)
    return counter


def outside_endings(registry: Registry = None) -> Counter:
    """The counter of `app/announcer.py`, in API processes and in maintenance."""
    counter = _counter(
        "longhaul_outside_endings",
        "Responses that this process ended from outside their run: cancelled by a caller, failed at a deadline, ...",
        ("status",),
        registry,
    )
    return _at_zero(counter, (Status.CANCELLED.value,), (Status.FAILED.value,))


class TokenTimes:
    """When the tokens of one turn come."""

    __slots__ = ("_first", "_gaps", "_last", "_since_insert", "_tokens")

    def __init__(
        self, gaps: Histogram, tokens: Counter, first: Histogram | None, since_insert: Callable[[], float] | None
    ) -> None:
        self._gaps = gaps
        self._tokens = tokens
        self._first = first
        self._since_insert = since_insert
        self._last = 0.0

    def note(self, tokens: int) -> None:
        """The engine gave so many tokens."""
        if not tokens:
            return
        now = time.perf_counter()
        if self._last:
            self._gaps.observe((now - self._last) / tokens)
        elif self._first is not None and self._since_insert is not None:
            self._first.observe(self._since_insert())
        self._last = now
        self._tokens.inc(tokens)


class WorkerMetrics:
    """Instruments of a worker."""

    def __init__(self, model: str = "", registry: Registry = None) -> None:
        self._model = model
        self._registry = registry
        self._queue_wait = self._histogram(
            "longhaul_queue_wait_seconds",
            "Seconds from the insert of a response to its first claim.",
            ("tier", "mode"),
            LONG,
        )
        self._run = self._histogram(
            "longhaul_run_seconds",
            "Seconds from the first claim of a response to its end, over all of its attempts.",
            ("status",),
            LONG,
        )
        self._run.labels(model, Status.FAILED.value)  # a rate needs a value before the first failure
        self._attempt = self._histogram(
            "longhaul_attempt_seconds", "Seconds of one attempt, by how it ended.", ("outcome",), LONG
        )
        self._first_token = self._histogram(
            "longhaul_first_token_seconds",
            "Seconds from the insert of a response to its first token from the engine.",
            ("tier", "mode"),
            LONG,
        )
        self._commit_seconds = self._histogram(
            "longhaul_journal_commit_seconds", "Seconds of one commit of the journal.", (), SHORT
        ).labels(model)
        self._commit_chunks = self._histogram(
            "longhaul_journal_commit_chunks", "Chunks in one commit of the journal.", (), CHUNKS
        ).labels(model)
        self._publish_seconds = self._histogram(
            "longhaul_publish_seconds",
            "Seconds from a commit until Redis has its chunks for readers, of the oldest chunk of each batch.",
            (),
            SHORT,
        ).labels(model)
        self._takeovers = self._counter(
            "longhaul_takeovers",
            "Claims of a response that an earlier attempt had begun, by why that ended: yield, or release (a crash or"
            " a drain).",
            ("reason",),
        )
        _at_zero(self._takeovers, (model, "yield"), (model, "release"))
        self._gaps = self._histogram(
            "longhaul_inter_token_seconds",
            "Seconds from one delta of the engine to the next within a turn, divided by its tokens.",
            (),
            TOKENS,
        ).labels(model)
        self._tokens = self._counter("longhaul_generated_tokens", "Tokens that the engine generated.").labels(model)
        self._prompt = self._counter("longhaul_prompt_tokens", "Tokens of the prompts of turns.").labels(model)
        self._cached = self._counter(
            "longhaul_cached_prompt_tokens", "Of these, tokens that the engine had in its cache: what placement gains."
        ).labels(model)
        self._tool_calls = self._counter(
            "longhaul_tool_calls", "Calls of hosted tools, by kind, and whether they succeeded.", ("kind", "outcome")
        )
        _at_zero(
            self._tool_calls,
            *((model, *each) for each in product((*get_args(ServerKind), UNKNOWN_TOOL), ("ok", "failed"))),
        )

    def _histogram(self, name: str, text: str, labels: tuple[str, ...], buckets: tuple[float, ...]) -> Histogram:
        return _histogram(name, text, ("model", *labels), buckets, self._registry)

    def _counter(self, name: str, text: str, labels: tuple[str, ...] = ()) -> Counter:
        return _counter(name, text, ("model", *labels), self._registry)

    def name(self, worker: str, version: str) -> None:
        """Shows the worker's name, which rows, logs, Flower and commands have for it."""
        info = Gauge(
            "longhaul_worker_info",
            "1; the labels name this worker, as its row, its log, Flower and commands do.",
            ("model", "worker", "version"),
            registry=self._registry,
        )
        info.labels(self._model, worker, version).set(1)

    def watch(self, figures: Mapping[str, Callable[[], float]]) -> None:
        """Shows these figures (the keys of WORKER_GAUGES) as they are at each scrape."""
        for name, text in WORKER_GAUGES.items():
            gauge = Gauge(f"longhaul_worker_{name}", text, ("model",), registry=self._registry)
            gauge.labels(self._model).set_function(figures[name])

    def claimed(self, attempt: int, *, has_yielded: bool) -> None:
        """A claim was made, the first one or a later one."""
        if attempt > 1:
            self._takeovers.labels(self._model, "yield" if has_yielded else "release").inc()

    def waited(self, priority: int, seconds: float) -> None:
        """A response was claimed for the first time."""
        self._queue_wait.labels(self._model, *class_of(priority)).observe(seconds)

    def attempted(self, outcome: str, seconds: float) -> None:
        """An attempt has ended."""
        self._attempt.labels(self._model, outcome).observe(seconds)

    def ended(self, status: str, seconds: float) -> None:
        """A response has ended, so many seconds after its first claim."""
        self._run.labels(self._model, status).observe(seconds)

    def turn(self, first: Callable[[], float] | None, priority: int) -> TokenTimes:
        """Times a turn that begins. `first` gives the seconds since the insert of a response without a token."""
        observed = self._first_token.labels(self._model, *class_of(priority)) if first is not None else None
        return TokenTimes(self._gaps, self._tokens, observed, first)

    def read_prompt(self, tokens: int, cached: int) -> None:
        """A turn has ended, whose prompt had so many tokens."""
        self._prompt.inc(tokens)
        self._cached.inc(cached)

    @contextmanager
    def commit(self, chunks: int) -> Iterator[None]:
        """Times a commit of the journal in its block. A commit that raises does not count."""
        began = time.perf_counter()
        yield
        self._commit_seconds.observe(time.perf_counter() - began)
        self._commit_chunks.observe(chunks)

    def published(self, seconds: float) -> None:
        """Redis has what was committed so long ago."""
        self._publish_seconds.observe(seconds)

    def called_tool(self, kind: str | None, *, ok: bool) -> None:
        """A call has its result. Without a kind: of a tool that does not exist."""
        self._tool_calls.labels(self._model, kind or UNKNOWN_TOOL, "ok" if ok else "failed").inc()


UNREAD = WorkerMetrics()
"""Counts, and nobody reads it."""
WORKER_GAUGES = {
    "slots": "Responses that this worker's engine generates at once.",
    "offered_slots": "Slots that may be sent responses now; 0 while the worker drains or has no connection to Redis.",
    "running_responses": "Responses that run in this worker.",
    "generating_responses": "Of these, responses that have a slot.",
    "waiting_responses": "Of these, responses that wait in the worker for a slot, their prompts ready.",
    "away_responses": "Of these, responses that wait for hosted tools without a slot, as the dispatch knows it.",
}
"""Gauges of a worker: `longhaul_worker_` and the key is the name."""


class MaintenanceMetrics:
    """Instruments of maintenance."""

    def __init__(self, registry: Registry = None) -> None:
        self.redeliveries = Counter(
            "longhaul_redeliveries",
            "Messages that led to no claim in time: their responses wait again.",
            registry=registry,
        )
        self.dead_workers = Counter(
            "longhaul_dead_workers",
            "Workers that died, lost their lease, or left responses behind, and were removed.",
            registry=registry,
        )
        self.lost_attempts = Counter(
            "longhaul_lost_attempts",
            "Attempts that these workers ran: their responses were released.",
            registry=registry,
        )
        self._steps = Histogram(
            "longhaul_maintenance_step_seconds",
            "Seconds of one round of a step of maintenance.",
            ("step",),
            buckets=SHORT,
            registry=registry,
        )
        self.outside_endings = outside_endings(registry)
        self.webhook_attempts = Counter(
            "longhaul_webhook_attempts",
            "Attempts to deliver an event to a webhook endpoint: delivered, failed, or given_up (failed for good).",
            ("outcome",),
            registry=registry,
        )
        _at_zero(self.webhook_attempts, ("delivered",), ("failed",), ("given_up",))

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Times a round of a step in its block. A round that raises does not count."""
        began = time.perf_counter()
        yield
        self._steps.labels(name).observe(time.perf_counter() - began)
