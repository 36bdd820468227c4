"""The names that a sender's fields have, for errors about the fields of the response request that they became."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from app.protocol.errors import ErrorObject
from app.protocol.types import Json

Rules = Sequence[tuple[re.Pattern[str], str]]
"""How paths are written in the sender's protocol: the first pattern that matches a path counts."""


def rules(*pairs: tuple[str, str]) -> Rules:
    return tuple((re.compile(old), new) for old, new in pairs)


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of an element of a response request."""

    place: str
    """The element's path in the sender's request."""
    rules: Rules = ()
    """The names of paths within the element."""
    parts: Sequence[str] = ()
    """The path of each part of its `content` or `output`, if a part has its own; the rules then hold within it."""

    def of(self, rest: str) -> str:
        """Returns a path within the element, or of the element itself, as the sender has it."""
        found = _PART.match(rest) if self.parts else None
        if found is not None and int(found[1]) < len(self.parts):
            return self.parts[int(found[1])] + _renamed(rest[found.end() :], self.rules)
        return self.place + _renamed(rest, self.rules)


Placed = tuple[Origin, Json]
"""An element of the response request, and where it comes from."""

_PART = re.compile(r"\.(?:content|output)\[(\d+)\]")
_ELEMENT = re.compile(r"(input|tools|tool_choice\.tools)\[(\d+)\]")


def as_written(path: str) -> str:
    return path


@dataclass(frozen=True, slots=True)
class Names:
    """The origin of each part of a response request."""

    elements: Mapping[str, Sequence[Origin]]
    """List name -> where each element of `input`, `tools` and `tool_choice.tools` came from."""
    fields: Rules
    """The origin of all other fields."""
    spelled: Callable[[str], str] = as_written
    """Spells a path as the protocol does: ours are like `input[2].content`."""

    def of(self, path: str) -> str:
        """Returns the path of a response request as the sender has it."""
        found = _ELEMENT.match(path)
        if found is not None:
            elements, index = self.elements.get(found[1], ()), int(found[2])
            if index < len(elements):
                return self.spelled(elements[index].of(path[found.end() :]))
        return self.spelled(_renamed(path, self.fields))

    def error(self, error: ErrorObject) -> ErrorObject:
        """Returns the error with the path in its `param`, and where its message names that, as the sender has it.
        Other words of the message may be values that were sent."""
        if error.param is not None:
            return renamed_error(error, self.of(error.param))
        # A limit of the project that no such request fits tells to ask for less.
        return replace(error, message=error.message.replace("'max_output_tokens'", f"'{self.of('max_output_tokens')}'"))


def renamed_error(error: ErrorObject, own: str) -> ErrorObject:
    """Returns the error with `own` in place of its `param`."""
    param, message = error.param, error.message
    if param is None:
        return error
    if message.startswith(param):
        message = own + message[len(param) :]
    return replace(error, message=message.replace(f"'{param}'", f"'{own}'", 1), param=own)


def _renamed(path: str, known: Rules) -> str:
    for old, new in known:
        if (found := old.match(path)) is not None:
            return found.expand(new) + path[found.end() :]
    return path
