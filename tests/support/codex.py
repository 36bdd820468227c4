"""Codex CLI in a home of its own, pointed at an installation."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from config.process import CHECKOUT
from tests.support.node_clients import json_lines, program

CONFIG = """
model = "scripted"
model_provider = "{provider}"
model_reasoning_summary = "auto"
openai_base_url = "{url}"

[features]
shell_snapshot = false

[model_providers.longhaul]
name = "{name}"
base_url = "{url}"
wire_api = "responses"
experimental_bearer_token = "unused"
model_catalog_url = "{url}/models"
supports_websockets = {websockets}
stream_idle_timeout_ms = {idle_ms}
"""
BYPASS = ("--dangerously-bypass-approvals-and-sandbox", "-c", 'web_search="disabled"')
"""Runs commands without Codex's sandbox, which not every machine can run; Codex would ask for a live search then."""
MCP_SERVER = """
[mcp_servers.tests]
command = {python}
args = ["-m", "tests.support.mcp_server", {log}]
env = {{ PYTHONPATH = {checkout} }}
required = true
"""


@dataclass(frozen=True, slots=True)
class Turn:
    """What `codex exec --json` printed for one prompt."""

    events: list[dict[str, Any]]
    thread: str

    def items(self, kind: str) -> list[dict[str, Any]]:
        items = (event["item"] for event in self.events if event["type"] == "item.completed")
        return [item for item in items if item["type"] == kind]

    @property
    def text(self) -> str:
        """The last message of the model."""
        text: str = self.items("agent_message")[-1]["text"]
        return text.strip()


class Codex:
    """One user's Codex: `work` is the folder that it works in."""

    def __init__(
        self,
        folder: Path,
        url: str,
        *,
        provider: str = "longhaul",
        name: str = "Longhaul",
        websockets: bool = False,
        mcp: bool = False,
        options: tuple[str, ...] = BYPASS,
        idle_ms: int = 300_000,
    ) -> None:
        """Codex gives up a stream after `idle_ms` without an event. With `mcp`, it starts tests.support.mcp_server for
        each prompt: a second of CPU. It compacts by the API if the provider's `name` is "OpenAI"."""
        self._options = options
        self.work = folder / "work"
        self._home = folder / "codex"
        self._environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "CODEX_HOME": str(self._home),
            "OPENAI_API_KEY": "unused",
        }
        for made in (self.work, self._home):
            made.mkdir()
        words = {"python": sys.executable, "log": str(folder / "calls.log"), "checkout": str(CHECKOUT)}
        quoted = {name: json.dumps(word) for name, word in words.items()}
        config = CONFIG.format(
            provider=provider, name=name, url=url, websockets=str(websockets).lower(), idle_ms=idle_ms
        )
        if mcp:
            config += MCP_SERVER.format(**quoted)
        (self._home / "config.toml").write_text(config)

    async def say(self, prompt: str, *options: str, thread: str | None = None, end: str = "turn.completed") -> Turn:
        """Returns the turn, whose last event is to be `end`; continues the session `thread`."""
        codex = str(program("@openai/codex-*/vendor/*/bin/codex"))
        flags = ["--json", "--skip-git-repo-check", *self._options, *options]
        where = ["resume", *flags, thread, "-"] if thread else [*flags, "-"]
        command = [codex, "exec", *where]
        events = await json_lines(command, prompt, self.work, self._environment, end)
        return Turn(events, next(event["thread_id"] for event in events if event["type"] == "thread.started"))

    def written(self, kind: str) -> list[dict[str, Any]]:
        """The lines of that type in the files that Codex keeps of its sessions."""
        files = sorted(self._home.glob("sessions/**/*.jsonl"))
        lines = (line for file in files for line in file.read_text(encoding="utf-8").splitlines())
        return [entry for entry in map(json.loads, lines) if entry["type"] == kind]
