"""The limits of one sandbox."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ByteSize, ConfigDict, Field

from workers.toolservers.settings import Seconds

MIB = 1024**2
FLOOD_FACTOR = 256
"""A call that prints this many times `output` is stopped: nobody reads the text, but the server must copy it."""


class Limits(BaseModel):
    """The limits of the code in one sandbox. Each limit is an option of the server."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    seconds: Seconds = 30.0
    """deadline of one call; the worker gives up by the server's `timeout_seconds`, 60 by default"""
    cpu_seconds: Annotated[int, Field(ge=1, le=10**6)] = 300
    """CPU seconds of one process over its life; the interpreter lives as long as its session"""
    memory: Annotated[ByteSize, Field(ge=64 * MIB, le=2**50)] = ByteSize(512 * MIB)
    """address space of one process, and memory of all together, in RAM or swapped out"""
    output: Annotated[ByteSize, Field(ge=256, le=2**50)] = ByteSize(64 * 1024)
    """text that a call returns; the middle of longer text is left out"""
    processes: Annotated[int, Field(ge=4, le=4096)] = 32
    """most processes and threads, including the sandbox's own two"""
    disk: Annotated[ByteSize, Field(ge=MIB, le=2**50)] = ByteSize(64 * MIB)
    """all files together, which are kept in memory"""
    open_files: Annotated[int, Field(ge=32, le=65536)] = 64
    """most open files of one process; they bound what pipes and sockets hold, whose buffers cannot grow"""

    @property
    def flood(self) -> ByteSize:
        return ByteSize(self.output * FLOOD_FACTOR)
