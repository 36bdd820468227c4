"""The terminal of `longhaul up`: names before lines, or one object a line."""

from __future__ import annotations

import json

import pytest

from app.local.console import Console


def test_a_line_of_text_stands_behind_the_name_of_its_process(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console()
    console.writer_for("api")("started")
    console.log("ready")
    assert capsys.readouterr().out == "api      | started\nlonghaul | ready\n"


def test_in_json_every_line_is_an_object(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console("json")
    console.writer_for("worker.1")('{"message": "claimed", "process": "worker"}')
    console.writer_for("postgres")("LOG:  ready")
    console.writer_for("postgres")("")
    console.log("ready")
    console.write("The API:\n\n  http://127.0.0.1:8000\n")
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["process"], line["message"]) for line in lines] == [
        ("worker", "claimed"),
        ("postgres", "LOG:  ready"),
        ("longhaul", "ready"),
        ("longhaul", "The API:"),
        ("longhaul", "  http://127.0.0.1:8000"),
    ]
