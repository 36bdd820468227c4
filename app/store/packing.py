"""How a chunk's events and token ids are stored.

Events repeat themselves, and most chunks have few of them. So zlib gets a dictionary that has the events of a short
response, and a chunk takes as little room as if it followed on them (docs/internals/decisions/journal.md).
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Iterable
from sys import byteorder

_ITEM = '"output_index":0,"content_index":0,'
_TEXT = '{"type":"output_text","text":"","annotations":[],"logprobs":[]}'
_RESPONSE = (
    '"response":{"id":"resp_","object":"response","created_at":17,"completed_at":17,"status":"completed","error":null,'
    '"incomplete_details":null,"model":"","instructions":null,"tools":[],"tool_choice":"auto","truncation":"disabled",'
    '"parallel_tool_calls":true,"text":{"format":{"type":"text"}},"temperature":1.0,"top_p":1.0,"presence_penalty":0.0,'
    '"frequency_penalty":0.0,"top_logprobs":0,"reasoning":null,"max_output_tokens":null,"max_tool_calls":null,'
    '"store":true,"background":true,"service_tier":"default","metadata":{},"safety_identifier":null,'
    '"prompt_cache_key":null,"prompt_cache_retention":null,"user":null,"previous_response_id":null,'
    '"conversation":null,"output":[],"usage":null}'
)
_EVENTS = (
    ("created", '0,"response":{"status":"queued'),
    ("in_progress", '2,"response":{"status":"in_progress'),
    ("function_call_arguments.done", '9,"item_id":"fc_","output_index":1,"arguments":"{}'),
    ("function_call_arguments.delta", '9,"item_id":"fc_","output_index":1,"delta":"'),
    ("output_item.added", '9,"output_index":1,"item":{"id":"fc_","type":"function_call","call_id":"call_","name":"'),
    ("output_item.added", '3,"output_index":0,"item":{"id":"rs_","type":"reasoning","summary":[],"content":['),
    ("reasoning_text.delta", f'5,"item_id":"rs_",{_ITEM}"delta":"'),
    ("completed", f"9,{_RESPONSE}"),
    ("output_item.done", f'9,"output_index":0,"item":{{"content":[{_TEXT}],"status":"completed"'),
    ("output_item.added", '3,"output_index":0,"item":{"id":"msg_","type":"message","role":"assistant","content":[],"'),
    ("content_part.added", f'4,"item_id":"msg_",{_ITEM}"part":{_TEXT}'),
    ("output_text.done", f'9,"item_id":"msg_",{_ITEM}"text":"","logprobs":[]'),
    ("content_part.done", f'9,"item_id":"msg_",{_ITEM}"part":{_TEXT}'),
    ("output_text.delta", f'5,"item_id":"msg_",{_ITEM}"delta":" ","logprobs":[]'),
)
DICTIONARY = "".join(
    f'event: response.{name}\ndata: {{"type":"response.{name}","sequence_number":{data}}}\n\n' for name, data in _EVENTS
).encode()
"""What all stored events are read with: it never changes. The most frequent is last: zlib finds it first."""

_FEW_BYTES = 16 * 1024
_PACKER_OF_FEW = zlib.compressobj(wbits=12, memLevel=3, zdict=DICTIONARY)
"""Has read the dictionary. A copy takes half the time of another one, the less memory it has."""


def pack_events(frames: bytes) -> bytes:
    packer = _PACKER_OF_FEW.copy() if len(frames) < _FEW_BYTES else zlib.compressobj(zdict=DICTIONARY)
    return packer.compress(frames) + packer.flush()


def unpack_events(packed: bytes) -> bytes:
    """Unpacks bytes of `pack_events`. Other bytes are returned as they are: no events can be read in them."""
    unpacker = zlib.decompressobj(zdict=DICTIONARY)
    try:
        frames = unpacker.decompress(packed)
    except zlib.error:
        return packed
    return frames if unpacker.eof else packed


def pack_tokens(tokens: Iterable[int]) -> bytes:
    """Token ids as little-endian unsigned 32-bit integers."""
    packed = array("I", tokens)
    if byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def unpack_tokens(packed: bytes) -> tuple[int, ...]:
    tokens = array("I", packed)
    if byteorder == "big":
        tokens.byteswap()
    return tuple(tokens)
