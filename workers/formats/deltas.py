"""Joins neighbouring deltas, so that readers get few large ones."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from app.protocol.events.deltas import Compacting, Delta, Piece, Text


def merge_deltas(deltas: Iterable[Delta]) -> tuple[Delta, ...]:
    """The same deltas, with neighbours of one kind joined."""
    merged: list[Delta] = []
    for delta in deltas:
        last = merged[-1] if merged else None
        if isinstance(delta, Text) and isinstance(last, Text):
            if delta.phase == last.phase:
                merged[-1] = replace(last, text=last.text + delta.text, logprobs=last.logprobs + delta.logprobs)
            else:
                merged.append(delta)
        elif isinstance(delta, Piece) and isinstance(last, Piece) and type(delta) is type(last):
            merged[-1] = replace(delta, text=last.text + delta.text)
        elif not (isinstance(delta, Compacting) and isinstance(last, Compacting)):
            merged.append(delta)
    return tuple(merged)
