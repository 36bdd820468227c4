"""What the operators' commands print."""

from __future__ import annotations

import json

import pytest

from app.local.commands.output import column, duration, plain, show


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (None, None),
        (-3.0, "0.0s"),
        (0.04, "0.0s"),
        (9.94, "9.9s"),
        (9.96, "10s"),
        (59.4, "59s"),
        (59.6, "1m 0s"),
        (250, "4m 10s"),
        (3 * 3600 + 300, "3h 5m"),
        (2 * 86400 + 4 * 3600, "2d 4h"),
    ],
)
def test_durations_have_two_units_at_most(seconds: float | None, shown: str | None) -> None:
    assert duration(seconds) == shown


def test_names_of_others_lose_what_a_terminal_obeys() -> None:
    assert plain("a\x1b[2J\tb\u202ec\r\né") == "a\ufffd[2J\ufffdb\ufffdc\ufffd\ufffdé"


def test_each_entry_is_one_line_of_json_however_its_reader_splits_lines(capsys: pytest.CaptureFixture[str]) -> None:
    entries = [{"name": "a\x85b\u2028c"}, {"name": "d"}]
    show(entries, [column("name")], as_json=True)
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == entries


def test_a_table_never_folds_its_first_column(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    entry = {"id": "resp_" + 40 * "0", "worker": 30 * "w"}
    monkeypatch.setenv("COLUMNS", "60")
    show([entry], [column("id"), column("worker")], as_json=False)
    assert entry["id"] in capsys.readouterr().out
