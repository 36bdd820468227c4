"""A worker gets from a hub what says a model's family, and nothing else: a real huggingface_hub, and a small hub."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import ClassVar

import pytest

pytest.importorskip("huggingface_hub")

COMMIT = "0123456789abcdef0123456789abcdef01234567"
FILES = {
    "config.json": b'{"model_type": "qwen3"}',
    "generation_config.json": b'{"temperature": 0.6}',
    "chat_template.jinja": b"{% if tools %}{{ tools }}<tool_call>arguments</tool_call>{% endif %}<think>",
    "model.safetensors": b"the weights",
}
DECIDED = """
import sys
from pathlib import Path
from config.model_files import resolved
from config.models import load_models
print(resolved(load_models(Path(sys.argv[1])).models[0])[1])
"""


class Hub(BaseHTTPRequestHandler):
    """One model, org/m."""

    asked: ClassVar[set[str]] = set()

    def do_GET(self) -> None:
        name = self.path.partition(f"/org/m/resolve/{COMMIT}/")[2]
        if self.path.startswith("/api/models/org/m/revision/"):
            self._answer(
                json.dumps({"id": "org/m", "sha": COMMIT, "siblings": [{"rfilename": n} for n in FILES]}).encode()
            )
        elif self.path.startswith("/api/models/org/m/tree/"):
            self._answer(
                json.dumps([{"type": "file", "path": n, "size": len(FILES[n]), "oid": n} for n in FILES]).encode()
            )
        elif name in FILES:
            self.asked.add(name)
            self._answer(FILES[name])
        else:
            self.send_error(404)

    do_HEAD = do_GET

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Type", "application/json")
        self.send_header("ETag", f'"{hashlib.sha1(body, usedforsecurity=False).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_worker_downloads_what_says_the_family_and_no_weights(hub: str, tmp_path: Path) -> None:
    (tmp_path / "models.toml").write_text('[[models]]\nname = "m"\npath = "org/m"\n')
    env = {"HF_ENDPOINT": hub, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_DISABLE_XET": "1", "PATH": ""}
    command = [sys.executable, "-c", DECIDED, str(tmp_path / "models.toml")]
    first = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert first.stdout.startswith(
        "format chat, tool_parser hermes, reasoning_parser qwen3, default_sampling temperature=0.6"
    )
    assert Hub.asked == FILES.keys() - {"model.safetensors"}
    cached = subprocess.run(
        command, env={**env, "HF_ENDPOINT": "http://127.0.0.1:9"}, capture_output=True, text=True, check=True
    )
    assert cached.stdout == first.stdout  # a hub that is away changes nothing
