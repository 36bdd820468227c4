"""The tiny gpt-oss behind `longhaul up`: `test_gpt_oss.py` and `test_chat_peer.py` share it. vLLM sends its spans."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.models.gpt_oss_folder import ENGINE_ARGS, gpt_oss_folder
from tests.support.browser_server import browser_server
from tests.support.collector import Collector, collecting
from tests.support.installations import running
from tests.support.longhaul import Longhaul
from tests.support.python_server import python_server
from tests.support.services import open_folder

MODELS = """
[[models]]
name = "tiny-gpt-oss"
path = "{path}"
context_length = 4096
engine_args = {args}
default_sampling = {{ temperature = 0.0 }}

[[tool_servers]]
label = "python"
kind = "python"
url = "{python}"

[[tool_servers]]
label = "browser"
kind = "browser"
url = "{browser}"

[[tool_servers]]
label = "library"
command = {library}
"""
PAGE = """<html><title>Tallest mountains</title><p>Mount Everest is 8849 metres high</p>
<p>Mount Everest is the tallest mountain.</p><p>It is 8849 metres high.</p></html>"""

READY_SECONDS = 400.0
"""Its vocabulary is a large one."""


@pytest.fixture(scope="package")
def collector() -> Iterator[Collector]:
    with collecting() as opened:
        yield opened


@pytest.fixture(scope="package")
def gpt_oss(collector: Collector) -> Iterator[Longhaul]:
    """`longhaul up` with the tiny gpt-oss, python in a sandbox, a browser over a folder, and the library."""
    from tests.support import library_server  # it imports mcp, which takes half a second

    with open_folder() as folder, open_folder() as books, contextlib.ExitStack() as servers:
        web = folder / "web"
        web.mkdir()
        (web / "mountains.html").write_text(PAGE)
        python = servers.enter_context(python_server(folder / "python.log"))
        browser = servers.enter_context(
            browser_server(folder / "browser.log", "--backend", "folder", "--folder", str(web))
        )
        models = folder / "models.toml"
        models.write_text(
            MODELS.format(
                path=gpt_oss_folder(),
                args=toml({**ENGINE_ARGS, "otlp_traces_endpoint": collector.url}),
                python=python.url,
                browser=browser.url,
                library=json.dumps([sys.executable, library_server.__file__, str(books)]),
            )
        )
        said = {"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf", "LONGHAUL_LOG_FORMAT": "json"}
        made = Longhaul(folder / "home", models, VLLM_LOGGING_LEVEL="INFO", **said)
        made.ready_seconds = READY_SECONDS
        with running(made) as installation:
            yield installation


def toml(values: dict[str, Any]) -> str:
    return "{ " + ", ".join(f"{name} = {json.dumps(value)}" for name, value in values.items()) + " }"
