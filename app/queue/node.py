"""The name of a worker's process: one name in its row, its log, Flower, `sent_to`, metrics and commands."""

from __future__ import annotations

import re
import secrets
import socket

MAX_LABEL_CHARS = 40
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9.-]+")


def new_node(model: str) -> str:
    """A name that no other process has, in the form that Celery asks for: `qwen3-8b-1f2e3d4c@gpu-7`.

    It says which model the worker serves, and on which host; of `org/model` the model.
    """
    label = _NOT_IN_NAMES.sub("-", model.rsplit("/", 1)[-1])[:MAX_LABEL_CHARS]
    return f"{label}-{secrets.token_hex(4)}@{socket.gethostname()}"
