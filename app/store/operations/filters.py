"""The filter of a list, a count or a bulk action: the one place that makes conditions of it.

A filter becomes branches and a test. Each branch is a range of an index, in the order of lists: by `inserted_at`, the
clock of Postgres. The test is for what no index has. So a statement reads a window of the branches, and tests each row
in it: however few match, it takes no longer than its window (listing.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Self

import orjson
from sqlalchemy import TextClause, text

from app.protocol.limits import SERVICE_TIERS
from app.protocol.status import TRANSITIONS, Status
from app.queue.message import Priority, class_of

TIERS: Mapping[str, tuple[int, ...]] = MappingProxyType(
    {tier: tuple(each.value for each in Priority if class_of(each)[0] == tier) for tier in SERVICE_TIERS}
)
"""The priorities of a service tier."""
_TIMES = frozenset({"created_after", "created_before"})
_RENAMED = {"statuses": "status", "tier": "service_tier", "since": "created_after", "until": "created_before"}
"""The names in jobs that earlier versions stored."""


@dataclass(frozen=True, slots=True)
class ResponseFilter:
    """The conditions that all of the responses meet. A field that is empty or None limits nothing."""

    ids: tuple[str, ...] = ()
    status: tuple[Status, ...] = ()
    project: str | None = None
    model: str | None = None
    key: str | None = None
    """The id of an API key."""
    batch: str | None = None
    request_id: str | None = None
    service_tier: str | None = None
    error_code: str | None = None
    metadata: tuple[tuple[str, str], ...] = ()
    """Keys with their values."""
    created_after: datetime | None = None
    created_before: datetime | None = None
    """Inserted before then."""
    only_kept: bool = field(default=False)
    """Without foreground responses that are not stored: their clients read them no second time."""

    @property
    def is_empty(self) -> bool:
        """Whether it says nothing of its own: then it matches everything."""
        return self == ResponseFilter(status=self.status, only_kept=self.only_kept)

    def as_json(self) -> dict[str, Any]:
        """The filter as a job and the audit log keep it."""
        said = {name: value for name, value in asdict(self).items() if value}
        if self.status:
            said["status"] = [status.value for status in self.status]
        for name in _TIMES & said.keys():
            said[name] = said[name].isoformat()
        return said | ({"metadata": dict(self.metadata)} if self.metadata else {})

    @classmethod
    def from_json(cls, said: Mapping[str, Any]) -> Self:
        """Returns the filter that a request or a job says.

        Raises ValueError for one that another version has written, and that says more than this one knows.
        """
        said = {_RENAMED.get(name, name): value for name, value in said.items() if value is not None}
        if unknown := said.keys() - {each.name for each in fields(cls)}:
            raise ValueError(f"a filter by {', '.join(sorted(unknown))}")
        return cls(
            **{
                **said,
                "ids": tuple(said.get("ids", ())),
                "status": tuple(map(Status, said.get("status", ()))),
                "metadata": tuple(said.get("metadata", {}).items()),
                **{name: _moment(said[name]) for name in _TIMES & said.keys()},
            }
        )


# -- conditions --------------------------------------------------------------------------------------------------------

_TESTS: Mapping[str, str] = MappingProxyType(
    {
        "model": "r.model = :model",
        "key": "r.key_id = :key",
        "request_id": "r.request_id = :request_id",
        "service_tier": "r.priority = ANY(CAST(:service_tier AS smallint[]))",
        "only_kept": "(r.store OR r.background)",
    }
)
"""Field of the filter -> condition on a row of a branch."""
_RANGES: Mapping[str, str] = MappingProxyType(
    {
        "ids": "r.id = ANY(CAST(:ids AS text[]))",
        "project": "r.project = :project",
        "batch": "r.batch_id = :batch",
        "error_code": "r.error_code = :error_code",
        "created_after": "r.inserted_at >= :created_after",
        "created_before": "r.inserted_at < :created_before",
    }
)
"""Field of the filter -> condition that an index answers."""
_BATCH_TESTS: Mapping[str, str] = MappingProxyType(
    {
        "project": "b.project = :project",
        "model": "b.model = :model",
        "key": "b.key_id = :key",
        "batch": "b.id = :batch",
        "created_after": "b.created_at >= :created_after",
        "created_before": "b.created_at < :created_before",
    }
)
"""Field of the filter -> condition on a batch, for fields that hold for all of its lines or none."""
# As orjson wrote it: within a text, quotes are escaped, and what opens a text stands behind a brace or a comma.
_HAS_PAIR = (
    "(strpos(CAST(r.metadata AS text), '{{' || :pair{0}) > 0 OR strpos(CAST(r.metadata AS text), ',' || :pair{0}) > 0)"
)


@dataclass(frozen=True, slots=True)
class Place:
    """A response's place in the order of lists."""

    inserted_at: datetime
    position: int


@dataclass(frozen=True, slots=True)
class Window:
    """The next `size` rows of a filter's branches behind `after`, for statements to read from."""

    text: str
    """A query of (id, inserted_at, position, status, matches), in order."""
    values: Mapping[str, Any]

    def reading(self, column: str) -> TextClause:
        """A statement that reads the window, with one more column of the row `r` of each response that matches."""
        return text(
            f"""
            WITH seen AS MATERIALIZED ({self.text})
            SELECT s.id, s.inserted_at, s.position, s.matches, r.*
            FROM seen s LEFT JOIN LATERAL (
                SELECT {column} FROM responses r WHERE s.matches AND r.id = s.id LIMIT 1
            ) r ON true
            ORDER BY s.inserted_at, s.position
            """
        )


def window(
    only: ResponseFilter, statuses: Iterable[Status], size: int, after: Place | None, *, descending: bool
) -> Window:
    """Returns what reads the filter's rows of these `statuses` (those of the filter count as well)."""
    ranges = [condition for name, condition in _RANGES.items() if getattr(only, name)]
    tests = [condition for name, condition in _TESTS.items() if getattr(only, name)]
    tests += [_HAS_PAIR.format(number) for number in range(len(only.metadata))]
    values: dict[str, Any] = {"window": size, **_values(only)}
    sign, direction = (("<", "DESC"), (">", ""))[not descending]
    order = f"inserted_at {direction}, position {direction}"
    if after is not None:
        # The first condition is the index's, the second tells apart what was inserted together.
        ranges.append(f"r.inserted_at {sign}= :after_at AND (r.inserted_at, r.position) {sign} (:after_at, :after)")
        values |= {"after_at": after.inserted_at, "after": after.position}
    wanted = [status for status in statuses if not only.status or status in only.status]
    if only.error_code is not None:
        wanted = [status for status in wanted if status is Status.FAILED]
    columns = f"r.id, r.inserted_at, r.position, r.status, {_all('true', *tests)} AS matches"
    branches = [
        f"(SELECT {columns} FROM responses r WHERE {_all(f'r.status = {status.value!r}', *ranges)}"
        f" ORDER BY r.inserted_at {direction}, r.position {direction} LIMIT :window)"
        for status in wanted
    ] or [f"(SELECT {columns} FROM responses r WHERE false)"]
    return Window(f"SELECT * FROM ({' UNION ALL '.join(branches)}) w ORDER BY {order} LIMIT :window", values)


_LINES = """
    SELECT r.id, timestamptz 'epoch' AS inserted_at, r.batch_line AS position, r.status, true AS matches
    FROM responses r WHERE r.batch_id = :batch AND r.batch_line > :after AND r.finished_at IS NULL
    ORDER BY r.batch_line LIMIT :window
"""


def lines_window(batch_id: str, size: int, after: Place | None) -> Window:
    """Returns what reads the lines of a batch that have not ended, in order: their lines are their places."""
    return Window(_LINES, {"batch": batch_id, "window": size, "after": 0 if after is None else after.position})


@dataclass(frozen=True, slots=True)
class BatchTest:
    """The condition of batches that match a filter."""

    text: str
    """A condition of the batch `b`."""
    values: Mapping[str, Any]
    is_whole: bool
    """Whether they end as a whole. Otherwise what runs of them goes on."""


def batch_test(only: ResponseFilter) -> BatchTest | None:
    """Returns which batches a cancel of what matches is about; None: the filter tells apart lines of one batch."""
    said = {name: value for name in _BATCH_TESTS if (value := getattr(only, name))}
    statuses = set(only.status or Status)
    if Status.QUEUED not in statuses or only != ResponseFilter(status=only.status, **said):
        return None
    is_whole = TRANSITIONS["cancel"].sources <= statuses
    return BatchTest(_all("true", *(_BATCH_TESTS[name] for name in said)), said, is_whole)


def _all(*conditions: str) -> str:
    return " AND ".join(conditions)


def _values(only: ResponseFilter) -> dict[str, Any]:
    given = {name: value for name in (*_TESTS, *_RANGES) if (value := getattr(only, name))}
    given.pop("only_kept", None)
    if only.service_tier is not None:
        given["service_tier"] = list(TIERS[only.service_tier])
    if only.ids:
        given["ids"] = list(only.ids)
    pairs = (orjson.dumps({key: value})[1:-1].decode() for key, value in only.metadata)
    return given | {f"pair{number}": pair for number, pair in enumerate(pairs)}


def _moment(said: int | str) -> datetime:
    """Returns the time of epoch seconds, or of what `as_json` has written."""
    return datetime.fromtimestamp(said, UTC) if isinstance(said, int) else datetime.fromisoformat(said)
