"""Files in requests (`input_file`, `input_image.file_id`), and what becomes of them in the row that a worker reads."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import pytest

from app.files import pdf_program
from app.store.database import Database
from config.models import ModelCatalog
from tests.integration.api.test_files import uploaded
from tests.support import pdfs
from tests.support.api import MODEL, Api, served, serving, settings_for
from tests.support.attached import said, shown
from tests.support.player import Player, ids, row_of
from tests.support.refusals import IMAGE
from workers.formats.chat.messages import messages_of

Client = openai.AsyncOpenAI

Json = dict[str, Any]
FIELD = "input[0].content[1]"


@pytest.fixture
async def api(services: Any, db: Database, tmp_path: Path) -> AsyncIterator[Api]:
    catalog = ModelCatalog((replace(served(), images=True),))
    async with serving(settings_for(services, tmp_path, max_body_bytes=256 * 1024), catalog) as running:
        yield running


def in_base64(data: bytes, kind: str = "application/pdf") -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


async def refused(api: Api, part: Json) -> tuple[int, str, str]:
    answer = await api.post(input=said(part), background=True)
    error = answer.json()["error"]
    assert error["param"].startswith(FIELD), error
    return answer.status_code, error["param"].removeprefix(f"{FIELD}."), error["code"]


async def test_the_model_reads_a_file_with_its_name(api: Api, client: Client, db: Database) -> None:
    for name, data, text in (
        ("notes.md", "# Größe\n".encode(), "# Größe\n"),
        ("data.csv", b"\xef\xbb\xbfa,b\r\n1,2", "a,b\r\n1,2"),
        ("old.txt", "Grüße".encode("utf-16"), "Grüße"),
        ("paper", pdfs.pdf("Hello there", "Second page"), "Hello there\n\nSecond page"),
        ("empty.txt", b"", ""),
    ):
        expected = f'<file name="{name}">\n{text}\n</file>\n'
        made = await uploaded(client, data, name)
        assert await shown(api, db, {"type": "input_file", "file_id": made.id}) == expected
        for sent in (in_base64(data), base64.b64encode(data).decode()) if name == "data.csv" else ():
            assert await shown(api, db, {"type": "input_file", "filename": name, "file_data": sent}) == expected


async def test_what_was_read_stays_when_the_file_is_gone(api: Api, client: Client, db: Database) -> None:
    made = await uploaded(client, b"Hello!", "a.txt")
    part = {"type": "input_file", "file_id": made.id}
    sent: Any = said(part)
    response = await api.background(input=sent)
    conversation = await client.conversations.create(items=sent)
    await client.files.delete(made.id)
    [item] = (await client.responses.input_items.list(response)).data
    read = item.content[1].model_dump(exclude_none=True)  # type: ignore[union-attr]
    assert read == {**part, "filename": "a.txt", "text": "Hello!"}
    again = await api.background(input=said(read))
    assert (await row_of(db, again)).request["input"][0]["content"][1] == read
    [kept] = (await client.conversations.items.list(conversation.id)).data
    assert kept.content[1].text == "Hello!"  # type: ignore[union-attr]
    with pytest.raises(openai.NotFoundError) as caught:
        await client.conversations.create(items=sent)
    assert caught.value.param == "items[0].content[1].file_id"


async def test_the_official_client_sends_files_and_pictures_to_both_endpoints(
    api: Api, client: Client, db: Database, player: Player
) -> None:
    made = await uploaded(client, b"# Notes", "notes.md")
    data = {"file_data": in_base64(b"# Notes", "text/markdown"), "filename": "notes.md"}
    async with player.at_work("Read."):
        for file in ({"file_id": made.id}, data):
            items: Any = said({"type": "input_file", **file})
            assert (await client.responses.create(model=MODEL, input=items)).output_text == "Read."
            content: Any = [{"type": "text", "text": "Read this."}, {"type": "file", "file": file}]
            completion = await client.chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": content}], store=True
            )
            assert completion.choices[0].message.content == "Read."
    rows = [await row_of(db, response_id) for response_id in await ids(db)]
    seen = [messages_of(row.request["input"])[0]["content"] for row in rows]
    assert seen == ['Read this.<file name="notes.md">\n# Notes\n</file>\n'] * 4
    picture = base64.b64decode(IMAGE["image_url"].partition(",")[2])
    for purpose in ("vision", "user_data"):
        made = await uploaded(client, picture, "a.png", purpose=purpose)
        part = {"type": "input_image", "file_id": made.id, "detail": "high"}
        row = await row_of(db, await api.background(input=said(part)))
        assert row.request["input"][0]["content"][1] == {**part, "image_url": IMAGE["image_url"]}


async def test_what_cannot_be_read_is_refused_by_the_name_of_its_field(api: Api, client: Client) -> None:
    for name, data, code in (
        ("locked.pdf", pdfs.encrypted(), "file_encrypted"),
        ("scanned.pdf", pdfs.pdf(""), "file_without_text"),
        ("broken.pdf", b"%PDF-1.7\nno PDF at all", "invalid_file"),
        ("bomb.pdf", pdfs.bomb(300 * 2**20), "file_too_costly"),
        ("long.txt", b"a" * 300_000, "file_too_large"),
        ("latin.txt", "Größe".encode("latin-1"), "invalid_encoding"),
        ("program.exe", b"MZ\0\0", "unsupported_file"),
        ("word.docx", b"PK\3\4\0\0", "unsupported_file"),
    ):
        made = await uploaded(client, data, name)
        assert await refused(api, {"type": "input_file", "file_id": made.id}) == (400, "file_id", code), name
    text = (await uploaded(client, b"no picture", purpose="vision")).id
    batch = (await uploaded(client, b"{}", purpose="batch")).id
    for part, expected in (
        ({}, (400, "file_id", "missing_required_parameter")),
        ({"file_id": "file_none"}, (404, "file_id", "file_not_found")),
        ({"file_id": "a" * 200}, (400, "file_id", "string_above_max_length")),
        ({"file_id": batch}, (400, "file_id", "invalid_purpose")),
        ({"file_data": "x"}, (400, "filename", "missing_required_parameter")),
        ({"file_data": "***", "filename": "a"}, (400, "file_data", "invalid_base64")),
        ({"file_data": "data:text/plain,hello", "filename": "a"}, (400, "file_data", "invalid_value")),
        ({"file_url": "https://a.example/a.pdf"}, (400, "file_url", "unsupported_parameter")),
        ({"file_id": batch, "detail": "high"}, (400, "detail", "unsupported_parameter")),
        ({"type": "input_image", "file_id": text}, (400, "file_id", "invalid_image")),
        ({"type": "input_image", "file_id": batch}, (400, "file_id", "invalid_purpose")),
        ({"type": "input_image", "file_id": "file_none"}, (404, "file_id", "file_not_found")),
    ):
        assert await refused(api, {"type": "input_file", **part}) == expected, part
    for file, status, field in (
        ({"file_id": "file_none"}, 404, "file_id"),
        ({"filename": "a.txt", "file_data": in_base64(b"\xf6")}, 400, "file_data"),
        ({"file_data": in_base64(b"x")}, 400, "filename"),
        ({}, 400, "file_id"),
    ):
        body = {"model": MODEL, "messages": [{"role": "user", "content": [{"type": "file", "file": file}]}]}
        answer = await api.client.post("/v1/chat/completions", json=body)
        param = f"messages[0].content[0].file.{field}"
        assert (answer.status_code, answer.json()["error"]["param"]) == (status, param), file


async def test_a_pdf_that_takes_too_long_ends_alone(
    api: Api, client: Client, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = "import app.files.pdf_program as p; p.CPU_SECONDS = 1; p.main()"
    code = f"import sys; sys.path.append({str(Path(pdf_program.__file__).parents[2])!r}); {quick}"
    monkeypatch.setattr("app.files.documents._CODE", code)
    made = await uploaded(client, pdfs.endless(200_000), "slow.pdf")
    assert await refused(api, {"type": "input_file", "file_id": made.id}) == (400, "file_id", "file_too_costly")
    good = await uploaded(client, pdfs.pdf("Hello"), "good.pdf")
    assert "Hello" in await shown(api, db, {"type": "input_file", "file_id": good.id})


async def test_the_files_of_a_request_are_bounded_together(api: Api, client: Client) -> None:
    made = await uploaded(client, b"a" * 200_000, "a.txt")
    part = {"type": "input_file", "file_id": made.id}
    for count, param, code in ((2, FIELD, "files_too_large"), (101, None, "too_many_files")):
        answer = await api.post(input=[{"role": "user", "content": [part] * count}], background=True)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (400, code)
        assert param in (None, error["param"])
