"""The order of the queue against a model that sends one response after the other, as start-time fair queueing says."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import text

from app.queue.message import WEIGHTS, Priority
from app.store.database import Database
from app.store.queue import dispatch, redelivery
from app.store.queue.dispatch import MAX_SCALE, MIN_SCALE, SCALE_RESPONSES, Flow, FlowCorrection
from app.store.responses import endings
from tests.support.waiting_rows import QUEUE, take, waiting, weigh, with_slots

CLASSES = [priority for priority in Priority if priority is not Priority.URGENT]
SLOTS = 6


@dataclass
class Row:
    id: str
    arrival: int
    flow: tuple[str, Priority]
    cost: int
    charged: bool = False


@dataclass
class Model:
    """The queue, without Postgres. Fractions: its sums have no rounding errors."""

    time: Fraction = Fraction(0)
    tags: dict[tuple[str, Priority], Fraction] = field(default_factory=dict)
    scales: dict[tuple[str, Priority], float] = field(default_factory=dict)
    weights: dict[str, int] = field(default_factory=dict)
    waiting: list[Row] = field(default_factory=list)
    sent: list[Row] = field(default_factory=list)

    def weight(self, flow: tuple[str, Priority]) -> Fraction:
        return Fraction(WEIGHTS[flow[1]]) * self.weights.get(flow[0], 1)

    def dispatch(self) -> Iterator[str]:
        """The ids that are sent until the window is more than half full."""
        while 2 * (room := SLOTS - len(self.sent)) >= SLOTS and self.waiting:
            for _ in range(min(room, len(self.waiting))):
                yield self._send()

    def _send(self) -> str:
        heads: dict[tuple[str, Priority], Row] = {}
        for row in sorted(self.waiting, key=lambda row: row.arrival):
            heads.setdefault(row.flow, row)
        start, _, _, row = min(
            (max(tag, self.time), tag >= self.time, row.arrival, row)
            for row in heads.values()
            for tag in [self.tags.get(row.flow, Fraction(-1))]
        )
        charge = 0 if row.charged else math.ceil(row.cost * self.scales.get(row.flow, 1.0))
        self.tags[row.flow] = start + charge / self.weight(row.flow)
        self.time = max(self.time, start)
        row.charged = True
        self.waiting.remove(row)
        self.sent.append(row)
        return row.id

    def correct(self, flow: tuple[str, Priority], ended: FlowCorrection) -> None:
        if flow in self.tags:
            self.tags[flow] += (ended.used - ended.charged) / self.weight(flow)
            scale = self.scales.get(flow, 1.0)
            scale += min(ended.count / SCALE_RESPONSES, 1.0) * (ended.used / ended.cost - scale)
            self.scales[flow] = max(MIN_SCALE, min(MAX_SCALE, scale))


flows = st.tuples(st.sampled_from("abc"), st.sampled_from(CLASSES))
steps = st.one_of(
    st.tuples(st.just("arrive"), flows, st.integers(1, 2000), st.integers(1, 5)),
    st.tuples(st.just("dispatch")),
    st.tuples(st.just("claim"), st.integers(1, SLOTS)),
    st.tuples(st.just("cancel"), st.integers(0, 30)),
    st.tuples(st.just("lose")),
    st.tuples(
        st.just("correct"), flows, st.builds(FlowCorrection, *(st.integers(1, most) for most in (40, 900, 900, 900)))
    ),
    st.tuples(st.just("weigh"), st.sampled_from("abc"), st.sampled_from([1, 2, 8])),
    st.tuples(st.just("forget")),
)


class Queue:
    """Takes each step in Postgres and in the model."""

    def __init__(self, db: Database) -> None:
        self.db = db
        self.model = Model()
        self.arrivals = 0

    async def arrive(self, flow: tuple[str, Priority], cost: int, count: int) -> None:
        for response_id in await waiting(self.db, flow[0], count, priority=flow[1], cost=cost):
            self.arrivals += 1
            self.model.waiting.append(Row(response_id, self.arrivals, flow, cost))

    async def dispatch(self) -> None:
        ids: list[str] = []
        while messages := await dispatch.dispatch(self.db, QUEUE, SLOTS):
            ids += [message.response_id for message in messages]
        assert ids == list(self.model.dispatch())

    async def claim(self, count: int) -> None:
        claimed, self.model.sent = self.model.sent[:count], self.model.sent[count:]
        await take(self.db, [row.id for row in claimed])

    async def cancel(self, number: int) -> None:
        if number < len(self.model.waiting):
            row = self.model.waiting.pop(number)
            await endings.cancel(self.db, row.id, None)

    async def lose(self) -> None:
        """Redis is emptied, and maintenance finds it."""
        async with self.db.autocommit() as connection:
            await connection.execute(
                text("UPDATE responses SET sent_at = now() - interval '1 day', sends = 1 WHERE sent_at IS NOT NULL")
            )
        heads = dict.fromkeys(await redelivery.lists_to_check(self.db, 1.0))
        if heads:
            await redelivery.put_back(self.db, heads, 1.0)
        self.model.waiting += self.model.sent
        self.model.sent = []

    async def correct(self, flow: tuple[str, Priority], ended: FlowCorrection) -> None:
        ids = await dispatch.dispatch(self.db, QUEUE, SLOTS, {Flow(QUEUE, *flow): ended})
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

    async def forget(self) -> None:
        await dispatch.forget_idle_flows(self.db)
        busy = {row.flow for row in self.model.waiting}
        self.model.tags = {flow: tag for flow, tag in self.model.tags.items() if tag > self.model.time or flow in busy}
        self.model.scales = {flow: scale for flow, scale in self.model.scales.items() if flow in self.model.tags}


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(taken=st.lists(steps, min_size=5, max_size=25))
async def test_postgres_sends_what_the_model_sends(db: Database, taken: list[Any]) -> None:
    async with db.begin() as connection:
        await connection.execute(text("TRUNCATE responses, flows, queues, workers CASCADE"))
        await connection.execute(text("DELETE FROM projects WHERE id <> 'default'"))
    await with_slots(db, SLOTS)
    queue = Queue(db)
    for name, *values in [*taken, ("dispatch",)]:
        await getattr(queue, name)(*values)
    while queue.model.waiting or queue.model.sent:
        await queue.claim(SLOTS)
        await queue.dispatch()
    left = text("SELECT count(*) FROM responses WHERE status = 'queued'")
    async with db.autocommit() as connection:
        assert (await connection.execute(left)).scalar_one() == 0, "nothing is lost"
