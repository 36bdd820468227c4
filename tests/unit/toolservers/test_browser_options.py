"""The options of the browser server: which are refused, and with which message."""

from __future__ import annotations

from ipaddress import ip_network
from pathlib import Path

import pytest

from workers.toolservers.browser.settings import BrowserSettings
from workers.toolservers.settings import StartError, load

EXA = ("--backend", "exa")
BAD = [
    ((), "--backend (LONGHAUL_BROWSER_BACKEND): field required"),
    (("--backend", "bing"), "--backend (LONGHAUL_BROWSER_BACKEND): input should be 'searxng', 'exa' or 'folder'"),
    (("--backend", "searxng"), "--url: is needed with --backend searxng"),
    (("--backend", "searxng", "--url", "x"), "--url (LONGHAUL_BROWSER_URL): string should match pattern '^https?://'"),
    (("--backend", "folder"), "--folder: is needed with --backend folder"),
    ((*EXA, "--ports", "80,0"), "--ports (LONGHAUL_BROWSER_PORTS): input should be greater than or equal to 1"),
    (("--backend", "folder", "--folder", "/none"), "--folder (LONGHAUL_BROWSER_FOLDER): path does not point"),
    ((*EXA, "--port", "x"), "--port (LONGHAUL_BROWSER_PORT): input should be a valid integer"),
    ((*EXA, "--port"), "argument --port: expected one argument"),
    (
        (*EXA, "--max-pages", "0"),
        "--max-pages (LONGHAUL_BROWSER_MAX_PAGES): input should be greater than or equal to 1",
    ),
    ((*EXA, "--allow-network", "x"), "--allow-network (LONGHAUL_BROWSER_ALLOW_NETWORK): value is not a valid"),
    ((*EXA, "--allow-network", "10.0.0.1/8"), "--allow-network (LONGHAUL_BROWSER_ALLOW_NETWORK): value is not a valid"),
    ((*EXA, "--ports", "http"), "--ports (LONGHAUL_BROWSER_PORTS): input should be a valid integer"),
    ((*EXA, "--log-level", "x"), "--log-level (LONGHAUL_BROWSER_LOG_LEVEL): input should be 'DEBUG', 'INFO'"),
]


@pytest.mark.parametrize(("options", "line"), BAD)
def test_a_bad_option_is_one_line_that_names_it(options: tuple[str, ...], line: str) -> None:
    with pytest.raises(StartError) as refused:
        load(BrowserSettings, list(options))
    assert str(refused.value).startswith(line) and "\n" not in str(refused.value)


def test_options_come_from_the_environment_and_the_command_line_wins(
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
