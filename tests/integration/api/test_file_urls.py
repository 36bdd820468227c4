"""Files and images of requests at URLs: read once, from the hosts that the operator allows alone."""

from __future__ import annotations

import asyncio
import base64
import gzip
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from app.files import downloads
from app.store.database import Database
from app.streaming.pubsub import PubSub
from tests.support import pdfs
from tests.support.api import MODEL, Api, serving, settings_for
from tests.support.attached import said, shown
from tests.support.batches import Carried, created, ended, line
from tests.support.little_web import Answer, Asked, LittleWeb, redirect
from tests.support.player import Player, ids, row_of
from tests.support.refusals import IMAGE
from tests.support.tenants import administration, as_caller, tenant
from tests.support.waiting import until

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
            "/said-to-be-latin.txt": of_type("text/plain; charset=ISO-8859-1", "Größe".encode()),
            "/download": of_type(
                "text/csv", b"a,b", Content_Disposition="attachment; filename*=UTF-8''gr%C3%B6%C3%9Fe.csv"
            ),
            "/path": of_type("text/csv", b"a,b", Content_Disposition='attachment; filename="../../etc/pass\x07wd"'),
            "/packed.txt": of_type("text/plain", gzip.compress(b"Packed"), Content_Encoding="gzip"),
            "/moved": redirect("/notes.md"),
            "/a%20b/": of_type("text/plain", b"Spaces"),
            "/a.png": of_type("image/png", PICTURE),
        }
        yield running


@pytest.fixture
async def api(services: Any, db: Database, tmp_path: Path, web: LittleWeb) -> AsyncIterator[Api]:
    hosts = f"files.example, 127.0.0.1:{web.port}, 127.0.0.1:{CLOSED_PORT}"
    settings = settings_for(services, tmp_path, max_body_bytes=MOST, file_url_hosts=hosts)
    async with serving(settings) as running:
        yield running


async def refused(api: Api, part: Json) -> tuple[str, str, str]:
    answer = await api.post(input=said(part), background=True)
    error = answer.json()["error"]
    assert answer.status_code == 400 and error["param"].startswith(FIELD), error
    assert error["param"] in error["message"]
    return error["param"].removeprefix(f"{FIELD}."), error["code"], error["message"]


class TestText:
    @pytest.mark.parametrize(
        ("path", "name", "text"),
        [
            ("/notes.md", "notes.md", "# Größe\n"),
            ("/a/paper.pdf?version=2#page=1", "paper.pdf", "Hello there"),
            ("/latin.txt", "latin.txt", "Größe"),
            ("/said-to-be-latin.txt", "said-to-be-latin.txt", "Größe"),
            ("/download", "größe.csv", "a,b"),
            ("/path", "passwd", "a,b"),
            ("/packed.txt", "packed.txt", "Packed"),
            ("/moved", "notes.md", "# Größe\n"),
            ("/a%20b/", "a b", "Spaces"),
        ],
    )
    async def test_the_model_reads_what_is_at_a_url(
        self, api: Api, db: Database, web: LittleWeb, path: str, name: str, text: str
    ) -> None:
        part = {"type": "input_file", "file_url": web.url + path}
        assert await shown(api, db, part) == f'<file name="{name}">\n{text}\n</file>\n'
        named = await shown(api, db, {**part, "filename": "mine.txt"})
        assert named == f'<file name="mine.txt">\n{text}\n</file>\n'

    async def test_a_url_is_read_once_and_never_again(
        self, api: Api, client: openai.AsyncOpenAI, db: Database, web: LittleWeb, player: Player
    ) -> None:
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

    async def test_a_repeated_request_downloads_nothing(self, api: Api, web: LittleWeb) -> None:
        body = {"model": MODEL, "input": said({"type": "input_file", "file_url": f"{web.url}/notes.md"})}
        answers = [
            await api.client.post(
                "/v1/responses", json={**body, "background": True}, headers={"Idempotency-Key": "key"}
            )
            for _ in range(2)
        ]
        assert answers[0].json()["id"] == answers[1].json()["id"] and len(web.asked) == 1

    async def test_a_conversation_keeps_what_was_read(self, client: openai.AsyncOpenAI, web: LittleWeb) -> None:
        items: Any = said({"type": "input_file", "file_url": f"{web.url}/notes.md"})
        conversation = await client.conversations.create(items=items)
        [item] = (await client.conversations.items.list(conversation.id)).data
        assert item.content[1].text == "# Größe\n"  # type: ignore[union-attr]


class TestImage:
    @pytest.fixture(autouse=True)
    def _sees(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("app.responses.create.acceptor.check_capabilities", lambda *_: None)

    async def test_the_model_sees_what_is_at_a_url_of_an_allowed_host(
        self, client: openai.AsyncOpenAI, db: Database, web: LittleWeb, player: Player
    ) -> None:
        url = f"{web.url}/a.png"
        items: Any = said({"type": "input_image", "image_url": url, "detail": "low"})
        content: Any = [{"type": "image_url", "image_url": {"url": url, "detail": "low"}}]
        async with player.at_work("A picture."):
            await client.responses.create(model=MODEL, input=items)
            await client.chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": content}], store=True
            )
        rows = [await row_of(db, response_id) for response_id in await ids(db)]
        parts = [row.request["input"][0]["content"][-1] for row in rows]
        assert parts == [{"type": "input_image", "image_url": IMAGE["image_url"], "detail": "low"}] * 2

    async def test_what_is_no_picture_is_refused(self, api: Api, client: openai.AsyncOpenAI, web: LittleWeb) -> None:
        part = {"type": "input_image", "image_url": f"{web.url}/notes.md"}
        assert (await refused(api, part))[:2] == ("image_url", "invalid_image")
        gone: Any = [{"type": "image_url", "image_url": {"url": f"{web.url}/none.png"}}]
        with pytest.raises(openai.BadRequestError) as caught:
            await client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": gone}])
        assert caught.value.param == "messages[0].content[0].image_url.url"
        assert "'messages[0].content[0].image_url.url': 127.0.0.1 answers 404." in caught.value.message

    async def test_a_url_of_another_host_is_left_to_the_model(self, api: Api, db: Database, web: LittleWeb) -> None:
        part = {"type": "input_image", "image_url": f"http://127.0.0.2:{web.port}/a.png", "detail": "auto"}
        row = await row_of(db, await api.background(input=said(part)))
        assert row.request["input"][0]["content"][1] == part and web.asked == []


class TestRefused:
    async def test_a_url_that_cannot_be_read_is_named(self, api: Api, web: LittleWeb) -> None:
        with LittleWeb("127.0.0.2") as other:
            web.answers |= {
                "/broken": Answer(b"Sorry", 500),
                "/around": redirect("/around"),
                "/away": redirect(f"{other.url}/secret"),
                "/local": redirect("file:///etc/passwd"),
                "/metadata": redirect("http://169.254.169.254/latest/meta-data/"),
                "/long": of_type("text/plain", b"a" * (MOST + 1)),
                "/bomb": of_type("text/plain", gzip.compress(bytes(50 * 2**20)), Content_Encoding="gzip"),
                "/bare-latin.txt": of_type("text/plain", "Größe".encode("latin-1")),
                "/locked.pdf": of_type("application/pdf", pdfs.encrypted()),
            }
            for url, code, words in (
                (f"{web.url}/none", "invalid_value", "127.0.0.1 answers 404."),
                (f"{web.url}/broken", "invalid_value", "answers 500"),
                (f"{web.url}/around", "invalid_value", "redirects more than 5 times"),
                (f"{web.url}/local", "invalid_value", "Only http:// and https://"),
                (f"{web.url}/away", "host_not_allowed", f"does not allow 127.0.0.2:{other.port}"),
                (f"{web.url}/metadata", "host_not_allowed", "does not allow 169.254.169.254"),
                (f"{other.url}/secret", "host_not_allowed", f"does not allow 127.0.0.2:{other.port}"),
                (f"http://localhost:{web.port}/notes.md", "host_not_allowed", "does not allow localhost"),
                ("http://127.0.0.1/notes.md", "host_not_allowed", "does not allow 127.0.0.1"),
                ("http://user:secret@files.example/a", "invalid_value", "user name or password"),
                ("http://", "invalid_value", "Only http:// and https://"),
                (f"{web.url}/{'a' * 9000}", "invalid_value", "longer than 8192"),
                (f"http://127.0.0.1:{CLOSED_PORT}/a", "invalid_value", "127.0.0.1 cannot be reached"),
                (f"{web.url}/long", "file_too_large", f"may have {MOST} bytes"),
                (f"{web.url}/bomb", "file_too_large", f"may have {MOST} bytes"),
                (f"{web.url}/a.png", "unsupported_file", "no text and no PDF"),
                (f"{web.url}/bare-latin.txt", "invalid_encoding", "UTF-8"),
                (f"{web.url}/locked.pdf", "file_encrypted", "encrypted"),
                ("ftp://files.example/a", "invalid_value", "expected an http(s) URL"),
            ):
                field, got, message = await refused(api, {"type": "input_file", "file_url": url})
                assert (field, got) == ("file_url", code) and words in message, (url, message)
                assert "secret" not in message
            assert other.asked == []

    async def test_a_name_that_points_at_an_address_of_the_network_inside_is_refused(
        self, services: Any, db: Database, tmp_path: Path, web: LittleWeb, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def rebound(host: str, port: int, **_: Any) -> list[Any]:
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

        hosts = f"*.example:{web.port}, files.internal:{web.port}"
        async with serving(settings_for(services, tmp_path, file_url_hosts=hosts)) as api:
            with monkeypatch.context() as patched:
                patched.setattr("app.files.downloads.socket.getaddrinfo", rebound)
                part = {"type": "input_file", "file_url": f"http://a.example:{web.port}/notes.md"}
                assert (await refused(api, part))[1] == "host_not_allowed"
                assert web.asked == []
                named = {**part, "file_url": f"http://files.internal:{web.port}/notes.md"}
                answer = await api.post(input=said(named), background=True)
                assert answer.status_code == 200, answer.text
        assert web.asked[-1].headers["Host"] == f"files.internal:{web.port}"

    async def test_without_allowed_hosts_no_file_is_read_by_url(
        self, services: Any, db: Database, tmp_path: Path
    ) -> None:
        async with serving(settings_for(services, tmp_path)) as api:
            part = {"type": "input_file", "file_url": "https://files.example/a.pdf"}
            field, code, message = await refused(api, part)
        assert (field, code) == ("file_url", "unsupported_parameter") and "operator allows no hosts" in message

    async def test_the_files_of_a_request_are_bounded_together(self, api: Api, web: LittleWeb) -> None:
        web.answers |= {f"/{n}": of_type("text/plain", b"a" * (MOST - 1000)) for n in range(2)}
        parts = [{"type": "input_file", "file_url": f"{web.url}/{n}"} for n in range(2)]
        answer = await api.post(input=[{"role": "user", "content": parts}], background=True)
        error = answer.json()["error"]
        assert (error["param"], error["code"]) == ("input[0].content[1].file_url", "files_too_large")

    async def test_a_line_of_a_batch_has_no_file_at_a_url(
        self, client: openai.AsyncOpenAI, carried: Carried, web: LittleWeb
    ) -> None:
        content = [{"type": "input_file", "file_url": f"{web.url}/notes.md"}]
        lines = [line("a"), line("b", input=[{"role": "user", "content": content}])]
        async with carried.on():
            batch = await ended(client, (await created(client, lines)).id)
        [error] = batch.errors.data
        assert (batch.status, error.line, error.code) == ("failed", 2, "unsupported_parameter")
        assert error.param == "body.input[0].content[0].file_url" and "in batches" in error.message
        assert web.asked == []


class TestSlow:
    """A server that never answers."""

    @pytest.fixture
    def go_on(self) -> Iterator[threading.Event]:
        event = threading.Event()
        yield event
        event.set()

    @pytest.fixture
    def hanging(self, web: LittleWeb, go_on: threading.Event) -> Json:
        def hang(_: Asked) -> Answer:
            go_on.wait(60)
            return of_type("text/plain", b"Late")

        web.answers["/slow"] = hang
        return {"type": "input_file", "file_url": f"{web.url}/slow"}

    async def test_it_is_given_up(self, api: Api, hanging: Json, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(downloads, "SECONDS", 0.2)
        _, code, message = await refused(api, hanging)
        assert code == "invalid_value" and "longer than 0.2 seconds" in message

    async def test_a_project_with_slow_urls_holds_up_no_other(
        self,
        services: Any,
        db: Database,
        pubsub: PubSub,
        tmp_path: Path,
        web: LittleWeb,
        go_on: threading.Event,
        hanging: Json,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(downloads, "PLACE_SECONDS", 0.2)
        settings = settings_for(services, tmp_path, auth="keys", file_url_hosts=f"127.0.0.1:{web.port}")
        admin = administration(db, pubsub)
        async with (
            serving(settings) as api,
            as_caller(api, await tenant(admin, "slow")) as slow,
            as_caller(api, await tenant(admin, "other")) as other,
        ):
            sent = [asyncio.create_task(slow.post(input=said(hanging), background=True)) for _ in range(30)]

            async def are_refused() -> bool:
                return sum(each.done() for each in sent) == 30 - (downloads.PLACES - 1)

            await until(are_refused, what="all are refused that find no place")
            for answer in (each.result() for each in sent if each.done()):
                assert (answer.status_code, answer.json()["error"]["code"]) == (429, "too_many_downloads")
            assert (await slow.post(background=True)).status_code == 200, "what downloads nothing"
            good = await other.post(
                input=said({"type": "input_file", "file_url": f"{web.url}/notes.md"}), background=True
            )
            assert good.status_code == 200, good.text
            go_on.set()
            assert sum(answer.status_code == 200 for answer in await asyncio.gather(*sent)) == downloads.PLACES - 1
