"""How a reply shows a response to its client: its events as they come, or the object at its end.

Deltas can be padded, so that an observer of encrypted traffic does not learn the length of each token. The log has no
padding: it is added on the way to a reader that asked for it, and costs the others nothing. The length of the padding
follows from the frame alone, so reading a stream again and again tells an observer nothing new.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

from app.heavy import off_loop
from app.protocol.events import frames
from app.protocol.events.frames import DONE, KEEPALIVE_COMMENT
from app.protocol.types import Json
from app.responses.read.reader import Pulse

BLOCK_BYTES = 64
"""From its text on, the length of a padded frame is a multiple of this. A larger block hides more and costs more."""

_DELTA = b".delta\n"
_TEXT = b'"delta":'
_END = b"}\n\n"
_FIELD = b',"obfuscation":"%b"' + _END

NO_HEADERS: Mapping[str, str] = MappingProxyType({})


def obfuscated(encoded: bytes) -> bytes:
    """Returns the frames with a field `obfuscation` in each delta; other events stay as they are."""
    return b"".join(padded(frame) if _is_delta(frame) else frame for frame in frames.split(encoded))


def _is_delta(frame: bytes) -> bool:
    return frame.split(b"data: ", 1)[0].endswith(_DELTA)


def padded(frame: bytes) -> bytes:
    """Returns the frame of a delta, or of a chat chunk with one, with a field `obfuscation`."""
    # What comes before the text, such as ids and numbers, is no secret.
    secret = len(frame) - frame.index(_TEXT) + len(_FIELD % b"") - len(_END)
    room = -secret % BLOCK_BYTES
    # Random, so that compression on the way does not undo it.
    return frame.removesuffix(_END) + _FIELD % secrets.token_hex(BLOCK_BYTES // 2)[:room].encode()


def _as_written(pulse: Pulse) -> bytes:
    """The frames come ready from the log: nothing is parsed or built."""
    return KEEPALIVE_COMMENT if pulse is None else pulse.frames


def _padded(pulse: Pulse) -> bytes:
    return KEEPALIVE_COMMENT if pulse is None else obfuscated(pulse.frames)


def _unchanged(response: Json) -> Json:
    return response


def _no_headers(_: str) -> Mapping[str, str]:
    return NO_HEADERS


@dataclass(frozen=True, slots=True)
class View:
    """What one reply shows. The default is the response itself, as `/v1/responses` answers."""

    frames: Callable[[Pulse], bytes] = _as_written
    """What a stream sends for the next pulse: whole frames, or nothing. It is called once for each, in their order."""
    body: Callable[[Json], Json] = _unchanged
    """Makes the body of an answer that is no stream from the final response object. May raise ApiError."""
    headers: Callable[[str], Mapping[str, str]] = _no_headers
    """More headers of the answer, by the response's id."""
    end: bytes = DONE
    """What a stream that was not cut ends with."""
    works: bool = False
    """Whether `frames` does work that grows with the pulse: on a large one it does it beside the event loop."""

    async def shown(self, pulse: Pulse) -> bytes:
        """Returns `frames` of the pulse."""
        if not self.works or pulse is None:
            return self.frames(pulse)
        return await off_loop(partial(self.frames, pulse), len(pulse.frames))


PLAIN = View()
PADDED = View(_padded, works=True)
"""With padding in each delta, for a reader that asked for it."""
