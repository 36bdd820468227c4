"""llm, the command line tool: `llm openai endpoint URL`, with `--responses` and without."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.clients.target import PARIS, REPORT, City, Target

pytestmark = pytest.mark.long

_PROGRAM = Path(__file__).parent / "llm_program.py"
WEATHER = f"""
def get_weather(city: str) -> str:
    "Current weather of a city."
    return {REPORT!r}
"""


@dataclass(frozen=True, slots=True)
class Done:
    """What a command printed."""

    status: int
    stdout: str
    stderr: str


class Llm:
    def __init__(self, process: subprocess.Popen[str], target: Target, home: Path) -> None:
        self._process = process
        self._home = home
        self._target = target

    def __call__(self, *arguments: str) -> Done:
        """Runs llm with the arguments; it succeeds and warns of nothing."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([str(self._home), *arguments]) + "\n")
        self._process.stdin.flush()
        done = Done(**json.loads(self._process.stdout.readline()))
        assert done.status == 0, done.stderr
        return done

    def ask(self, prompt: str, *options: str, api: str = "--responses") -> Done:
        there = ["openai", "endpoint", self._target.url, "-m", self._target.model, *filter(None, [api])]
        return self(*there, *options, prompt)


@pytest.fixture(scope="module")
def process() -> Iterator[subprocess.Popen[str]]:
    started = subprocess.Popen(
        [sys.executable, "-W", "error", str(_PROGRAM)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    yield started
    started.communicate(timeout=10)


@pytest.fixture
def llm(process: subprocess.Popen[str], target: Target, tmp_path: Path) -> Llm:
    return Llm(process, target, tmp_path)


def test_a_prompt_is_answered_and_the_reasoning_shown(llm: Llm, target: Target) -> None:
    answered = llm.ask(target.script.hello, "-o", "reasoning_effort", "medium")
    assert answered.stdout.strip() == target.script.hello_answer
    assert answered.stderr.strip() == target.script.hello_thought


def test_a_tool_is_called_in_a_loop(llm: Llm, target: Target) -> None:
    answered = llm.ask(target.script.weather, "--functions", WEATHER, "--td")
    assert answered.stdout.strip() == target.script.weather_answer
    assert "get_weather({'city': 'Paris'})" in answered.stderr


def test_chat_completions_are_the_default(llm: Llm, target: Target) -> None:
    assert llm.ask(target.script.hello, api="").stdout.strip() == target.script.hello_answer
    called = llm.ask(target.script.weather, "--functions", WEATHER, "--td", api="")
    assert called.stdout.strip() == target.script.weather_answer


def test_a_schema_is_a_structured_output(llm: Llm, target: Target) -> None:
    answered = llm.ask(target.script.paris, "--no-stream", "--schema", json.dumps(City.model_json_schema()))
    assert City.model_validate_json(answered.stdout) == PARIS


def test_a_conversation_goes_on(llm: Llm, target: Target, tmp_path: Path) -> None:
    """A model of `extra-openai-models.yaml`, whose conversations llm keeps."""
    model = {"model_id": "here", "model_name": target.model, "api_base": target.url, "responses": True}
    (tmp_path / "extra-openai-models.yaml").write_text(json.dumps([model]))
    assert llm("-m", "here", target.script.name).stdout.strip() == target.script.name_answer
    assert llm("-c", target.script.asked).stdout.strip() == target.script.asked_answer


def test_the_models_are_listed(llm: Llm, target: Target) -> None:
    listed = llm("openai", "endpoint", target.url, "--models").stdout.split()
    assert target.model in listed
