"""vLLM's own HTTP server in front of an engine that runs already, in this process."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn

from app.local.ports import free_port
from tests.support.waiting import until

HOST = "127.0.0.1"


@asynccontextmanager
async def served(llm: Any, name: str, *options: str) -> AsyncIterator[str]:
    """The URL of `vllm serve --enable-scale-out` for an AsyncLLM. It must be stopped before the engine is."""
    from vllm.entrypoints.launchers.api_server.app_state import init_app_state
    from vllm.entrypoints.launchers.app import build_app
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    path = llm.model_config.model
    argv = [
        "--model",
        path,
        "--served-model-name",
        name,
        "--enable-scale-out",
        "--enable-prompt-tokens-details",
        *options,
    ]
    args = make_arg_parser(FlexibleArgumentParser()).parse_args(argv)
    level = logging.root.level
    app = build_app(args, ("generate",), llm.model_config)
    await init_app_state(llm, app.state, args, ("generate",))
    logging.root.setLevel(level)  # which vLLM's app raises for all of a process
    port = free_port()
    server = uvicorn.Server(uvicorn.Config(app, host=HOST, port=port, log_config=None, lifespan="off"))
    task = asyncio.create_task(server._serve())
    await until(lambda: server.started)
    try:
        yield f"http://{HOST}:{port}"
    finally:
        server.should_exit = server.force_exit = True
        await task
