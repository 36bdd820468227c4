"""The settings: defaults, names, and one line for each error."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args

import pytest

from app.cli import cli
from app.protocol.limits import LimitKind
from config.settings import (
    CHECKED_VARIABLE,
    ConfigError,
    LimitName,
    Settings,
    load_settings,
    unknown_variables,
    variable_of,
)


def test_defaults_need_no_environment_and_listen_on_this_machine_alone() -> None:
    found = load_settings()
    assert (found.host, found.port, found.flower_port) == ("127.0.0.1", 8000, 5555)
    assert found.database_url is None
    assert found.redis_url is None
    assert found.home.name == ".longhaul"


def test_files_of_the_folder_of_secrets_set_what_the_environment_does_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "DATABASE_URL").write_text("postgresql://file@db/x\n")
    (tmp_path / "REDIS_URL").write_text("redis://file/0")
    (tmp_path / "LONGHAUL_FLOWER_AUTH").write_text("longhaul:secret\n")
    monkeypatch.setenv("LONGHAUL_SECRETS", str(tmp_path))
    monkeypatch.setenv("REDIS_URL", "redis://environment/0")
    found = load_settings()
    assert found.database_dsn == "postgresql://file@db/x"
    assert found.broker_url == "redis://environment/0"
    assert found.flower_auth == "longhaul:secret"


def test_a_folder_of_secrets_is_read_through_the_links_of_kubernetes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "..2026").mkdir()
    (tmp_path / "..2026" / "DATABASE_URL").write_text("postgresql://linked@db/x")
    (tmp_path / "..data").symlink_to("..2026")
    (tmp_path / "DATABASE_URL").symlink_to("..data/DATABASE_URL")
    monkeypatch.setenv("LONGHAUL_SECRETS", str(tmp_path))
    assert load_settings().database_dsn == "postgresql://linked@db/x"


def test_a_folder_of_secrets_that_is_not_there_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LONGHAUL_SECRETS", str(tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match=r"^LONGHAUL_SECRETS: .*nowhere is not a folder$"):
        load_settings()


def test_an_empty_variable_counts_as_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "")
    monkeypatch.setenv("LONGHAUL_PORT", "")
    assert load_settings().database_url is None
    assert load_settings().port == 8000


SERVER = "postgresql://u:hunter2@db/x"
TLS = "rediss://:hunter2@r:6380/0?ssl_ca_certs=/ca.pem"
LIBPQ = (
    *("keepalives=1", "keepalives_idle=30", "tcp_user_timeout=1000", "channel_binding=require", "service=hunter2"),
    *("hostaddr=10.0.0.1", "require_auth=none", "gssencmode=require", "load_balance_hosts=random", "sslcrldir=/etc"),
    *("connect_timeout=0", "connect_timeout=soon", "pgbouncer=yes", "client_encoding=latin1"),
    *("target_session_attrs=standby", "statement_timeout=5000", "sslmode=require&sslrootcert=system"),
    "sslcrl=/etc/crl.pem&sslrootcert=system",
)
NO_HOSTS = ("https://files.example", "files.example/", "a.*.example", "*example", "a:0", "a:70000", "fd00::1", "u@a")
FLOATS = [name for name, field in Settings.model_fields.items() if "float" in str(field.annotation)]
NO_LIMITS = (
    *("600", "requests_per_minute", "requests_per_minute=", "requests_per_minute=1,"),
    "requests_per_minute=1,requests_per_minute=2",
)
REFUSED: list[tuple[str, str, str]] = [
    ("DATABASE_URL", "mysql://u:hunter2@db/x", ""),
    ("DATABASE_URL", "postgresql://u:hunter2@db:a/x", ""),
    ("DATABASE_URL", f"{SERVER}?target_session_attrs=any", ""),
    ("DATABASE_URL", f"{SERVER}?ssl=require", ""),
    *(("DATABASE_URL", f"{SERVER}?{each}", f"its parameter {each.partition('=')[0]} ") for each in LIBPQ),
    ("REDIS_URL", "valkey://:hunter2@r", ""),
    ("REDIS_URL", "sentinel://:hunter2@r:26379/main", "a proxy or a name that follows the primary"),
    ("REDIS_URL", "redis+sentinel://r:26379/main/0", "a proxy or a name that follows the primary"),
    ("REDIS_URL", "redis://:hunter2@r:6379,s:6379/0", ""),
    ("REDIS_URL", f"{TLS}&ssl_cert_reqs=none", "the certificate is always verified"),
    ("REDIS_URL", f"{TLS}&ssl_check_hostname=false", "the certificate is always verified"),
    ("REDIS_URL", f"{TLS}&socket_timeout=hunter2", "its parameter socket_timeout is not supported"),
    ("LONGHAUL_PORT", "hunter2", ""),
    ("LONGHAUL_PORT", "65536", ""),
    ("LONGHAUL_FLOWER_PORT", "0", ""),
    ("LONGHAUL_FLOWER_AUTH", "hunter2", ""),
    ("LONGHAUL_FLOWER_AUTH", "longhaul:two,words", ""),
    ("LONGHAUL_LOG_LEVEL", "hunter2", ""),
    ("LONGHAUL_LEASE_SECONDS", "-1", ""),
    ("LONGHAUL_EVENTS_PER_SECOND", "-0.1", ""),
    ("LONGHAUL_WORKER_CONCURRENCY", "0", ""),
    *(
        ("LONGHAUL_CORS_ORIGINS", wrong, "must be origins")
        for wrong in ("app.example", "https://app.example/", "https://App.example", "https://a/b,*")
    ),
    *(("LONGHAUL_FILE_URL_HOSTS", wrong, "must be hosts") for wrong in NO_HOSTS),
    *(("LONGHAUL_NEW_PROJECT_LIMITS", wrong, "must be limits, each once") for wrong in NO_LIMITS),
    ("LONGHAUL_NEW_PROJECT_LIMITS", "requests_per_hour=1", "Input should be 'requests_per_minute'"),
    ("LONGHAUL_NEW_PROJECT_LIMITS", "requests_per_minute=0", "greater than or equal to 1"),
    ("LONGHAUL_NEW_PROJECT_LIMITS", "tokens_per_day=9007199254740991", "less than or equal to 9007199254740990"),
    ("LONGHAUL_NEW_PROJECT_LIMITS", "tokens_per_day=many", "a valid integer"),
    # No number is infinite, or too large for a clock.
    *((variable_of(name), value, "") for name in FLOATS for value in ("inf", "-inf", "nan", "1e300")),
]


def refusal(variable: str, value: str) -> str:
    with pytest.MonkeyPatch.context() as environment, pytest.raises(ConfigError) as caught:
        environment.setenv(variable, value)
        load_settings()
    return str(caught.value)


def test_a_bad_value_is_one_line_that_names_the_variable_and_hides_the_value(tmp_path: Path) -> None:
    assert len(FLOATS) >= 12
    (tmp_path / "DATABASE_URL").write_text("mysql://user:hunter2@db/x")
    assert re.match(r"DATABASE_URL: (?!.*hunter2)", refusal("LONGHAUL_SECRETS", str(tmp_path)))
    for variable, value, says in REFUSED:
        message = refusal(variable, value)
        assert message.startswith(f"{variable}: ") and says in message
        assert "\n" not in message and "hunter2" not in message


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:p@a:1,b:2/x?target_session_attrs=read-write",
        "postgresql://u:p@a,b/x",
        "postgresql://u:p@[::1]:1,[::2]/x",
        "postgresql://u:p@a:1,[::2]:2/x",
        "postgresql://u:p@/x?host=/run",
        "postgresql:///x",
    ],
)
def test_a_postgres_url_may_name_several_servers_as_libpq_does(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("DATABASE_URL", url)
    assert load_settings().database_dsn == url


def test_a_url_that_is_missing_is_named_when_it_is_needed() -> None:
    with pytest.raises(ConfigError, match="DATABASE_URL is not set"):
        _ = load_settings().database_dsn
    with pytest.raises(ConfigError, match="REDIS_URL is not set"):
        _ = load_settings().broker_url


def test_a_variable_that_is_no_setting_is_unknown() -> None:
    no_settings = {"LONGHAUL_MAX_TRIES": "3", "longhaul_prot": "1"}
    assert unknown_variables({**no_settings, "LONGHAUL_PORT": "1", "longhaul_host": "x", "PATH": ""}) == [*no_settings]
    # Those of tool servers and tests are known; a supervisor reports for its processes.
    names = ("LONGHAUL_TOOLS_TOKEN", "LONGHAUL_BROWSER_PORT", "LONGHAUL_TEST_MARK", "LONGHAUL_PYTHON_X")
    assert unknown_variables(dict.fromkeys(names, "1")) == []
    assert unknown_variables({**no_settings, CHECKED_VARIABLE: "1"}) == []


def test_a_command_warns_of_a_variable_that_is_no_setting(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LONGHAUL_MAX_READERS", "3")  # it was one
    cli(["models"], standalone_mode=False)
    warning = "longhaul: LONGHAUL_MAX_READERS is no setting and has no effect; docs/settings.md lists them all\n"
    assert capsys.readouterr().err == warning


def test_without_keys_the_api_listens_to_no_other_machine() -> None:
    for host in ("127.0.0.1", "127.9.9.9", "::1", "localhost", "LOCALHOST"):
        load_settings(host=host).check_auth()
    for host in ("0.0.0.0", "::", "192.168.1.2", "longhaul.example", ""):
        with pytest.raises(ConfigError, match=r"set LONGHAUL_AUTH=keys, or LONGHAUL_HOST=127\.0\.0\.1"):
            load_settings(host=host).check_auth()
        load_settings(host=host, auth="keys").check_auth()


def test_the_limits_of_new_projects_have_the_names_of_all_limits() -> None:
    assert set(get_args(LimitName)) == {kind.value for kind in LimitKind}


HOSTS = ("files.example", "*.docs.example:8443", "minio:9000", "[fd00::1]:80", "10.0.0.1", "*")
LISTS: list[tuple[str, str, Any]] = [
    ("cors_origins", "http://localhost:3000, https://app.example,", ("http://localhost:3000", "https://app.example")),
    ("cors_origins", "*", ("*",)),
    ("file_url_hosts", "Files.example, *.docs.example:8443, minio:9000,[fd00::1]:80, 10.0.0.1,*", HOSTS),
    (
        "new_project_limits",
        "requests_per_minute=600, tokens_per_day = 1000000",
        {"requests_per_minute": 600, "tokens_per_day": 1000000},
    ),
]


@pytest.mark.parametrize(("name", "value", "items"), LISTS)
def test_a_list_is_separated_by_commas_and_empty_if_it_is_not_set(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, items: Any
) -> None:
    assert not getattr(load_settings(), name)
    monkeypatch.setenv(variable_of(name), value)
    assert getattr(load_settings(), name) == items
