"""How large values are as JSON, without writing much more of it than is asked for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import orjson


def json_size(values: Iterable[Any], most: int) -> int:
    """The bytes of these values as JSON; something beyond `most` as soon as they have more.

    It is for the event loop: all of a large context would take a tenth of a second. A value that orjson cannot write,
    such as a number of more than 64 bits, counts as large.
    """
    size = 0
    for value in values:
        try:
            size += len(orjson.dumps(value))
        except orjson.JSONEncodeError:
            return most + 1
        if size > most:
            break
    return size
