"""What one thing costs: the prices that the model multiplies. All of them are measured (units.py)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, get_args, get_type_hints

MICRO = 1e6


@dataclass(frozen=True, slots=True)
class Line:
    """A price that grows with a count."""

    fixed: float
    each: float

    def at(self, count: float) -> float:
        return self.fixed + self.each * count

    @classmethod
    def through(cls, points: Iterable[tuple[float, float]]) -> Line:
        """The line with the least relative errors: a price of microseconds weighs as much as one of milliseconds.

        Neither part is below zero. Raises ValueError where all points have the same count.
        """
        found = [(count, value, value**-2) for count, value in points if value > 0]
        weight = sum(w for _, _, w in found)
        x, y = (sum(w * each[i] for *each, w in found) / (weight or 1) for i in (0, 1))
        spread = sum(w * (count - x) ** 2 for count, _, w in found)
        if not spread:
            raise ValueError("a line needs two counts")
        each = max(0.0, sum(w * (count - x) * (value - y) for count, value, w in found) / spread)
        return cls(max(0.0, y - each * x), each)


@dataclass(frozen=True, slots=True)
class Costs:
    """CPU seconds of one core of the measuring machine; prices named `..._wal` are bytes."""

    commit: Annotated[Line, "Postgres: a journal transaction, and each chunk in it"]
    commit_wal: Annotated[Line, "WAL of a journal transaction, and of each chunk in it"]
    bystander: Annotated[float, "Postgres: a journal transaction, for each response in progress that is not in it"]
    create: Annotated[float, "Postgres: a POST"]
    claim: Annotated[float, "Postgres: a claim"]
    finish: Annotated[float, "Postgres: an ending, beside its chunk"]
    request_wal: Annotated[float, "WAL of a POST, its claim and its ending"]
    poll: Annotated[float, "Postgres: a GET of a response"]
    merge: Annotated[Line, "Postgres: merging the log of a response and vacuuming after it, and each of its chunks"]
    merge_wal: Annotated[Line, "WAL of merging a log, and of each of its chunks"]
    tidy: Annotated[Line, "maintenance: merging the log of a response, and each of its chunks"]
    heartbeat: Annotated[float, "Postgres: a heartbeat"]
    presence: Annotated[float, "Postgres: a check of a worker's presence"]
    looks: Annotated[Line, "Postgres: a second of maintenance's looks, and for each worker"]
    publish: Annotated[Line, "Redis: the publishing of a commit, and each message of it"]
    deliver: Annotated[float, "Redis: a message, for each API process that receives it"]
    send: Annotated[float, "Redis: taking a task's message"]
    consume: Annotated[float, "Redis: handing a task's message to a worker, with the events for Flower"]
    idle: Annotated[float, "Redis: a second of a worker that has nothing to do"]
    tick: Annotated[float, "Redis: a second without requests"]
    post: Annotated[float, "API: a POST"]
    get: Annotated[float, "API: a GET of a response"]
    receive: Annotated[float, "API: a chunk received"]
    write: Annotated[float, "API: a chunk written to one reader"]

    @classmethod
    def of(cls, rows: Sequence[Mapping[str, Any]]) -> Costs:
        """From rows as `rows` makes them. Raises ValueError where one is missing."""
        found = {row["name"]: row for row in rows}
        values: dict[str, Any] = {}
        for name in cls.__slots__:
            if name not in found:
                raise ValueError(f"the price {name!r} was not measured")
            fixed, each, by = found[name]["price"], found[name]["each"], _unit(name)[1]
            values[name] = fixed / by if each is None else Line(fixed / by, each / by)
        return cls(**values)

    def rows(self) -> list[dict[str, Any]]:
        """One for each price, as they are kept and shown."""
        return [self._row(name, says) for name, says in _says().items()]

    def _row(self, name: str, says: str) -> dict[str, Any]:
        found, (unit, by) = getattr(self, name), _unit(name)
        fixed, each = (found.fixed, by * found.each) if isinstance(found, Line) else (found, None)
        return {"name": name, "what": says, "price": by * fixed, "each": each, "unit": unit}


def _says() -> dict[str, str]:
    hints = get_type_hints(Costs, include_extras=True)
    return {name: str(get_args(hints[name])[1]) for name in Costs.__slots__}


def _unit(name: str) -> tuple[str, float]:
    """The unit in which a price is shown, and how many of them make one of ours."""
    return ("B", 1.0) if name.endswith("_wal") else ("µs", MICRO)
