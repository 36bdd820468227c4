"""llm, the command line tool: `llm openai endpoint URL`, with `--responses` and without."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from click.testing import CliRunner
from llm.cli import cli

from tests.clients.adapters import Adapter
from tests.clients.target import REPORT, City, Target

WEATHER = f"""
def get_weather(city: str) -> str:
    "Current weather of a city."
    return {REPORT!r}
"""


class Responses(Adapter):
    options = ("--responses",)

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        self.folder = tempfile.TemporaryDirectory()
        self.home = Path(self.folder.name)

    def close(self) -> None:
        self.folder.cleanup()

    def run(self, *arguments: str) -> Any:
        """The output of a command that succeeds."""
        done = CliRunner().invoke(cli, arguments, env={"LLM_USER_PATH": str(self.home)})
        assert done.exit_code == 0, done.stderr
        return done

    def ask(self, prompt: str, *options: str) -> Any:
        return self.run("openai", "endpoint", self.target.url, "-m", self.model, *self.options, *options, prompt)

    def text(self, asked: str) -> str:
        assert self.model in self.run("openai", "endpoint", self.target.url, "--models").stdout.split()
        return self.ask(asked).stdout.strip()

    def tool_loop(self, asked: str) -> str:
        done = self.ask(asked, "--functions", WEATHER, "--td")
        assert "get_weather({'city': 'Paris'})" in done.stderr
        return done.stdout.strip()

    def structured(self, asked: str) -> City:
        schema = json.dumps(City.model_json_schema())
        return City.model_validate_json(self.ask(asked, "--no-stream", "--schema", schema).stdout)

    def history(self, *asked: str) -> list[str]:
        """A model of `extra-openai-models.yaml`, whose conversations llm keeps."""
        model = {"model_id": "here", "model_name": self.model, "api_base": self.target.url}
        models = [{**model, "responses": bool(self.options)}]
        (self.home / "extra-openai-models.yaml").write_text(json.dumps(models))
        return [
            self.run(*option, each).stdout.strip()
            for option, each in zip([("-m", "here"), ("-c",)], asked, strict=True)
        ]

    def reasoning(self, asked: str) -> tuple[str, str]:
        done = self.ask(asked, "-o", "reasoning_effort", "medium")
        return done.stderr.strip(), done.stdout.strip()


class Chat(Responses):
    options = ()
