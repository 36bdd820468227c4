"""The operators' commands: which API they ask, what they print, and their exit statuses."""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
import sys
from pathlib import Path
from urllib.parse import urlsplit

from app.access.secret import new_secret
from app.local.home import ADMIN_KEY_FILE, API_LINE, LOCK_FILE, Home
from app.store.database import Database
from app.store.rows import ResponseRow
from tests.integration.operations.here import ShellHere
from tests.support.api import Api
from tests.support.commands import Shell
from tests.support.rows import SLOTS, alive, claimed, queued
from tests.support.tenants import Tenant

HOUR = 3600.0


async def running(db: Database) -> ResponseRow:
    """A response that the worker w1 runs, however long the commands take."""
    await alive(db, "w1", HOUR)
    return await claimed(db, "w1")


class TestAnswers:
    async def test_each_command_shows_what_the_api_answers(self, db: Database, remote: Shell) -> None:
        row = await running(db)
        for command, name, value in (
            (("workers",), "name", "w1"),
            (("queue", "--by", "key"), "id", None),
            (("why", row.id), "reason", "running"),
        ):
            ran = await remote.run(*command, "--json")
            assert (ran.status, ran.err) == (0, "")
            (entry,) = ran.lines
            assert entry[name] == value, command

    async def test_status_says_what_is_wrong_and_what_to_do_and_fails(self, db: Database, remote: Shell) -> None:
        await queued(db)
        ran = await remote.run("status")
        assert ran.status == 1
        assert "! No worker of " in ran.out and "Start a worker of " in ran.out
        assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC: Something is wrong:\n", ran.out)

    async def test_what_is_not_there_is_status_1_and_one_line(self, db: Database, remote: Shell) -> None:
        ran = await remote.run("why", "resp_nobody")
        assert (ran.status, ran.out) == (1, "")
        assert ran.err == "longhaul: Response with id 'resp_nobody' not found.\n"


class TestOutput:
    async def test_a_table_that_is_no_terminal_s_has_tabs_and_titles(self, db: Database, remote: Shell) -> None:
        await running(db)
        ran = await remote.run("workers")
        head, line = (each.split("\t") for each in ran.out.splitlines())
        shown = dict(zip(head, line, strict=True))
        assert (shown["name"], shown["state"], shown["slots"]) == ("w1", "ready", f"1/{SLOTS}")
        assert (shown["ahead"], shown["in tools"]) == ("0", "0")

    async def test_wrong_arguments_are_status_2(self, remote: Shell) -> None:
        for arguments in (("queue", "--by", "nobody"), ("queue", "--limit", "0"), ("why",), ("whose",)):
            ran = await remote.run(*arguments)
            assert (ran.status, ran.out) == (2, ""), arguments
            assert ran.err and "Traceback" not in ran.err


class TestOnTheMachineOfAnApi:
    async def test_its_address_and_its_first_key_are_found(
        self, db: Database, api: Api, operator_key: str, tmp_path: Path
    ) -> None:
        await alive(db, "w1", HOUR)
        (tmp_path / ADMIN_KEY_FILE).write_text(operator_key)
        port = str(urlsplit(api.url).port)
        here = {"LONGHAUL_HOME": str(tmp_path), "LONGHAUL_PORT": port}
        ran = await ShellHere(here).run("workers", "--json")
        assert [each["name"] for each in ran.lines] == ["w1"]
        ran = await ShellHere({**here, "LONGHAUL_URL": api.url}).run("workers")
        assert ran.status == 4, "the first key goes to no API that is named"

    async def test_the_api_of_longhaul_up_is_found_at_its_port(
        self, db: Database, api: Api, operator_key: str, tmp_path: Path
    ) -> None:
        home = Home.prepare(tmp_path)
        with home.showing_services({API_LINE: api.url}), (tmp_path / LOCK_FILE).open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            variables = {"LONGHAUL_HOME": str(tmp_path), "LONGHAUL_PORT": "1", "LONGHAUL_API_KEY": operator_key}
            assert (await ShellHere(variables).run("queue")).status == 0

    async def test_each_outage_and_each_wrong_setting_has_its_status_and_one_line(self, tmp_path: Path) -> None:
        for shell, status, said in (
            (ShellHere({"LONGHAUL_HOME": str(tmp_path), "LONGHAUL_PORT": "1"}), 3, "the API cannot be reached"),
            (ShellHere.of("http://127.0.0.1:1", new_secret()), 3, "the API cannot be reached"),
            (ShellHere.of("longhaul.example"), 2, "LONGHAUL_URL: "),
        ):
            ran = await shell.run("status")
            assert (ran.status, ran.out) == (status, ""), said
            assert ran.err.startswith(f"longhaul: {said}") and "LONGHAUL_URL" in ran.err


class TestOverHttp:
    async def test_keys_that_may_not_ask_are_status_4(self, api: Api, mine: Tenant) -> None:
        for key in (None, new_secret(), mine.key.secret):
            ran = await ShellHere.of(api.url, key).run("status")
            assert (ran.status, ran.out) == (4, "")
            assert ran.err.count("\n") == 1

    async def test_what_is_no_api_of_longhaul_is_status_3(self, remote: Shell) -> None:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 5\r\n\r\nnope\n")
            await writer.drain()
            writer.close()

        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            ran = await ShellHere.of(f"http://127.0.0.1:{port}").run("workers")
        assert (ran.status, ran.out) == (3, "")
        assert "is no API of Longhaul (status 404)" in ran.err

    async def test_a_url_may_end_like_that_of_a_client(self, db: Database, api: Api, operator_key: str) -> None:
        await alive(db, "w1")
        ran = await ShellHere.of(f"{api.url}/v1/", operator_key).run("workers", "--json")
        assert [each["name"] for each in ran.lines] == ["w1"]

    async def test_it_imports_neither_the_api_nor_the_store(self, remote: Shell) -> None:
        """Needs a process of its own: that of the tests has imported them."""
        code = "import sys; sys.argv = ['longhaul', 'workers', '--json']\ntry:\n from app.cli import main; main()\n"
        code += "finally:\n print(sorted({'fastapi', 'sqlalchemy', 'celery'} & set(sys.modules)))"
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", code), env={**os.environ, **remote.variables}, stdout=asyncio.subprocess.PIPE
        )
        out, _ = await process.communicate()
        assert out.decode().splitlines()[-1] == "[]"
