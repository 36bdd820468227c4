"""The queue, added up by model, project or key: pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from app.store.queue.backlog import By, Part


@dataclass(slots=True)
class BacklogEntry:
    """What one model, project or key has that has not ended."""

    id: str | None
    """Its id, or the model's name; None: responses that were asked for without a key."""
    name: str | None
    """Of the project or key; None: it has none any more."""
    project: str | None = None
    """Of the key."""
    waiting: int = 0
    """In line, responses that have yielded included."""
    in_files: int = 0
    """Lines of batches that are no responses yet."""
    sent: int = 0
    running: int = 0
    released: int = 0
    oldest_waiting_seconds: float | None = None
    """Since the insert of the oldest that waits and was never claimed; None: there is none."""

    @property
    def unfinished(self) -> int:
        return self.waiting + self.in_files + self.sent + self.running + self.released


def added_up(parts: Iterable[Part], by: By, models: Mapping[str, str]) -> list[BacklogEntry]:
    """Those with most unfinished responses first. `models` are the names by queue."""
    found: dict[tuple[str | None, str | None], BacklogEntry] = {}
    for part in parts:
        key = _key(part, by, models)
        entry = found.setdefault(key, BacklogEntry(key[0], None, key[1]))
        setattr(entry, part.state, getattr(entry, part.state) + part.number)
        if part.state == "waiting" and part.oldest_seconds is not None:
            entry.oldest_waiting_seconds = max(entry.oldest_waiting_seconds or 0.0, part.oldest_seconds)
    return sorted(found.values(), key=lambda entry: (-entry.unfinished, entry.id or ""))


def _key(part: Part, by: By, models: Mapping[str, str]) -> tuple[str | None, str | None]:
    if by == "model":
        return models.get(part.queue, part.queue.removeprefix("model.")), None
    return (part.project, None) if by == "project" else (part.key_id, part.project)
