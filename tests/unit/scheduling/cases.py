"""Flows, and the loads of workers."""

from __future__ import annotations

from hypothesis import strategies as st

from app.queue.message import Priority
from app.scheduling.loads import Load
from app.scheduling.order import Flow, WaitingFlow, WaitingResponse
from app.scheduling.placement import Candidate

BACKGROUND = Priority.BACKGROUND
CLASSES = [priority for priority in Priority if priority != Priority.WINDOW]


def flow(
    project: str,
    costs: list[int],
    priority: int = BACKGROUND,
    first: int = 0,
    beside: list[int] | None = None,
    project_weight: float = 1.0,
    **more: float,
) -> WaitingFlow:
    """A flow of so many responses, whose ids are those of the project, with numbers from `first`."""
    responses = [
        WaitingResponse(Candidate(f"{project}{number}"), number, cost) for number, cost in enumerate(costs, first)
    ]
    return WaitingFlow(Flow(project, priority, project_weight), responses, beside or [priority], **more)


flows = st.lists(
    st.builds(
        flow,
        st.sampled_from("abcdef"),
        st.lists(st.integers(0, 5000), min_size=1, max_size=20),
        st.sampled_from([*CLASSES, Priority.WINDOW]),
        st.integers(0, 1000).map(lambda number: 100 * number),
        tag=st.one_of(st.none(), st.floats(0, 1e6)),
        scale=st.floats(0.01, 100),
        project_weight=st.sampled_from([0.5, 1.0, 8.0]),
        part=st.sampled_from([0.0, 0.1, 1.0]),
    ),
    max_size=6,
    unique_by=(lambda made: (made.flow.project, made.flow.priority), lambda made: made.responses[0].position),
)


NODES = "abcd"
loads = st.lists(
    st.builds(Load, st.sampled_from(NODES), st.integers(1, 40), st.integers(0, 40), st.integers(0, 8)),
    max_size=len(NODES),
    unique_by=lambda load: load.node,
)
