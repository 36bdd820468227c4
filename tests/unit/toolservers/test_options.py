"""The options of the servers of tools: their bounds, where they come from, and the line that refuses one."""

from __future__ import annotations

from ipaddress import ip_network
from pathlib import Path

import pytest
from pydantic import ByteSize

from workers.toolservers.browser.settings import BrowserSettings
from workers.toolservers.python.limits import Limits
from workers.toolservers.python.settings import PythonSettings
from workers.toolservers.settings import StartError, load

PYTHON = {
    "--log-level x": "--log-level (LONGHAUL_PYTHON_LOG_LEVEL): input should be 'DEBUG', ",
    "--memory=lots": "--memory (LONGHAUL_PYTHON_MEMORY): could not parse value and unit from byte string",
    "--memory 2000000GiB": "--memory (LONGHAUL_PYTHON_MEMORY): input should be less than or equal to ",
    "--output 255": "--output (LONGHAUL_PYTHON_OUTPUT): input should be greater than or equal to 256",
    "--disk 1KiB": "--disk (LONGHAUL_PYTHON_DISK): input should be greater than or equal to 1048576",
    "--sessions 0": "--sessions (LONGHAUL_PYTHON_SESSIONS): input should be greater than or equal to 1",
    "--cpu-seconds 1.5": "--cpu-seconds (LONGHAUL_PYTHON_CPU_SECONDS): input should be a valid integer",
    "--open-files 31": "--open-files (LONGHAUL_PYTHON_OPEN_FILES): input should be greater than or equal",
    "--idle-seconds 0": "--idle-seconds (LONGHAUL_PYTHON_IDLE_SECONDS): input should be greater than 0",
    "--seconds nan": "--seconds (LONGHAUL_PYTHON_SECONDS): input should be a finite number",
    "--port": "argument --port: expected one argument",
    "--unsafe": "unrecognized arguments: --unsafe",
}
BROWSER = {
    "": "--backend (LONGHAUL_BROWSER_BACKEND): field required",
    "--backend bing": "--backend (LONGHAUL_BROWSER_BACKEND): input should be 'searxng', 'exa' or 'folder'",
    "--backend searxng": "--url: is needed with --backend searxng",
    "--backend searxng --url x": "--url (LONGHAUL_BROWSER_URL): string should match pattern '^https?://'",
    "--backend folder": "--folder: is needed with --backend folder",
    "--backend folder --folder /none": "--folder (LONGHAUL_BROWSER_FOLDER): path does not point",
    "--backend exa --ports 80,0": "--ports (LONGHAUL_BROWSER_PORTS): input should be greater than or equal to 1",
    "--backend exa --ports http": "--ports (LONGHAUL_BROWSER_PORTS): input should be a valid integer",
    "--backend exa --port x": "--port (LONGHAUL_BROWSER_PORT): input should be a valid integer",
    "--backend exa --max-pages 0": "--max-pages (LONGHAUL_BROWSER_MAX_PAGES): input should be greater than",
    "--backend exa --allow-network x": "--allow-network (LONGHAUL_BROWSER_ALLOW_NETWORK): value is not a valid",
    "--backend exa --allow-network 10.0.0.1/8": "--allow-network (LONGHAUL_BROWSER_ALLOW_NETWORK): value is not",
    "--backend exa --log-level x": "--log-level (LONGHAUL_BROWSER_LOG_LEVEL): input should be 'DEBUG', 'INFO'",
}


@pytest.mark.parametrize(("settings", "refused"), [(PythonSettings, PYTHON), (BrowserSettings, BROWSER)])
def test_a_bad_option_is_one_line_that_names_it(
    settings: type[PythonSettings | BrowserSettings], refused: dict[str, str]
) -> None:
    for arguments, line in refused.items():
        with pytest.raises(StartError) as caught:
            load(settings, arguments.split())
        assert str(caught.value).startswith(line) and "\n" not in str(caught.value), arguments


def test_a_bad_variable_is_one_line_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LONGHAUL_PYTHON_MEMORY", "1MiB")
    with pytest.raises(StartError, match=r"^--memory \(LONGHAUL_PYTHON_MEMORY\): input should be .* 67108864$"):
        load(PythonSettings, [])


def test_options_of_python_come_from_the_environment_and_the_command_line_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LONGHAUL_LOG_LEVEL", "DEBUG")
    assert load(PythonSettings, []).limits() == Limits()
    monkeypatch.setenv("LONGHAUL_PYTHON_MEMORY", "1GiB")
    monkeypatch.setenv("LONGHAUL_PYTHON_OPEN_FILES", "40")
    monkeypatch.setenv("LONGHAUL_PYTHON_PORT", "")
    settings = load(PythonSettings, ["--open-files", "50", "--disk=16 MiB", "--seconds", "0.5", "--stdio"])
    assert settings.limits() == Limits(seconds=0.5, memory=ByteSize(2**30), disk=ByteSize(2**24), open_files=50)
    assert settings.stdio and settings.port == 8801
    assert settings.log_level == "INFO"  # at DEBUG the server logs code and output, so it has to be asked itself


def test_options_of_the_browser_come_from_the_environment_and_the_command_line_wins(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LONGHAUL_BROWSER_BACKEND", "folder")
    monkeypatch.setenv("LONGHAUL_BROWSER_FOLDER", str(tmp_path))
    monkeypatch.setenv("LONGHAUL_BROWSER_ALLOW_NETWORK", "10.0.0.0/8, fd00::/8")
    monkeypatch.setenv("LONGHAUL_BROWSER_PORT", "")
    monkeypatch.setenv("LONGHAUL_LOG_LEVEL", "DEBUG")
    settings = load(BrowserSettings, ["--max-pages", "5"])
    assert (settings.backend, settings.folder, settings.max_pages, settings.port) == ("folder", tmp_path, 5, 8802)
    assert settings.allow_network == (ip_network("10.0.0.0/8"), ip_network("fd00::/8"))
    assert settings.log_level == "INFO"  # at DEBUG the server logs queries and URLs, so it has to be asked itself
    several = load(
        BrowserSettings, ["--allow-network", "10.0.0.0/8", "--allow-network", "::1/128", "--log-level", "ERROR"]
    )
    assert several.allow_network == (ip_network("10.0.0.0/8"), ip_network("::1/128")) and several.log_level == "ERROR"
