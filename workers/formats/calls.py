"""What the model calls, held against what it may call.

* A custom tool's call becomes one: its arguments are read back to the text they stand for.
* A call to a name that may not be called is text, as the JSON that the model wrote: no call comes out that
  the client does not know or did not allow.
* Where one call is the most, the answer ends when a second one begins.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable

from app.protocol.deltas import CallArguments, CallStart, CustomInput, CustomStart, Delta, Text
from workers.formats.custom import InputReader


class Calls:
    """`functions` and `custom` are the names that may be called."""

    def __init__(self, functions: Collection[str], custom: Collection[str], *, single: bool) -> None:
        self._functions = functions
        self._custom = custom
        self._single = single
        self._called = False
        self._reader: InputReader | None = None
        self._foreign: list[str] | None = None
        """The arguments so far of a call that may not be made."""
        self.ended = False

    def feed(self, deltas: Iterable[Delta]) -> list[Delta]:
        return [said for delta in deltas for said in self._step(delta) if not self.ended]

    def flush(self) -> list[Delta]:
        return [] if self.ended else self._close()

    def _step(self, delta: Delta) -> list[Delta]:
        if isinstance(delta, CallArguments):
            return self._arguments(delta)
        closed = self._close()
        if not isinstance(delta, CallStart):
            return [*closed, delta]
        if self._single and self._called:
            self.ended = True
            return []
        return closed + self._start(delta)

    def _start(self, call: CallStart) -> list[Delta]:
        if call.name in self._custom:
            self._called, self._reader = True, InputReader()
            return [CustomStart(call.name)]
        if call.name in self._functions:
            self._called = True
            return [call]
        self._foreign = []
        return [Text(f'{{"name": {json.dumps(call.name, ensure_ascii=False)}, "arguments": ')]

    def _arguments(self, delta: CallArguments) -> list[Delta]:
        if self._foreign is not None:
            self._foreign.append(delta.text)
            return [Text(delta.text)]
        if self._reader is None:
            return [delta]
        text = self._reader.feed(delta.text)
        return [CustomInput(text)] if text else []

    def _close(self) -> list[Delta]:
        """The open call is over."""
        rest = self._reader.flush() if self._reader else ""
        foreign, self._foreign, self._reader = self._foreign, None, None
        if foreign is not None:
            return [Text("}")] if _is_json("".join(foreign)) else []
        return [CustomInput(rest)] if rest else []


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True
