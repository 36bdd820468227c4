"""What each project stores: as it is counted, and as the rows say."""

from __future__ import annotations

from sqlalchemy import text

from app.store.database import Database

_LENGTH = "coalesce(octet_length(CAST({} AS text)), 0)"
_OF_RESPONSE = " + ".join(_LENGTH.format(f"r.{name}") for name in ("request", "output", "tool_results", "messages"))
STORED = f"""
    SELECT p.id AS project,
        p.stored_bytes + (SELECT coalesce(sum(bytes), 0) FROM stored_changes WHERE project = p.id) AS counted,
        (SELECT coalesce(sum({_OF_RESPONSE}), 0) FROM responses r WHERE project = p.id AND finished_at IS NOT NULL)
        + (SELECT coalesce(sum(octet_length(c.frames) + octet_length(c.tokens) + {_LENGTH.format("c.steps")}), 0)
            FROM chunks c JOIN responses r ON r.id = c.response_id
            WHERE r.project = p.id AND r.finished_at IS NOT NULL)
        + (SELECT coalesce(sum({_LENGTH.format("metadata")}), 0) FROM conversations WHERE project = p.id)
        + (SELECT coalesce(sum({_LENGTH.format("i.item")} + {_LENGTH.format("i.tool_results")}), 0)
            FROM conversation_items i JOIN conversations c ON c.id = i.conversation_id WHERE c.project = p.id)
        + (SELECT coalesce(sum(octet_length(b.data)), 0) FROM file_blocks b JOIN file_parts f ON f.id = b.part_id
            WHERE f.project = p.id AND f.state = 'finished')
        + (SELECT coalesce(sum(bytes), 0) FROM file_parts WHERE project = p.id AND state = 'open')
        + (SELECT coalesce(sum(500 + octet_length(filename)), 0) FROM files WHERE project = p.id)
        + (SELECT coalesce(sum(1000 + 1000 * total + {_LENGTH.format("metadata")} + {_LENGTH.format("errors")}), 0)
            FROM batches WHERE project = p.id) AS occupied
    FROM projects p ORDER BY p.id
"""
"""For each project the bytes that are counted, and those that its rows have. Both are equal, whatever happens."""


def counted(size: int, name: str) -> int:
    """What a file with so many bytes counts."""
    return 500 + len(name.encode()) + size


async def stored(db: Database, project: str) -> int:
    """The bytes that a project stores. Asserts that they are counted exactly, for all projects."""
    rows = await db.execute(text(STORED))
    assert {row.project: row.counted for row in rows} == {row.project: row.occupied for row in rows}
    return {row.project: int(row.counted) for row in rows}[project]
