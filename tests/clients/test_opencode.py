"""opencode: `opencode run` in a home of its own, by responses and by chat completions (`@ai-sdk/openai-compatible`)."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.clients.target import Target
from tests.support.node_clients import program
from tests.support.tool_servers import call, turns

TIMEOUT_SECONDS = 120.0
# What it would fetch or start at its first run.
OFFLINE = (
    "OPENCODE_DISABLE_MODELS_FETCH",
    "OPENCODE_DISABLE_AUTOUPDATE",
    "OPENCODE_DISABLE_LSP_DOWNLOAD",
    "OPENCODE_DISABLE_DEFAULT_PLUGINS",
)


class Opencode:
    def __init__(self, folder: Path, target: Target, npm: str) -> None:
        self.work = folder / "work"
        self.work.mkdir()
        self._environment = {"PATH": os.environ["PATH"], "HOME": str(folder), **dict.fromkeys(OFFLINE, "1")}
        limit = {"context": 400_000, "output": 4096}
        model = {"name": target.model, "reasoning": True, "tool_call": True, "limit": limit}
        provider = {
            "npm": npm,
            "name": "Longhaul",
            "options": {"baseURL": target.url, "apiKey": "unused"},
            "models": {target.model: model},
        }
        config = {
            "model": f"longhaul/{target.model}",
            "small_model": f"longhaul/{target.model}",
            "enabled_providers": ["longhaul"],
            "provider": {"longhaul": provider},
            "permission": {"*": "allow"},
        }
        (self.work / "opencode.json").write_text(json.dumps(config))

    def run(self, prompt: str, *options: str) -> list[dict[str, Any]]:
        """The parts that `opencode run` printed."""
        opencode = str(program("opencode-*/bin/opencode"))
        done = subprocess.run(
            [opencode, "run", "--format", "json", "--title", "a test", *options],
            cwd=self.work, env=self._environment, input=prompt, capture_output=True, text=True,
            timeout=TIMEOUT_SECONDS, check=False,
        )  # fmt: skip
        events = [json.loads(line) for line in done.stdout.splitlines()]
        assert events, done.stderr
        assert [event for event in events if event["type"] == "error"] == []
        return [event["part"] for event in events]


@pytest.fixture(params=["@ai-sdk/openai", "@ai-sdk/openai-compatible"])
def opencode(request: pytest.FixtureRequest, tmp_path: Path, scripted_target: Target) -> Opencode:
    return Opencode(tmp_path, scripted_target, request.param)


def said(parts: list[dict[str, Any]]) -> str:
    text: str = [part["text"] for part in parts if part["type"] == "text"][-1]
    return text.strip()


@pytest.mark.long
def test_a_run_reads_and_writes_files_and_is_continued(opencode: Opencode) -> None:
    note = opencode.work / "note.txt"
    note.write_text("the secret is swordfish\n")
    script = turns(
        call("read", filePath=str(note)),
        call("write", filePath=str(opencode.work / "copy.txt"), content="swordfish\n"),
        "All done.",
    )
    parts = opencode.run(script)
    tools = [part for part in parts if part["type"] == "tool"]
    assert [(part["tool"], part["state"]["status"]) for part in tools] == [
        ("read", "completed"),
        ("write", "completed"),
    ]
    assert "swordfish" in tools[0]["state"]["output"]
    assert (opencode.work / "copy.txt").read_text() == "swordfish\n"
    assert said(parts) == "All done."
    assert said(opencode.run("/say Welcome back.", "--continue")) == "Welcome back."
