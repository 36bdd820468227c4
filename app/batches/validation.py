"""The check of a batch's whole file, line by line, before any of it runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import blake2b

from app.batches.broken_lines import BrokenLines
from app.batches.jsonl import RawLine
from app.batches.line import BatchLine, LineError, read_line
from app.protocol.text import shortened

MAX_ERRORS = 1000
"""So many bad lines are named; all are counted."""


@dataclass(slots=True)
class Validation:
    """What is known of a file so far. Add its lines in their order."""

    endpoint: str
    max_lines: int
    max_line_bytes: int
    total: int = 0
    """Lines that are not blank."""
    bad: int = 0
    broken: BrokenLines = field(default_factory=BrokenLines)
    errors: list[LineError] = field(default_factory=list)
    """The first ones."""
    models: set[str] = field(default_factory=set)
    """What the requests name."""
    queue: str | None = None
    """Queue of the last good line."""
    _seen: dict[bytes, int] = field(default_factory=dict)
    """The first line of each `custom_id`, by a digest: a million ids of 512 characters would be half a gigabyte."""

    def add(self, line: RawLine) -> BatchLine | None:
        """Returns the line's request, or None if something is wrong with it."""
        self.total += 1
        try:
            read = read_line(line, self.endpoint, self.max_line_bytes)
            self._check_new(read)
        except LineError as error:
            self.refuse(error)
            return None
        self.models.add(read.request.model)
        return read

    def refuse(self, error: LineError) -> None:
        """Notes a bad line."""
        self.bad += 1
        if len(self.errors) < MAX_ERRORS:
            self.errors.append(error)

    @property
    def is_over(self) -> bool:
        """Whether the file has more lines than a batch may have: the rest need not be read."""
        return self.total > self.max_lines

    def problems(self) -> list[LineError]:
        """What is wrong with the file, once all of it was added; nothing: the batch may run."""
        if self.is_over:
            message = f"The file has more than {self.max_lines} requests, the most of one batch."
            return [LineError(None, "too_many_requests", message)]
        if self.total == 0:
            return [LineError(None, "empty_file", "The file has no requests.")]
        if self.bad <= len(self.errors):
            return self.errors
        more = LineError(None, "too_many_errors", f"{self.bad} lines are wrong; the first {MAX_ERRORS} are named.")
        return [*self.errors, more]

    def _check_new(self, line: BatchLine) -> None:
        digest = blake2b(line.custom_id.encode("utf-8", "surrogatepass"), digest_size=12).digest()
        first = self._seen.setdefault(digest, line.number)
        if first != line.number:
            message = f"The custom_id '{shortened(line.custom_id)}' is that of line {first} already."
            raise LineError(line.number, "duplicate_custom_id", message, "custom_id")
