"""Order and place against a model that sends one response after the other.

The order is that of start-time fair queueing. The place is the worker that had the response before, or the emptiest.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from sqlalchemy import text

from app.queue.message import FOREGROUND, WEIGHTS, Priority
from app.scheduling.loads import NOTHING_AHEAD, kept_of, most_foreground_of
from app.scheduling.order import MAX_WINDOW_PART
from app.scheduling.placement import SURPLUS
from app.scheduling.windows import MARGIN
from app.store.database import Database
from app.store.queue import dispatch, drains, pauses, redelivery, windows, workers
from app.store.queue.dispatch import MAX_SCALE, MIN_SCALE, SCALE_RESPONSES, FlowCorrection, QueueFlow
from app.store.queue.workers import WorkerIdentity
from app.store.responses import claims, endings, lookup
from app.store.rows import ResponseRow
from tests.integration.store.common import scalar, sql
from tests.support.services import AS_OWNER
from tests.support.waiting_rows import QUEUE, end, take, waiting, weigh

CLASSES = list(Priority)
TIERS = {
    Priority.PRIORITY_BACKGROUND: Priority.PRIORITY_FOREGROUND,
    Priority.BACKGROUND: Priority.FOREGROUND,
    Priority.FLEX: Priority.FLEX_FOREGROUND,
    Priority.WINDOW: Priority.FOREGROUND,
}
"""Class of background responses -> the class that weighs as much as their tier."""
WORKERS = {"v": 17, "w": 4}
"""Their slots."""
OPEN = 20
"""Slots that are open to all."""
WINDOWS = [1_000, 100_000]
"""In seconds. What takes 5,000 cannot be in time in the first of them."""


@dataclass
class Row:
    id: str
    arrival: int
    flow: tuple[str, Priority]
    cost: int
    charged: bool = False
    placed: bool = False
    """Whether it has a foreground place."""
    node: str | None = None
    """Where it was sent last."""
    window: int = 0

    @property
    def is_foreground(self) -> bool:
        return self.flow[1] in FOREGROUND


@dataclass
class Model:
    """The queue, without Postgres. Fractions: its sums have no rounding errors."""

    time: Fraction = Fraction(0)
    began: Fraction = Fraction(0)
    """The time when the dispatch began: what waits until nothing else does starts there."""
    tags: dict[tuple[str, Priority], Fraction] = field(default_factory=dict)
    scales: dict[tuple[str, Priority], float] = field(default_factory=dict)
    steps: dict[tuple[str, Priority], Fraction] = field(default_factory=dict)
    """How far a token moved a flow's tag when it was charged last."""
    parts: dict[str, Fraction] = field(default_factory=dict)
    """How far the work in windows of projects has risen."""
    seconds: dict[tuple[str, Priority], float] = field(default_factory=dict)
    """What responses of a flow took of late."""
    weights: dict[str, int] = field(default_factory=dict)
    waiting: list[Row] = field(default_factory=list)
    sent: list[Row] = field(default_factory=list)
    running: list[Row] = field(default_factory=list)
    paused: set[str | None] = field(default_factory=set)
    """Projects; None: all."""
    drained: set[str] = field(default_factory=set)
    """Workers."""

    @property
    def ready(self) -> list[Row]:
        """Those that wait and are not paused, in the order of their arrival."""
        waiting = [] if None in self.paused else [row for row in self.waiting if row.flow[0] not in self.paused]
        return sorted(waiting, key=lambda row: row.arrival)

    def rooms(self, room: Callable[[str, int], int]) -> dict[str, int]:
        """The room of each worker: `room` of its node and its slots, unless it is drained."""
        return {node: 0 if node in self.drained else room(node, slots) for node, slots in WORKERS.items()}

    def weight(self, flow: tuple[str, Priority]) -> Fraction:
        return Fraction(WEIGHTS[flow[1]]) * self.weights.get(flow[0], 1)

    def share(self) -> dict[tuple[str, Priority], Fraction]:
        """What each flow that waits moves by a token: those of a project share the weight of its best tier."""
        flows = {row.flow for row in self.ready}
        steps = {}
        for flow in flows:
            others = [each for each in flows if each[0] == flow[0] and each[1] is not Priority.WINDOW]
            default = self.weight((flow[0], Priority.FOREGROUND))
            most = Fraction(MAX_WINDOW_PART) if others else Fraction(1)
            risen = min(self.parts.get(flow[0], Fraction(0)), most) if (flow[0], Priority.WINDOW) in flows else 0
            if flow[1] is Priority.WINDOW:
                steps[flow] = 1 / ((risen or 1) * default)
                continue
            tier = max(self.weight((project, TIERS.get(other, other))) for project, other in others)
            rest = min(tier, max(tier, default) - risen * default)
            steps[flow] = sum(map(self.weight, others)) / self.weight(flow) / rest
        return steps

    def in_line(self) -> list[Row]:
        """What waits, each flow in its order: the nearest deadline first, but last what cannot be in time."""

        def key(row: Row) -> tuple[bool, int, int]:
            is_late = row.window > 0 and row.window <= MARGIN * self.seconds.get(row.flow, 0.0)
            return is_late, row.window, row.arrival

        return sorted(self.ready, key=key)

    def dispatch(self) -> Iterator[str]:
        """The ids that are sent until there is neither a foreground place nor a slot."""
        while ids := self._dispatch_once(self.share()):
            yield from ids

    def _dispatch_once(self, steps: dict[tuple[str, Priority], Fraction]) -> list[str]:
        """The flows' shares are those of what waits before it."""
        return [*self._send_to_places(steps), *self._send_in_order(steps)]

    def _send_to_places(self, steps: dict[tuple[str, Priority], Fraction]) -> list[str]:
        rooms = self.rooms(lambda node, slots: most_foreground_of(slots) - self.has(node, placed=True))
        kept = _sum(self.rooms(lambda node, slots: kept_of(slots) - self.has(node, placed=True)))
        offers = sorted(self._offers(steps), key=lambda offer: offer[:3])[: _sum(rooms)]
        at_work = [row for row in self.running if row.node not in self.drained]
        held = Counter(row.flow for row in at_work)
        level = max((n / self.weight(flow) for flow, n in held.items() if flow[1] not in FOREGROUND), default=None)
        held.update(row.flow for row in self.sent if row.placed and row.node not in self.drained)
        chosen = [
            (start, row)
            for place, (start, _, _, number, row) in enumerate(offers, 1)
            if place <= kept or (level is not None and number + held[row.flow] <= self.weight(row.flow) * level)
        ]
        self._place([row for _, row in chosen], rooms)
        for start, row in chosen:
            row.placed = True
            self._charge(row, start, steps)
        return [row.id for _, row in chosen]

    def has(self, node: str, *, placed: bool | None = None) -> int:
        """How many responses a worker has; those with a foreground `placed`, or the others."""
        rows = [*self.sent, *self.running]
        return sum(row.node == node and placed in (None, row.placed) for row in rows)

    def _place(self, rows: list[Row], rooms: dict[str, int]) -> None:
        """Gives the rows their nodes: first those that go where they were, then all others."""
        load = {node: self.has(node) for node in WORKERS}
        least = min((Fraction(load[node], WORKERS[node]) for node in WORKERS if rooms[node] > 0), default=Fraction(0))
        stay, left, before = list[Row](), dict(rooms), dict(load)
        for row in rows:
            node = row.node
            if node is not None and rooms[node] > 0:
                is_near = load[node] <= WORKERS[node] * (least + Fraction(SURPLUS))
                if left[node] > 0 and is_near:
                    stay.append(row)
                    left[node] -= 1
                load[node] += 1
        load = {node: before[node] + sum(row.node == node for row in stay) for node in WORKERS}
        for row in rows:
            if row not in stay:
                row.node = min(
                    (node for node in WORKERS if left[node] > 0),
                    key=lambda node: (Fraction(load[node] + 1, WORKERS[node]), node),
                )
                load[row.node] += 1
                left[row.node] -= 1

    def _offers(self, steps: dict[tuple[str, Priority], Fraction]) -> Iterator[tuple[Fraction, bool, int, int, Row]]:
        """For each foreground response that waits: its start, whether its flow was busy, and its number in its flow."""
        numbers: Counter[tuple[str, Priority]] = Counter()
        starts: dict[tuple[str, Priority], Fraction] = {}
        for row in self.ready:
            if row.is_foreground:
                tag = self.tags.get(row.flow, Fraction(-1))
                start = starts.get(row.flow, max(tag, self.time))
                numbers[row.flow] += 1
                number = numbers[row.flow]
                yield start, not (tag < self.time and number == 1), row.arrival, number, row
                starts[row.flow] = start + self._price(row) * steps[row.flow]

    def _send_in_order(self, steps: dict[tuple[str, Priority], Fraction]) -> list[str]:
        self.began = self.time
        rooms = self.rooms(
            lambda node, slots: slots - max(kept_of(slots), self.has(node, placed=True)) - self.has(node, placed=False)
        )
        number = len(self.sent)
        chosen = [self._send(steps) for _ in range(min(_sum(rooms), len(self.ready)))]
        self.sent = self.sent[:number]
        self._place(chosen, rooms)
        self.sent += chosen
        return [row.id for row in chosen]

    def _send(self, steps: dict[tuple[str, Priority], Fraction]) -> Row:
        heads: dict[tuple[str, Priority], Row] = {}
        for row in self.in_line():
            heads.setdefault(row.flow, row)
        _, start, _, _, row = min(
            (is_last, max(tag, now), tag >= now, row.arrival, row)
            for row in heads.values()
            for is_last in [self.is_last(row.flow)]
            for tag, now in [(self.tags.get(row.flow, Fraction(-1)), self.began if is_last else self.time)]
        )
        self._charge(row, start, steps)
        self.time = max(self.time, start)
        return row

    def is_last(self, flow: tuple[str, Priority]) -> bool:
        return flow[1] is Priority.WINDOW and not self.parts.get(flow[0])

    def _charge(self, row: Row, start: Fraction, steps: dict[tuple[str, Priority], Fraction]) -> None:
        self.steps[row.flow] = steps[row.flow]
        self.tags[row.flow] = start + self._price(row) * steps[row.flow]
        row.charged = True
        self.waiting.remove(row)
        self.sent.append(row)

    def _price(self, row: Row) -> int:
        return 0 if row.charged else math.ceil(row.cost * self.scales.get(row.flow, 1.0))

    def correct(self, flow: tuple[str, Priority], ended: FlowCorrection) -> None:
        if flow in self.tags:
            self.tags[flow] += (ended.used - ended.charged) * self.steps[flow]
            scale = self.scales.get(flow, 1.0)
            scale += min(ended.count / SCALE_RESPONSES, 1.0) * (ended.used / ended.cost - scale)
            self.scales[flow] = max(MIN_SCALE, min(MAX_SCALE, scale))
            seconds = ended.seconds / ended.count
            known = self.seconds.get(flow, seconds)
            self.seconds[flow] = known + min(ended.count / SCALE_RESPONSES, 1.0) * (seconds - known)


def _sum(rooms: dict[str, int]) -> int:
    return sum(max(room, 0) for room in rooms.values())


def _corrected(count: int, cost: int, charged: int, used: int, is_long: bool) -> FlowCorrection:
    return FlowCorrection(count, cost, charged, used, 5_000.0 * count if is_long else 0.0)


flows = st.tuples(st.sampled_from("abc"), st.sampled_from(CLASSES))
steps = st.one_of(
    *(
        st.tuples(st.just("arrive"), flows, st.integers(1, 2000), st.integers(1, 12), st.sampled_from(WINDOWS))
        for _ in range(4)
    ),
    *(st.tuples(st.just("dispatch")) for _ in range(2)),
    st.tuples(st.just("claim"), st.integers(1, OPEN)),
    st.tuples(st.just("end"), st.integers(0, 12)),
    st.tuples(st.just("yield_"), st.integers(0, 12)),
    st.tuples(st.just("cancel"), st.integers(0, 30)),
    st.tuples(st.just("lose")),
    st.tuples(
        st.just("correct"),
        flows,
        st.builds(_corrected, *(st.integers(1, most) for most in (40, 900, 900, 900)), st.booleans()),
    ),
    st.tuples(st.just("rise"), st.sampled_from("abc"), st.sampled_from([0.0, 0.25, 1.0])),
    st.tuples(st.just("weigh"), st.sampled_from("abc"), st.sampled_from([1, 2, 8])),
    st.tuples(st.just("forget")),
    st.tuples(st.just("pause"), st.sampled_from(["a", "b", "c", None])),
    st.tuples(st.just("resume"), st.sampled_from(["a", "b", "c", None])),
    st.tuples(st.just("drain"), st.sampled_from(sorted(WORKERS))),
    st.tuples(st.just("undrain"), st.sampled_from(sorted(WORKERS))),
)


class Queue:
    """Takes each step in Postgres and in the model."""

    def __init__(self, db: Database) -> None:
        self.db = db
        self.model = Model()
        self.arrivals = 0

    async def arrive(self, flow: tuple[str, Priority], cost: int, count: int, window: int) -> None:
        window = window if flow[1] is Priority.WINDOW else 0
        for response_id in await waiting(self.db, flow[0], count, priority=flow[1], cost=cost, window=window or None):
            self.arrivals += 1
            self.model.waiting.append(Row(response_id, self.arrivals, flow, cost, window=window))

    async def rise(self, project: str, part: float) -> None:
        flow = (project, Priority.WINDOW)
        await windows.raise_to(self.db, {QueueFlow(QUEUE, *flow): part})
        self.model.parts[project] = Fraction(part)
        self.model.tags.setdefault(flow, Fraction(0))
        self.model.steps.setdefault(flow, Fraction(0))

    async def dispatch(self) -> None:
        ids: list[str] = []
        while messages := await dispatch.dispatch(self.db, QUEUE):
            ids += [message.response_id for message in messages]
        assert ids == list(self.model.dispatch())
        await self.compare_places()

    async def compare_places(self) -> None:
        found = "SELECT id, sent_to FROM responses WHERE sent_at IS NOT NULL AND finished_at IS NULL"
        places = {row.id: row.sent_to for row in await sql(self.db, found)}
        assert places == {row.id: row.node for row in [*self.model.sent, *self.model.running]}

    async def claim(self, count: int) -> None:
        claimed, self.model.sent = self.model.sent[:count], self.model.sent[count:]
        for node in WORKERS:
            await take(self.db, [row.id for row in claimed if row.node == node], node)
        self.model.running += claimed

    async def end(self, number: int) -> None:
        if number < len(self.model.running):
            await endings.cancel(self.db, self.model.running.pop(number).id, None)

    async def yield_(self, number: int) -> None:
        """One that runs waits again, in its old place of its flow."""
        background = [row for row in self.model.running if not row.is_foreground]
        if number < len(background):
            row = background[number]
            found = await lookup.find(self.db, row.id)
            assert isinstance(found, ResponseRow)
            assert await claims.yield_(self.db, row.id, found.attempt, str(row.node))
            self.model.running.remove(row)
            self.model.waiting.append(row)

    async def cancel(self, number: int) -> None:
        if number < len(self.model.waiting):
            row = self.model.waiting.pop(number)
            await endings.cancel(self.db, row.id, None)

    async def lose(self) -> None:
        """Redis is emptied, and maintenance finds it."""
        late = "UPDATE responses SET sent_at = now() - interval '1 day', sends = 1 WHERE sent_at IS NOT NULL"
        await sql(self.db, late)
        await redelivery.put_back(self.db, 1.0)
        for node, slots in WORKERS.items():
            await workers.heartbeat(self.db, node, 3600.0, {}, slots)
        for row in self.model.sent:
            row.placed = False
        self.model.waiting += self.model.sent
        self.model.sent = []

    async def correct(self, flow: tuple[str, Priority], ended: FlowCorrection) -> None:
        ids = await dispatch.dispatch(self.db, QUEUE, NOTHING_AHEAD, {QueueFlow(QUEUE, *flow): ended})
        if ids is None:
            assert list(self.model.dispatch()) == []
            return
        self.model.correct(flow, ended)
        wanted = self.model.dispatch()
        assert [message.response_id for message in ids] == [next(wanted) for _ in ids]
        await self.dispatch()

    async def weigh(self, project: str, weight: int) -> None:
        await weigh(self.db, project, weight)
        self.model.weights[project] = weight

    async def pause(self, project: str | None) -> None:
        async with self.db.begin() as connection:
            assert await pauses.pause(connection, QUEUE, project, "scripted", None, None) is (
                project not in self.model.paused
            )
        self.model.paused.add(project)

    async def resume(self, project: str | None) -> None:
        async with self.db.begin() as connection:
            assert await pauses.resume(connection, QUEUE, project) is (project in self.model.paused)
        self.model.paused.discard(project)

    async def drain(self, node: str) -> None:
        async with self.db.begin() as connection:
            await drains.drain(connection, node, None, None)
            returned = await redelivery.take_back(connection, node)
        back = [row for row in self.model.sent if row.node == node]
        assert returned == len(back)
        for row in back:
            row.placed = False
        self.model.waiting += back
        self.model.sent = [row for row in self.model.sent if row.node != node]
        self.model.drained.add(node)

    async def undrain(self, node: str) -> None:
        async with self.db.begin() as connection:
            await drains.undrain(connection, node)
        self.model.drained.discard(node)

    async def forget(self) -> None:
        await dispatch.forget_idle_flows(self.db)
        busy = {row.flow for row in self.model.waiting}
        self.model.tags = {flow: tag for flow, tag in self.model.tags.items() if tag > self.model.time or flow in busy}
        self.model.scales = {flow: scale for flow, scale in self.model.scales.items() if flow in self.model.tags}
        self.model.seconds = {flow: mean for flow, mean in self.model.seconds.items() if flow in self.model.tags}
        rises = {project for project, priority in self.model.tags if priority is Priority.WINDOW}
        self.model.parts = {project: part for project, part in self.model.parts.items() if project in rises}


NEVER_DISPATCHED: list[Any] = [
    ("rise", "a", 0.25),
    ("forget",),
    ("arrive", ("a", Priority.PRIORITY_FOREGROUND), 1, 2, 1000),
    ("arrive", ("a", Priority.WINDOW), 1, 1, 1000),
]
"""Of a queue that has sent nothing yet, flows are forgotten, too."""


@example(taken=NEVER_DISPATCHED)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(taken=st.lists(steps, min_size=5, max_size=25))
async def test_postgres_sends_what_the_model_sends(db: Database, taken: list[Any]) -> None:
    async with db.begin() as connection:
        await connection.execute(text(AS_OWNER))
        for table in ("responses", "flows", "queues", "workers", "drains", "pauses"):
            await connection.execute(text(f"DELETE FROM {table}"))  # of so few rows a tenth of what TRUNCATE costs
    for node, slots in WORKERS.items():
        await workers.register(db, WorkerIdentity(node, "scripted", QUEUE, "host", 1, 4096, slots, node), 3600.0)
    for project in "abc":
        await weigh(db, project, 1)
    queue = Queue(db)
    for name, *values in [*taken, ("dispatch",)]:
        await getattr(queue, name)(*values)
    for project in [*queue.model.paused]:
        await queue.resume(project)
    for node in [*queue.model.drained]:
        await queue.undrain(node)
    await queue.dispatch()
    while queue.model.waiting or queue.model.sent or queue.model.running:
        await end(db, [row.id for row in [*queue.model.sent, *queue.model.running]])
        queue.model.sent, queue.model.running = [], []
        await queue.dispatch()
    left = "SELECT count(*) FROM responses WHERE status = 'queued' OR status = 'in_progress' AND worker IS NULL"
    assert await scalar(db, left) == 0, "nothing is lost"
