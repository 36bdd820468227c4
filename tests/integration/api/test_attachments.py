"""Files and images in requests, uploaded, sent with them, or at URLs: what becomes of them in a worker's row."""

from __future__ import annotations

import asyncio
import base64
import codecs
import gzip
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import pytest

from app.access.administration import Administration
from app.files import attachments, downloads, pdf_program
from app.killable.jobs import KillableProgram
from app.store.database import Database
from config.models import ModelCatalog
from tests.support import pdfs
from tests.support.api import MODEL, Api, served, serving, settings_for, uploaded
from tests.support.batches import Carried, created, ended, line, lines_of
from tests.support.little_web import Answer, Asked, LittleWeb, redirect
from tests.support.logs import row_of
from tests.support.player import Player, ids
from tests.support.refusals import IMAGE
from tests.support.tenants import as_caller, tenant
from tests.support.waiting import until
from workers.formats.chat.messages import messages_of

Client = openai.AsyncOpenAI
Json = dict[str, Any]
FIELD = "input[0].content[1]"
CLOSED_PORT = 9
MOST = 256 * 1024
PICTURE = base64.b64decode(IMAGE["image_url"].partition(",")[2])


def of_type(kind: str, body: bytes, **headers: str) -> Answer:
    return Answer(body, headers={"Content-Type": kind, **{name.replace("_", "-"): headers[name] for name in headers}})


@pytest.fixture
def web() -> Iterator[LittleWeb]:
    with LittleWeb() as running:
        running.answers = {
            "/notes.md": of_type("text/markdown", "# Größe\n".encode()),
            "/a/paper.pdf": of_type("application/pdf", pdfs.pdf("Hello there")),
            "/latin.txt": of_type("text/plain; charset=ISO-8859-1", "Größe".encode("latin-1")),
            "/path": of_type("text/csv", b"a,b", Content_Disposition='attachment; filename="../../etc/pass\x07wd"'),
            "/packed.txt": of_type("text/plain", gzip.compress(b"Packed"), Content_Encoding="gzip"),
            "/moved": redirect("/notes.md"),
            "/a.png": of_type("image/png", PICTURE),
        }
        yield running


@pytest.fixture
async def api(services: Any, db: Database, tmp_path: Path, web: LittleWeb) -> AsyncIterator[Api]:
    hosts = f"files.example, 127.0.0.1:{web.port}, 127.0.0.1:{CLOSED_PORT}"
    settings = settings_for(services, tmp_path, max_body_bytes=MOST, file_url_hosts=hosts)
    model = replace(served(), images=True, engine_args={"allowed_media_domains": ["127.0.0.2"]})
    async with serving(settings, ModelCatalog((model,))) as running:
        yield running


def in_base64(data: bytes, kind: str = "application/pdf") -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def said(part: Json) -> list[Json]:
    return [{"role": "user", "content": [{"type": "input_text", "text": "Read this."}, part]}]


async def shown(api: Api, db: Database, part: Json) -> str:
    """What the model is shown of a part."""
    row = await row_of(db, await api.background(input=said(part)))
    [message] = messages_of(row.request["input"])
    content = message["content"]
    assert isinstance(content, str)
    return content.removeprefix("Read this.")


async def refused(api: Api, part: Json) -> tuple[int, str, str, str]:
    """Status, field, code and message."""
    answer = await api.post(input=said(part), background=True)
    error = answer.json()["error"]
    assert error["param"].startswith(FIELD), error
    assert error["param"] in error["message"] or answer.status_code == 404, error
    return answer.status_code, error["param"].removeprefix(f"{FIELD}."), error["code"], error["message"]


async def test_the_model_reads_a_file_with_its_name(api: Api, client: Client, db: Database) -> None:
    for name, data, text in (
        ("notes.md", "# Größe\n".encode(), "# Größe\n"),
        ("data.csv", b"\xef\xbb\xbfa,b\r\n1,2", "a,b\r\n1,2"),
        ("old.txt", "Grüße".encode("utf-16"), "Grüße"),
        ("wide.txt", "Grüße \U0001f600".encode("utf-32"), "Grüße \U0001f600"),
        ("big_endian.txt", codecs.BOM_UTF32_BE + "Grüße".encode("utf-32-be"), "Grüße"),
        ("about.md", b"A PDF begins with\n\n%PDF-1.7\n", "A PDF begins with\n\n%PDF-1.7\n"),
        ("header.txt", b"%PDF-1.7 is what a PDF begins with.", "%PDF-1.7 is what a PDF begins with."),
        ("source.md", b"The smallest PDF:\n" + pdfs.pdf("Hi"), "The smallest PDF:\n" + pdfs.pdf("Hi").decode()),
        ("fetched", b"\xff\r\n" + pdfs.pdf("Hello"), "Hello"),
        ("paper", pdfs.pdf("Hello there", "Second page"), "Hello there\n\nSecond page"),
        ("empty.txt", b"", ""),
    ):
        expected = f'<file name="{name}">\n{text}\n</file>\n'
        made = await uploaded(client, data, name)
        assert await shown(api, db, {"type": "input_file", "file_id": made.id}) == expected
        folded = base64.encodebytes(data).decode()
        indented = folded.replace("\n", "\r\n\t ")
        for sent in (in_base64(data), folded, f"DATA:;Base64,{indented}") if name in ("data.csv", "paper") else ():
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
    for purpose in ("vision", "user_data"):
        made = await uploaded(client, PICTURE, "a.png", purpose=purpose)
        part = {"type": "input_image", "file_id": made.id, "detail": "high"}
        row = await row_of(db, await api.background(input=said(part)))
        assert row.request["input"][0]["content"][1] == {**part, "image_url": IMAGE["image_url"]}


async def test_what_cannot_be_read_is_refused_by_the_name_of_its_field(api: Api, client: Client) -> None:
    for name, data, code in (
        ("locked.pdf", pdfs.encrypted(), "file_encrypted"),
        ("scanned.pdf", pdfs.pdf(""), "file_without_text"),
        ("broken.pdf", b"%PDF-1.7\nno PDF at all", "invalid_file"),
        ("notes.txt", b"%PDF-1.7\n\nis what a PDF begins with", "invalid_file"),
        ("bomb.pdf", pdfs.bomb(300 * 2**20), "file_too_costly"),
        ("long.txt", b"a" * 300_000, "file_too_large"),
        ("cut.txt", codecs.BOM_UTF32_LE + b"a\0\0", "invalid_encoding"),
        ("latin.txt", "Größe".encode("latin-1"), "invalid_encoding"),
        ("program.exe", b"MZ\0\0", "unsupported_file"),
        ("word.docx", b"PK\3\4\0\0", "unsupported_file"),
    ):
        made = await uploaded(client, data, name)
        assert (await refused(api, {"type": "input_file", "file_id": made.id}))[:3] == (400, "file_id", code), name
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
        ({"type": "input_image", "file_id": text}, (400, "file_id", "invalid_image")),
        ({"type": "input_image", "file_id": batch}, (400, "file_id", "invalid_purpose")),
        ({"type": "input_image", "file_id": "file_none"}, (404, "file_id", "file_not_found")),
    ):
        assert (await refused(api, {"type": "input_file", **part}))[:3] == expected, part
    for file, status, field in (
        ({"file_id": "file_none"}, 404, "file_id"),
        ({"filename": "a.txt", "file_data": in_base64(b"\xf6")}, 400, "file_data"),
        ({"file_data": in_base64(b"x")}, 400, "filename"),
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
    assert (await refused(api, {"type": "input_file", "file_id": made.id}))[2] == "file_too_costly"
    good = await uploaded(client, pdfs.pdf("Hello"), "good.pdf")
    assert "Hello" in await shown(api, db, {"type": "input_file", "file_id": good.id})


async def test_the_files_of_a_request_are_bounded_together(api: Api, client: Client, web: LittleWeb) -> None:
    web.answers |= {f"/{n}": of_type("text/plain", b"a" * (MOST - 1000)) for n in range(2)}
    made = await uploaded(client, b"a" * 200_000, "a.txt")
    part = {"type": "input_file", "file_id": made.id}
    at_urls = [{"type": "input_file", "file_url": f"{web.url}/{n}"} for n in range(2)]
    for parts, param, code in (
        ([part] * 2, FIELD, "files_too_large"),
        (at_urls, f"{FIELD}.file_url", "files_too_large"),
        ([part] * 101, None, "too_many_files"),
    ):
        answer = await api.post(input=[{"role": "user", "content": parts}], background=True)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (400, code)
        assert param in (None, error["param"])


async def test_a_bomb_among_a_hundred_files_is_named_and_a_file_that_is_named_often_is_read_once(
    api: Api, client: Client, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, ask = 0, KillableProgram.ask

    async def counted(*sent: Any) -> Any:
        nonlocal asked
        asked += 1
        return await ask(*sent)

    monkeypatch.setattr(KillableProgram, "ask", counted)
    good, bomb = [await uploaded(client, data, "a.pdf") for data in (pdfs.pdf("Hello"), pdfs.bomb(300 * 2**20))]
    parts = [{"type": "input_file", "file_id": good.id} for _ in range(100)]
    row = await row_of(db, await api.background(input=[{"role": "user", "content": parts}]))
    assert (str(row.request["input"]).count("'text': 'Hello'"), asked) == (100, 1)
    parts[70] = {**parts[70], "file_id": bomb.id}
    answer = await api.post(input=[{"role": "user", "content": parts}], background=True)
    error = answer.json()["error"]
    assert (error["code"], error["param"], asked) == ("file_too_costly", "input[0].content[70].file_id", 3)


async def test_slow_pdfs_of_one_project_hold_up_no_other_and_are_given_up(
    services: Any, db: Database, tmp_path: Path, admin: Administration, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_reading, go_on, ask = asyncio.Event(), asyncio.Event(), KillableProgram.ask

    async def slow_ask(self: KillableProgram, job: AsyncIterator[bytes], *sent: Any) -> Any:
        pieces = [piece async for piece in job]
        if b"Slow" in b"".join(pieces):
            is_reading.set()
            await go_on.wait()

        async def again() -> AsyncIterator[bytes]:
            for piece in pieces:
                yield piece

        return await ask(self, again(), *sent)

    monkeypatch.setattr(KillableProgram, "ask", slow_ask)
    slow_pdfs = [pdfs.pdf(f"Slow {number}") for number in range(8)]
    files = [b"a" * (MOST * 5 // 8), *slow_pdfs]
    parts = [{"type": "input_file", "filename": "a", "file_data": in_base64(data)} for data in files]
    sent: Json = {"input": [{"role": "user", "content": parts}], "background": True}
    async with (
        serving(settings_for(services, tmp_path, auth="keys", max_body_bytes=MOST)) as api,
        as_caller(api, await tenant(admin, "slow")) as slow,
        as_caller(api, await tenant(admin, "other")) as other,
    ):
        waiting = asyncio.create_task(slow.post(**sent))
        await is_reading.wait()
        for data in (b"Hello!", b"b" * (MOST * 5 // 8), pdfs.pdf("Hello")):
            part = {"type": "input_file", "filename": "a", "file_data": in_base64(data)}
            assert (await other.post(input=said(part), background=True)).status_code == 200
        assert not waiting.done()
        go_on.set()
        assert (await waiting).status_code == 200
        go_on.clear()
        monkeypatch.setattr(attachments, "SECONDS", 0.2)
        answer = await slow.post(**sent)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "files_too_slow")
        part = {"type": "input_file", "filename": "a", "file_data": in_base64(pdfs.pdf("Hello"))}
        assert (await slow.post(input=said(part), background=True)).status_code == 200, "its place is free again"
        monkeypatch.setattr(attachments, "SECONDS", 60.0)
        is_reading.clear()
        waiting = asyncio.create_task(slow.post(**sent))
        await is_reading.wait()
        monkeypatch.setattr(attachments, "SECONDS", 0.2)
        behind = await slow.post(input=said(part), background=True)
        assert (behind.status_code, behind.json()["error"]["code"]) == (503, "too_many_pdfs")
        go_on.set()
        assert (await waiting).status_code == 200


# -- at URLs


async def test_the_model_reads_what_is_at_a_url(api: Api, db: Database, web: LittleWeb) -> None:
    for path, sent, name, text in (
        ("/notes.md", {}, "notes.md", "# Größe\n"),
        ("/notes.md", {"filename": "mine.txt"}, "mine.txt", "# Größe\n"),
        ("/a/paper.pdf?version=2#page=1", {}, "paper.pdf", "Hello there"),
        ("/latin.txt", {}, "latin.txt", "Größe"),
        ("/path", {}, "passwd", "a,b"),
        ("/packed.txt", {}, "packed.txt", "Packed"),
        ("/moved", {}, "notes.md", "# Größe\n"),
    ):
        part = {"type": "input_file", "file_url": web.url + path, **sent}
        assert await shown(api, db, part) == f'<file name="{name}">\n{text}\n</file>\n', path


async def test_a_url_is_read_once_and_never_again(api: Api, client: Client, web: LittleWeb, player: Player) -> None:
    part = {"type": "input_file", "file_url": f"{web.url}/notes.md"}
    items: Any = said(part)
    async with player.at_work("Read."):
        first = await client.responses.create(model=MODEL, input=[*items, *items])
        assert first.output_text == "Read."
        assert [asked.path for asked in web.asked] == ["/notes.md"], "once for both parts"
        assert "longhaul" in web.asked[0].headers["User-Agent"].lower()
        page = await client.responses.input_items.list(first.id)
        read = page.data[0].content[1].model_dump(exclude_none=True)  # type: ignore[union-attr]
        assert read == {**part, "filename": "notes.md", "text": "# Größe\n"}
        again: Any = said(read)
        await client.responses.create(model=MODEL, input=again, previous_response_id=first.id)
    assert len(web.asked) == 1
    body = {"model": MODEL, "input": items, "background": True}
    answers = [await api.client.post("/v1/responses", json=body, headers={"Idempotency-Key": "key"}) for _ in range(2)]
    assert answers[0].json()["id"] == answers[1].json()["id"]
    assert len(web.asked) == 2, "a repeated request downloads nothing"
    conversation = await client.conversations.create(items=items)
    [item] = (await client.conversations.items.list(conversation.id)).data
    assert item.content[1].text == "# Größe\n"  # type: ignore[union-attr]


async def test_the_model_sees_a_picture_at_a_url_of_an_allowed_host_and_of_another_the_url(
    api: Api, client: Client, db: Database, web: LittleWeb, player: Player
) -> None:
    part = {"type": "input_image", "image_url": f"http://127.0.0.2:{web.port}/a.png", "detail": "auto"}
    row = await row_of(db, await api.background(input=said(part)))
    assert row.request["input"][0]["content"][1] == part and web.asked == []
    url = f"{web.url}/a.png"
    items: Any = said({"type": "input_image", "image_url": url, "detail": "low"})
    content: Any = [{"type": "image_url", "image_url": {"url": url, "detail": "low"}}]
    async with player.at_work("A picture."):
        await client.responses.create(model=MODEL, input=items)
        await client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": content}], store=True)
    rows = [await row_of(db, response_id) for response_id in (await ids(db))[1:]]
    parts = [row.request["input"][0]["content"][-1] for row in rows]
    assert parts == [{"type": "input_image", "image_url": IMAGE["image_url"], "detail": "low"}] * 2
    no_picture = {"type": "input_image", "image_url": f"{web.url}/notes.md"}
    assert (await refused(api, no_picture))[:3] == (400, "image_url", "invalid_image")
    gone: Any = [{"type": "image_url", "image_url": {"url": f"{web.url}/none.png"}}]
    with pytest.raises(openai.BadRequestError) as caught:
        await client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": gone}])
    assert caught.value.param == "messages[0].content[0].image_url.url"
    assert "'messages[0].content[0].image_url.url': 127.0.0.1 answers 404." in caught.value.message


async def test_a_url_that_cannot_be_read_is_named(api: Api, web: LittleWeb) -> None:
    with LittleWeb("127.0.0.2") as other:
        web.answers |= {
            "/around": redirect("/around"),
            "/away": redirect(f"{other.url}/secret"),
            "/local": redirect("file:///etc/passwd"),
            "/metadata": redirect("http://169.254.169.254/latest/meta-data/"),
            "/long": of_type("text/plain", b"a" * (MOST + 1)),
        }
        for url, code, words in (
            (f"{web.url}/none", "invalid_value", "127.0.0.1 answers 404."),
            (f"{web.url}/around", "invalid_value", "redirects more than 5 times"),
            (f"{web.url}/local", "invalid_value", "Only http:// and https://"),
            (f"{web.url}/away", "host_not_allowed", f"does not allow 127.0.0.2:{other.port}"),
            (f"{web.url}/metadata", "host_not_allowed", "does not allow 169.254.169.254"),
            ("http://user:secret@files.example/a", "invalid_value", "user name or password"),
            (f"http://127.0.0.1:{CLOSED_PORT}/a", "invalid_value", "127.0.0.1 cannot be reached"),
            (f"{web.url}/long", "file_too_large", f"may have {MOST} bytes"),
            (f"{web.url}/a.png", "unsupported_file", "no text and no PDF"),
            ("ftp://files.example/a", "invalid_value", "expected an http(s) URL"),
        ):
            *got, message = await refused(api, {"type": "input_file", "file_url": url})
            assert got == [400, "file_url", code] and words in message, (url, message)
            assert "secret" not in message
        assert other.asked == []


async def test_without_allowed_hosts_and_in_batches_no_url_is_read(
    services: Any, db: Database, tmp_path: Path, client: Client, carried: Carried, web: LittleWeb
) -> None:
    async with serving(settings_for(services, tmp_path)) as other:
        part = {"type": "input_file", "file_url": "https://files.example/a.pdf"}
        *got, message = await refused(other, part)
    assert got == [400, "file_url", "unsupported_parameter"] and "operator allows no hosts" in message
    content = [{"type": "input_file", "file_url": f"{web.url}/notes.md"}]
    lines = [line("a", input=[{"role": "user", "content": content}])]
    async with carried.on():
        batch = await ended(client, (await created(client, lines)).id)
    [failed] = await lines_of(client, batch.error_file_id)
    assert (batch.status, failed["error"]["code"]) == ("completed", "unsupported_parameter")
    assert "input[0].content[0].file_url" in failed["error"]["message"] and "in batches" in failed["error"]["message"]
    assert web.asked == []


async def test_a_slow_server_is_given_up_and_a_project_with_slow_urls_holds_up_no_other(
    services: Any, db: Database, tmp_path: Path, admin: Administration, web: LittleWeb, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()

    def hang(_: Asked) -> Answer:
        go_on.wait(60)
        return of_type("text/plain", b"Late")

    web.answers["/slow"] = hang
    hanging = {"type": "input_file", "file_url": f"{web.url}/slow"}
    monkeypatch.setattr(downloads, "PLACE_SECONDS", 0.2)
    settings = settings_for(services, tmp_path, auth="keys", file_url_hosts=f"127.0.0.1:{web.port}")
    async with (
        serving(settings) as api,
        as_caller(api, await tenant(admin, "slow")) as slow,
        as_caller(api, await tenant(admin, "other")) as other,
    ):
        try:
            sent = [asyncio.create_task(slow.post(input=said(hanging), background=True)) for _ in range(30)]

            async def are_refused() -> bool:
                return sum(each.done() for each in sent) == 30 - (downloads.PLACES - 1)

            await until(are_refused, what="all are refused that find no place")
            for answer in (each.result() for each in sent if each.done()):
                assert (answer.status_code, answer.json()["error"]["code"]) == (429, "too_many_downloads")
            assert (await slow.post(background=True)).status_code == 200, "what downloads nothing"
            notes = {"type": "input_file", "file_url": f"{web.url}/notes.md"}
            good = await other.post(input=said(notes), background=True)
            assert good.status_code == 200, good.text
            go_on.set()
            assert sum(answer.status_code == 200 for answer in await asyncio.gather(*sent)) == downloads.PLACES - 1
            go_on.clear()
            monkeypatch.setattr(downloads, "SECONDS", 0.2)
            assert (await refused(slow, hanging))[:3] == (400, "file_url", "invalid_value")
        finally:
            go_on.set()
