"""What the model calls, held against what it may call.

* A call to a name that may not be called never becomes one that the client does not know or did not allow. Where the
  server runs tools, it is one of a tool that is not there, which fails, and the model goes on; where it runs none,
  nobody could tell the model, and it is text, as the JSON that the model wrote.
* What becomes of the others: `open_calls.py`.
* Where one call is the most, the answer ends when a second one begins.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from types import MappingProxyType

from app.protocol.events.deltas import CallArguments, CallStart, Delta
from workers.formats.calls.hosted import HostedCall, HostedTools, NameStyle, unknown_tool
from workers.formats.calls.open_calls import Custom, Foreign, Function, OpenCall, hosted_call

NONE_HOSTED: HostedTools = MappingProxyType({})


class CallRouter:
    """`functions`, `custom` and `hosted` are the names that may be called; the server runs the last."""

    def __init__(
        self,
        functions: Collection[str],
        custom: Collection[str],
        hosted: HostedTools = NONE_HOSTED,
        *,
        single: bool,
    ) -> None:
        self._functions = functions
        self._custom = custom
        self._hosted = hosted
        self._single = single
        self._called = False
        self._open: OpenCall | None = None
        self.hosted: list[HostedCall] = []
        """Those that are whole and the server has to run."""
        self.ended = False

    def feed(self, deltas: Iterable[Delta]) -> list[Delta]:
        said: list[Delta] = []
        for delta in deltas:
            if self.ended:
                break
            said += self._step(delta)
        return said

    def flush(self, *, cut: bool = False) -> list[Delta]:
        return [] if self.ended else self._close(cut=cut)

    def _step(self, delta: Delta) -> list[Delta]:
        if isinstance(delta, CallArguments):
            return [delta] if self._open is None else self._open.more(delta.text)
        closed = self._close()
        if not isinstance(delta, CallStart):
            return [*closed, delta]
        if self._single and self._called:
            self.ended = True
            return closed
        self._open = self._opened(delta.name)
        self._called = self._called or not isinstance(self._open, Foreign)
        return closed + self._open.begin()

    def _opened(self, name: str) -> OpenCall:
        if name in self._hosted:
            return hosted_call(self._hosted[name])
        if name in self._custom:
            return Custom(name)
        if name in self._functions:
            return Function(name)
        return hosted_call(unknown_tool(name, NameStyle.CHAT)) if self._hosted else Foreign(name)

    def _close(self, *, cut: bool = False) -> list[Delta]:
        """The open call is over."""
        call, self._open = self._open, None
        if call is None:
            return []
        said = call.end(cut=cut)
        if call.ran is not None:
            self.hosted.append(call.ran)
        return said
