"""The walk along a chain: from a response to all that it continues, by primary key."""

from __future__ import annotations

from collections.abc import Callable


def chain(state: Callable[[str], str] = lambda before: before, first: str = "NULL", goes_on: str = "true") -> str:
    """Returns the start of a statement: the query `chain (id, previous, depth, state)`, newest first.

    It begins with the response `:id` of `:project`. `state` makes SQL of what the row `r` makes of the state before it,
    which is `first` at the newest. The walk goes on from a row `c` of the chain while `goes_on`.
    """
    return f"""
    WITH RECURSIVE chain (id, previous, depth, state) AS (
        SELECT r.id, r.previous_response_id, 0, {state(first)}
        FROM responses r WHERE r.id = :id AND r.project = :project
        UNION ALL
        SELECT r.id, r.previous_response_id, c.depth + 1, {state("c.state")}
        FROM chain c JOIN responses r ON r.id = c.previous AND r.project = :project WHERE {goes_on}
    )"""
