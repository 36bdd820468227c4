"""The options of the python server: their bounds, and where they come from."""

from __future__ import annotations

import pytest
from pydantic import ByteSize

from workers.toolservers.python.limits import Limits
from workers.toolservers.python.settings import PythonSettings
from workers.toolservers.settings import StartError, load


def test_options_come_from_the_environment_and_the_command_line_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LONGHAUL_PYTHON_MEMORY", "1GiB")
    monkeypatch.setenv("LONGHAUL_PYTHON_OPEN_FILES", "40")
    monkeypatch.setenv("LONGHAUL_PYTHON_PORT", "")
    settings = load(PythonSettings, ["--open-files", "50", "--disk=16 MiB", "--seconds", "0.5", "--stdio"])
    assert settings.limits() == Limits(seconds=0.5, memory=ByteSize(2**30), disk=ByteSize(2**24), open_files=50)
    assert settings.stdio and settings.port == 8801


def test_without_options_the_limits_are_the_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LONGHAUL_LOG_LEVEL", "DEBUG")
    settings = load(PythonSettings, [])
    assert settings.limits() == Limits()
    assert settings.log_level == "INFO"  # at DEBUG the server logs code and output, so it has to be asked itself


def test_a_bad_variable_is_one_line_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LONGHAUL_PYTHON_MEMORY", "1MiB")
    with pytest.raises(StartError, match=r"^--memory \(LONGHAUL_PYTHON_MEMORY\): input should be .* 67108864$"):
        load(PythonSettings, [])


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--log-level", "x"], "--log-level (LONGHAUL_PYTHON_LOG_LEVEL): input should be 'DEBUG', "),
        (["--memory=lots"], "--memory (LONGHAUL_PYTHON_MEMORY): could not parse value and unit from byte string"),
        (["--memory", "2000000GiB"], "--memory (LONGHAUL_PYTHON_MEMORY): input should be less than or equal to "),
        (["--output", "255"], "--output (LONGHAUL_PYTHON_OUTPUT): input should be greater than or equal to 256"),
        (["--disk", "1KiB"], "--disk (LONGHAUL_PYTHON_DISK): input should be greater than or equal to 1048576"),
        (["--sessions", "0"], "--sessions (LONGHAUL_PYTHON_SESSIONS): input should be greater than or equal to 1"),
        (["--cpu-seconds", "1.5"], "--cpu-seconds (LONGHAUL_PYTHON_CPU_SECONDS): input should be a valid integer"),
        (["--open-files", "31"], "--open-files (LONGHAUL_PYTHON_OPEN_FILES): input should be greater than or equal"),
        (["--idle-seconds", "0"], "--idle-seconds (LONGHAUL_PYTHON_IDLE_SECONDS): input should be greater than 0"),
        (["--seconds", "nan"], "--seconds (LONGHAUL_PYTHON_SECONDS): input should be a finite number"),
        (["--lost-seconds", "x"], "--lost-seconds (LONGHAUL_PYTHON_LOST_SECONDS): input should be a valid number"),
        (["--port"], "argument --port: expected one argument"),
    ],
)
def test_a_bad_option_is_one_line_that_names_it(arguments: list[str], line: str) -> None:
    with pytest.raises(StartError) as refused:
        load(PythonSettings, arguments)
    assert str(refused.value).startswith(line) and "\n" not in str(refused.value)
