"""The MCP servers of models.toml and LONGHAUL_TOOL_SERVERS, and which of them a request names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from config.models import load_catalog
from config.settings import ConfigError, load_settings
from config.tools import (
    McpServer,
    expand_headers,
    merge_servers,
    server_for,
    servers_of_variable,
)
from tests.unit.config.cases import NAMED, catalog, check_complaints

URL = 'url = "http://127.0.0.1:1/mcp"\n'


def entry(text: str, label: str = "docs") -> str:
    return f'[[tool_servers]]\nlabel = "{label}"\n{text}'


def test_a_url_is_enough(tmp_path: Path) -> None:
    assert catalog(tmp_path, NAMED).tools == ()
    (server,) = catalog(tmp_path, NAMED + entry(URL)).tools
    assert server.allows("delete") and not server.require_approval
    assert server == McpServer("docs", "mcp", "http://127.0.0.1:1/mcp")
    assert (server.timeout_seconds, server.after_crash, server.request_headers) == (60.0, None, False)


def test_every_option_of_an_mcp_server_is_read(tmp_path: Path) -> None:
    text = (
        'kind = "browser"\nurl = "https://tools.example/mcp"\nheaders = { Authorization = "Bearer ${TOKEN}" }\n'
        'request_headers = true\ntimeout_seconds = 5.5\nafter_crash = "fail"\n'
        'allowed_tools = ["search"]\nrequire_approval = "always"\n'
    )
    (server,) = catalog(tmp_path, NAMED + entry(text)).tools
    assert (server.kind, server.request_headers, server.timeout_seconds) == ("browser", True, 5.5)
    assert (dict(server.headers), server.after_crash) == ({"Authorization": "Bearer ${TOKEN}"}, "fail")
    assert (server.allowed_tools, server.require_approval) == ({"search"}, True)
    assert server.allows("search") and not server.allows("delete")


WRONG = [
    (entry(""), "MCP server 'docs' needs a url or a command, and not both"),
    (entry(URL + 'command = ["x"]\n'), "needs a url or a command, and not both"),
    (entry("command = []\n"), "tool_servers.0.command"),
    (entry('url = "ftp://x/mcp"\n'), "needs a url that starts with http"),
    (entry('url = "http://me:hunter2@x/mcp"\n'), "holds no password"),
    (entry('url = "http://x:99999/mcp"\n'), "needs a url"),
    (entry('kind = "shell"\n' + URL), "tool_servers.0.kind"),
    (entry(URL, "a b"), "tool_servers.0.label"),
    (entry(URL + "timeout_seconds = 0.0\n"), "tool_servers.0.timeout_seconds"),
    (entry(URL + "timeout_seconds = inf\n"), "tool_servers.0.timeout_seconds"),
    (entry(URL + 'after_crash = "retry"\n'), "tool_servers.0.after_crash"),
    (entry(URL + 'require_approval = "never"\n'), "tool_servers.0.require_approval"),
    (entry(URL + 'secret = "x"\n'), "tool_servers.0.secret"),
    (entry(URL + 'headers = { "a b" = "x" }\n'), "has the header 'a b'"),
    (entry(URL + 'headers = { a = "${x" }\n'), "the header 'a' is not text with ${NAME} in it"),
    (entry(URL + 'headers = { a = "x\\ny" }\n'), "the header 'a' is not text"),
    (entry('command = ["x"]\nheaders = { a = "b" }\n'), "is a command: it takes no headers"),
    (entry('command = ["x"]\nrequest_headers = true\n'), "is a command: it takes no headers"),
    (entry(URL) + entry(URL), "two MCP servers have the label 'docs'"),
    ("".join(entry('kind = "python"\n' + URL, label) for label in "ab"), "two MCP servers are of the kind 'python'"),
]


def test_an_error_of_a_tool_server_is_one_line_that_names_file_and_entry_and_no_password(tmp_path: Path) -> None:
    check_complaints(tmp_path, [(NAMED + text, complaint) for text, complaint in WRONG])


def test_labels_in_the_variable_set_the_kind() -> None:
    found = servers_of_variable("python=http://a/mcp, browser=http://b/mcp,docs=https://c/mcp?x=1,")
    assert [(server.label, server.kind, server.url) for server in found] == [
        ("python", "python", "http://a/mcp"),
        ("browser", "browser", "http://b/mcp"),
        ("docs", "mcp", "https://c/mcp?x=1"),
    ]
    assert servers_of_variable("") == ()


def test_a_bad_variable_is_one_line_that_names_it_and_hides_the_url() -> None:
    wrong = (
        "http://a/mcp",
        "a b=http://a",
        "docs=hunter2",
        "docs",
        "docs=http://u:hunter2@a/mcp",
        "a=http://a,a=http://b",
    )
    for value in wrong:
        with pytest.raises(ConfigError, match=r"^LONGHAUL_TOOL_SERVERS: ") as caught:
            servers_of_variable(value)
        assert "hunter2" not in str(caught.value)


def test_servers_of_the_environment_replace_those_of_the_file() -> None:
    file = (
        McpServer("code", "python", "http://a"),
        McpServer("docs", "mcp", "http://b"),
        McpServer("x", "mcp", "c"),
    )
    environment = (McpServer("python", "python", "http://d"), McpServer("docs", "mcp", "http://e"))
    assert merge_servers(file, environment) == (file[2], *environment)


def test_the_catalog_has_servers_of_file_and_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "models.toml").write_text(NAMED + entry(URL))
    monkeypatch.setenv("LONGHAUL_TOOL_SERVERS", "python=http://127.0.0.1:2/mcp")
    catalog = load_catalog(load_settings(models=tmp_path / "models.toml"))
    assert [server.label for server in catalog.tools] == ["docs", "python"]


SERVERS = (
    McpServer("python", "python", command=("x",)),
    McpServer("docs", "mcp", "http://Tools.Example:80/mcp/"),
    McpServer("v6", "mcp", "http://[::1]:8801/mcp"),
)


@pytest.mark.parametrize(
    ("label", "url", "found"),
    [
        ("docs", None, "docs"),
        ("python", None, "python"),
        ("other", None, None),
        ("mine", "http://tools.example/mcp", "docs"),
        ("mine", "HTTP://TOOLS.EXAMPLE:80/mcp/#x", "docs"),
        ("mine", "http://[::1]:8801/mcp", "v6"),
        ("docs", "https://tools.example/mcp", None),
        ("docs", "http://tools.example/mcp?x=1", None),
        ("docs", "http://tools.example/other", None),
        ("docs", "http://tools.example:8080/mcp", None),
        ("docs", "http://tools.example@evil.example/mcp", None),
        ("docs", "http://169.254.169.254/latest", None),
        ("docs", "file:///etc/passwd", None),
        ("docs", "http://tools.example:x/mcp", None),
        ("docs", "", None),
        ("docs", "http://", None),
        ("docs", "//x/mcp", None),
    ],
)
def test_a_request_names_a_configured_server_or_none(label: str, url: str | None, found: str | None) -> None:
    server = server_for(SERVERS, label, url)
    assert (server.label if server else None) == found


def test_headers_get_their_variables_when_they_are_used() -> None:
    headers = {"Authorization": "Bearer ${TOKEN}", "X": "${A}-${A}$"}
    assert expand_headers(headers, {"TOKEN": "t", "A": "a"}) == {"Authorization": "Bearer t", "X": "a-a$"}
    with pytest.raises(ConfigError, match=re.escape("TOKEN is not set")):
        expand_headers(headers, {"A": "a"})
