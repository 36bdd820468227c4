"""The settings: defaults, names, and one line for each error."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest
from pydantic import ValidationError

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


def test_a_bad_secret_is_one_line_without_its_value(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "DATABASE_URL").write_text("mysql://user:hidden@db/x")
    monkeypatch.setenv("LONGHAUL_SECRETS", str(tmp_path))
    with pytest.raises(ConfigError, match=r"^DATABASE_URL: ") as caught:
        load_settings()
    assert "hidden" not in str(caught.value)


def test_the_environment_is_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgres://u:p@db/x?host=/run")
    monkeypatch.setenv("REDIS_URL", "redis://r:1/2")
    monkeypatch.setenv("LONGHAUL_HOME", str(tmp_path))
    monkeypatch.setenv("LONGHAUL_PORT", "81")
    found = load_settings()
    assert found.database_dsn == "postgres://u:p@db/x?host=/run"
    assert found.broker_url == "redis://r:1/2"
    assert (found.home, found.port) == (tmp_path, 81)


def test_an_empty_variable_counts_as_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "")
    monkeypatch.setenv("LONGHAUL_PORT", "")
    assert load_settings().database_url is None
    assert load_settings().port == 8000


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("DATABASE_URL", "mysql://u:hunter2@db/x"),
        ("DATABASE_URL", "postgresql://u:hunter2@db:a/x"),
        ("DATABASE_URL", "postgresql://u:hunter2@db/x?target_session_attrs=any"),
        ("DATABASE_URL", "postgresql://u:hunter2@db/x?ssl=require"),
        ("REDIS_URL", "valkey://:hunter2@r"),
        ("REDIS_URL", "sentinel://:hunter2@r:26379/main"),
        ("REDIS_URL", "redis://:hunter2@r:6379,s:6379/0"),
        ("LONGHAUL_PORT", "hunter2"),
        ("LONGHAUL_PORT", "65536"),
        ("LONGHAUL_FLOWER_PORT", "0"),
        ("LONGHAUL_FLOWER_AUTH", "hunter2"),
        ("LONGHAUL_FLOWER_AUTH", "longhaul:two,words"),
        ("LONGHAUL_LOG_LEVEL", "hunter2"),
        ("LONGHAUL_LEASE_SECONDS", "-1"),
        ("LONGHAUL_EVENTS_PER_SECOND", "-0.1"),
        ("LONGHAUL_SHUTDOWN_GRACE_SECONDS", "nan"),
        ("LONGHAUL_WORKER_CONCURRENCY", "0"),
    ],
)
def test_a_bad_value_is_one_line_that_names_the_variable_and_hides_the_value(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(ConfigError) as caught:
        load_settings()
    message = str(caught.value)
    assert message.startswith(f"{variable}: ")
    assert "\n" not in message
    assert "hunter2" not in message


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


@pytest.mark.parametrize(
    "parameter",
    [
        "keepalives=1",
        "keepalives_idle=30",
        "tcp_user_timeout=1000",
        "channel_binding=require",
        "service=hunter2",
        "hostaddr=10.0.0.1",
        "require_auth=none",
        "gssencmode=require",
        "load_balance_hosts=random",
        "sslcrldir=/etc",
        "connect_timeout=0",
        "pgbouncer=yes",
        "connect_timeout=soon",
        "client_encoding=latin1",
        "target_session_attrs=standby",
        "statement_timeout=5000",
        "sslmode=require&sslrootcert=system",
        "sslcrl=/etc/crl.pem&sslrootcert=system",
    ],
)
def test_a_parameter_of_libpq_that_cannot_be_honoured_is_refused_by_its_name(
    monkeypatch: pytest.MonkeyPatch, parameter: str
) -> None:
    monkeypatch.setenv("DATABASE_URL", f"postgresql://u:hunter2@db/x?{parameter}")
    with pytest.raises(ConfigError, match=f"DATABASE_URL: its parameter {parameter.partition('=')[0]} ") as caught:
        load_settings()
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("parameter", "said"),
    [
        ("ssl_cert_reqs=none", "the certificate is always verified"),
        ("ssl_check_hostname=false", "the certificate is always verified"),
        ("socket_timeout=hunter2", "its parameter socket_timeout is not supported"),
    ],
)
def test_a_parameter_of_redis_that_is_not_honoured_is_refused_by_its_name(
    monkeypatch: pytest.MonkeyPatch, parameter: str, said: str
) -> None:
    monkeypatch.setenv("REDIS_URL", f"rediss://:hunter2@r:6380/0?ssl_ca_certs=/ca.pem&{parameter}")
    with pytest.raises(ConfigError, match=said) as caught:
        load_settings()
    assert "hunter2" not in str(caught.value)


def test_a_url_of_sentinel_is_refused_with_what_works_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    for url in ("sentinel://r:26379", "redis+sentinel://r:26379/main/0"):
        monkeypatch.setenv("REDIS_URL", url)
        with pytest.raises(ConfigError, match="a proxy or a name that follows the primary"):
            load_settings()


def test_a_url_that_is_missing_is_named_when_it_is_needed() -> None:
    with pytest.raises(ConfigError, match="DATABASE_URL is not set"):
        _ = load_settings().database_dsn
    with pytest.raises(ConfigError, match="REDIS_URL is not set"):
        _ = load_settings().broker_url


def test_settings_do_not_change() -> None:
    with pytest.raises(ValidationError):
        load_settings().port = 1  # type: ignore[misc]


def test_every_field_has_a_variable() -> None:
    for name in Settings.model_fields:
        expected = name.upper() if name in ("database_url", "redis_url") else f"LONGHAUL_{name.upper()}"
        assert variable_of(name) == expected


def test_a_variable_that_is_no_setting_is_unknown() -> None:
    environ = {
        "LONGHAUL_MAX_TRIES": "3",
        "longhaul_prot": "1",
        "LONGHAUL_PORT": "1",
        "longhaul_host": "x",
        "PATH": "",
    }
    assert unknown_variables(environ) == ["LONGHAUL_MAX_TRIES", "longhaul_prot"]


def test_variables_of_tool_servers_and_tests_are_known() -> None:
    names = ("LONGHAUL_TOOLS_TOKEN", "LONGHAUL_BROWSER_PORT", "LONGHAUL_TEST_MARK", "LONGHAUL_PYTHON_X")
    assert unknown_variables(dict.fromkeys(names, "1")) == []


def test_unknown_variables_are_reported_once_by_a_supervisor_and_its_processes() -> None:
    assert unknown_variables({"LONGHAUL_X": "1", CHECKED_VARIABLE: "1"}) == []


def test_a_command_warns_of_a_variable_that_is_no_setting(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LONGHAUL_MAX_READERS", "3")  # it was one
    cli(["models"], standalone_mode=False)
    warning = "longhaul: LONGHAUL_MAX_READERS is no setting and has no effect; docs/settings.md lists them all\n"
    assert capsys.readouterr().err == warning


def test_cors_origins_are_separated_by_commas(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_settings().cors_origins == ()
    monkeypatch.setenv("LONGHAUL_CORS_ORIGINS", "http://localhost:3000, https://app.example,")
    assert load_settings().cors_origins == ("http://localhost:3000", "https://app.example")
    monkeypatch.setenv("LONGHAUL_CORS_ORIGINS", "*")
    assert load_settings().cors_origins == ("*",)


@pytest.mark.parametrize("wrong", ["app.example", "https://app.example/", "https://App.example", "https://a/b,*"])
def test_an_origin_that_no_browser_sends_is_refused(monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    monkeypatch.setenv("LONGHAUL_CORS_ORIGINS", wrong)
    with pytest.raises(ConfigError, match="LONGHAUL_CORS_ORIGINS: must be origins"):
        load_settings()


def test_hosts_of_files_have_a_port_or_stand_for_those_below(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_settings().file_url_hosts == ()
    monkeypatch.setenv(
        "LONGHAUL_FILE_URL_HOSTS", "Files.example, *.docs.example:8443, minio:9000,[fd00::1]:80, 10.0.0.1,*"
    )
    hosts = ("files.example", "*.docs.example:8443", "minio:9000", "[fd00::1]:80", "10.0.0.1", "*")
    assert load_settings().file_url_hosts == hosts


@pytest.mark.parametrize(
    "wrong", ["https://files.example", "files.example/", "a.*.example", "*example", "a:0", "a:70000", "fd00::1", "u@a"]
)
def test_what_is_no_host_of_files_is_refused(monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    monkeypatch.setenv("LONGHAUL_FILE_URL_HOSTS", wrong)
    with pytest.raises(ConfigError, match="LONGHAUL_FILE_URL_HOSTS: must be hosts"):
        load_settings()


FLOATS = [name for name, field in Settings.model_fields.items() if "float" in str(field.annotation)]


@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("value", ["inf", "-inf", "nan", "1e300"])
def test_no_number_is_infinite_or_too_large_for_a_clock(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable_of(name), value)
    with pytest.raises(ConfigError, match=variable_of(name)):
        load_settings()


def test_there_are_floats_to_check() -> None:
    assert len(FLOATS) >= 12


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost", "LOCALHOST"])
def test_without_keys_the_api_may_listen_on_this_machine(host: str) -> None:
    load_settings(host=host).check_auth()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.2", "longhaul.example", ""])
def test_without_keys_the_api_listens_to_no_other_machine(host: str) -> None:
    with pytest.raises(ConfigError, match=r"set LONGHAUL_AUTH=keys, or LONGHAUL_HOST=127\.0\.0\.1"):
        load_settings(host=host).check_auth()
    load_settings(host=host, auth="keys").check_auth()


def test_the_limits_of_new_projects_have_the_names_of_all_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(get_args(LimitName)) == {kind.value for kind in LimitKind}
    assert load_settings().new_project_limits == {}
    monkeypatch.setenv("LONGHAUL_NEW_PROJECT_LIMITS", "requests_per_minute=600, tokens_per_day = 1000000")
    assert load_settings().new_project_limits == {"requests_per_minute": 600, "tokens_per_day": 1000000}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("600", "must be limits, each once"),
        ("requests_per_minute", "must be limits, each once"),
        ("requests_per_minute=", "must be limits, each once"),
        ("requests_per_minute=1,requests_per_minute=2", "must be limits, each once"),
        ("requests_per_minute=1,", "must be limits, each once"),
        ("requests_per_hour=1", "Input should be 'requests_per_minute'"),
        ("requests_per_minute=0", "greater than or equal to 1"),
        ("tokens_per_day=9007199254740991", "less than or equal to 9007199254740990"),
        ("tokens_per_day=many", "a valid integer"),
    ],
)
def test_limits_of_new_projects_that_are_none_are_refused(
    monkeypatch: pytest.MonkeyPatch, wrong: str, message: str
) -> None:
    monkeypatch.setenv("LONGHAUL_NEW_PROJECT_LIMITS", wrong)
    with pytest.raises(ConfigError, match=f"LONGHAUL_NEW_PROJECT_LIMITS: .*{message}"):
        load_settings()
