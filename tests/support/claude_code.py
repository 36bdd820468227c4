"""Claude Code in a home of its own, pointed at an installation."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.node_clients import json_lines, program

# What it would fetch or send elsewhere, and what would make its prompts differ from one machine to the next.
OFFLINE = ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "DISABLE_AUTOUPDATER", "DISABLE_TELEMETRY", "IS_SANDBOX")


@dataclass(frozen=True, slots=True)
class Session:
    """What `claude -p --output-format stream-json` printed for one prompt."""

    events: list[dict[str, Any]]

    @property
    def id(self) -> str:
        found: str = self.events[-1]["session_id"]
        return found

    @property
    def text(self) -> str:
        """The last message of the model."""
        text: str = self.events[-1]["result"]
        return text.strip()

    @property
    def is_error(self) -> bool:
        return bool(self.events[-1]["is_error"])

    def blocks(self, kind: str) -> list[dict[str, Any]]:
        """The blocks of that type in messages of the model, and of its tools."""
        told = (event["message"]["content"] for event in self.events if event["type"] in ("assistant", "user"))
        return [block for content in told if isinstance(content, list) for block in content if block["type"] == kind]


class ClaudeCode:
    """One user's Claude Code: `work` is the folder that it works in."""

    def __init__(self, folder: Path, url: str, *, key: str = "unused", **environment: str) -> None:
        self.work = folder / "work"
        self.work.mkdir()
        self._environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "ANTHROPIC_BASE_URL": url,
            "ANTHROPIC_AUTH_TOKEN": key,
            **dict.fromkeys(OFFLINE, "1"),
            **environment,
        }

    async def say(self, prompt: str, *options: str, session: str | None = None) -> Session:
        """Returns what was printed; continues `session`."""
        claude = str(program("@anthropic-ai/claude-code-*/claude"))
        flags = ["--output-format", "stream-json", "--verbose", "--model", "scripted", *options]
        where = ["--resume", session] if session else []
        command = [claude, "-p", *flags, *where]
        return Session(await json_lines(command, prompt, self.work, self._environment, "result"))
