"""The header 'Range' of RFC 9110, as far as one range goes."""

from __future__ import annotations

import re
from dataclasses import dataclass

_ONE = re.compile(r"bytes=[ \t]*([0-9]{0,19})-([0-9]{0,19})[ \t]*", re.IGNORECASE)


class NotSatisfiable(Exception):
    """The range has no byte of the content."""


@dataclass(frozen=True, slots=True)
class ByteRange:
    """The bytes from `first` to before `stop`."""

    first: int
    stop: int

    @property
    def length(self) -> int:
        return self.stop - self.first


def range_of(header: str | None, size: int) -> ByteRange | None:
    """Returns the range of a content of `size` bytes that the header asks for; None: all of it.

    A header with several ranges, or one that is no range, is ignored, as the RFC allows. Raises NotSatisfiable.
    """
    asked = None if header is None else _ONE.fullmatch(header.strip())
    if asked is None or not any(asked.groups()):
        return None
    first, last = asked.groups()
    if not first:
        if not int(last):
            raise NotSatisfiable
        return ByteRange(max(0, size - int(last)), size) if size else None
    if last and int(last) < int(first):
        return None
    if int(first) >= size:
        raise NotSatisfiable
    return ByteRange(int(first), min(size, int(last) + 1) if last else size)
