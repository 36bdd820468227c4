"""The options of the python server: their bounds, and where they come from."""

from __future__ import annotations

import pytest

from workers.toolservers.python.limits import Limits
from workers.toolservers.python.settings import PythonSettings
from workers.toolservers.serving import ServingError
from workers.toolservers.settings import load


def test_options_come_from_the_environment_and_the_command_line_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LONGHAUL_PYTHON_MEMORY", "1GiB")
    monkeypatch.setenv("LONGHAUL_PYTHON_OPEN_FILES", "40")
    monkeypatch.setenv("LONGHAUL_PYTHON_PORT", "")
    settings = load(PythonSettings, ["--open-files", "50", "--disk=16 MiB", "--seconds", "0.5", "--stdio"])
    assert settings.limits() == Limits(seconds=0.5, memory_bytes=2**30, disk_bytes=2**24, open_files=50)
    assert settings.stdio and settings.port == 8801


def test_without_options_the_limits_are_the_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LONGHAUL_LOG_LEVEL", "DEBUG")
    settings = load(PythonSettings, [])
    assert settings.limits() == Limits()
    assert settings.log_level == "INFO"  # at DEBUG the server logs code and output, so it has to be asked itself


def test_a_bad_variable_is_one_line_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LONGHAUL_PYTHON_MEMORY", "1MiB")
    with pytest.raises(ServingError, match=r"^--memory \(LONGHAUL_PYTHON_MEMORY\): must be at least 64MiB$"):
        load(PythonSettings, [])


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--isolation", "none"], "argument --isolation: "),
        (["--log-level", "x"], "argument --log-level: "),
        (["--memory=2048TiB"], "argument --memory: must be a number of bytes such as 65536, 64KiB or 512MiB"),
        (["--memory", "2000000GiB"], "argument --memory: must be at least 64MiB"),
        (["--output", "255"], "argument --output: must be at least 256"),
        (["--disk", "1KiB"], "argument --disk: must be at least 1MiB"),
        (["--sessions", "0"], "argument --sessions: must be a whole number from 1 to 4096"),
        (["--cpu-seconds", "1.5"], "argument --cpu-seconds: must be a whole number from 1 to 1000000"),
        (["--open-files", "31"], "argument --open-files: must be a whole number from 32 to 65536"),
        (["--idle-seconds", "0"], "argument --idle-seconds: must be a number of seconds, at least 0.01"),
        (["--lost-seconds", "x"], "argument --lost-seconds: must be a number of seconds, at least 0.01"),
        (["--port"], "argument --port: expected one argument"),
    ],
)
def test_a_bad_option_is_one_line_that_names_it(arguments: list[str], line: str) -> None:
    with pytest.raises(ServingError) as refused:
        load(PythonSettings, arguments, "argument {option}")
    assert str(refused.value).startswith(line) and "\n" not in str(refused.value)
