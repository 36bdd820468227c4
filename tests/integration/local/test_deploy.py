"""What deploy/ ships, applied: its environment and its proxies in front of two APIs, its URL of Postgres, its units."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from urllib.parse import parse_qs, quote, urlsplit

import httpx
import pytest
from websockets.sync.client import connect

from app.access.secret import new_secret
from app.local.ports import free_port
from app.store.roles.rights import API, ROLES, WORKER
from config.settings import CHECKOUT
from tests.faults.proxy import HOST, Proxy
from tests.support.celery_processes import ForkedProcess, Process
from tests.support.certificates import Authority
from tests.support.scripted import models_of
from tests.support.services import LoopThread, Services, open_folder
from tests.support.upping import longhaul
from tests.support.waiting import PATIENCE_SECONDS, until_sync

DEPLOY = CHECKOUT / "deploy"
NAME = "longhaul.example"
APIS = ("127.0.0.11", "127.0.0.12")
"""In place of 10.0.0.11 and 10.0.0.12. The proxies ask them from 127.0.0.1, which longhaul.env names."""
STRANGER = "127.0.0.99"
FORGED = "198.51.100.7"
SPEED = "[models.engine_args]\ntokens_per_second = 20\n"
REQUEST = {"model": "scripted", "input": "/count 20"}
PROXIES = ("haproxy", "nginx")
PATH = f"{os.environ.get('PATH', '')}:/usr/sbin"


def shipped_environment() -> dict[str, str]:
    text = (DEPLOY / "systemd" / "longhaul.env").read_text(encoding="utf-8").replace("10.0.0.", "127.0.0.")
    return dict(line.split("=", 1) for line in text.splitlines() if line and not line.startswith("#"))


def program(name: str) -> str:
    found = shutil.which(name, path=PATH)
    if found is None:
        pytest.skip(f"there is no {name} here (Debian: apt install {name})")
    return found


class Deployment:
    """Two APIs and a worker, with what longhaul.env sets. `admin` is the first admin key, `key` that of a project."""

    def __init__(self, stack: ExitStack, services: Services) -> None:
        self.folder = stack.enter_context(open_folder())
        self.admin, self.port = new_secret(), free_port()
        self._stack = stack
        (self.folder / "models.toml").write_text(models_of("scripted") + SPEED)
        self._environment = {
            **shipped_environment(),
            "DATABASE_URL": services.url_of(API),
            "REDIS_URL": services.redis_url,
            "LONGHAUL_HOME": str(self.folder / "home"),
            "LONGHAUL_MODELS": str(self.folder / "models.toml"),
            "LONGHAUL_PORT": str(self.port),
            "LONGHAUL_SHUTDOWN_GRACE_SECONDS": "0",
        }
        migrate = self._start("migrate", DATABASE_URL=services.owner_url, LONGHAUL_ADMIN_KEY=self.admin)
        assert migrate.wait() == 0, migrate.text
        self.apis = {address: self.start_api(address) for address in APIS}
        self._start("worker", DATABASE_URL=services.url_of(WORKER))
        for address in APIS:
            self.wait_for(address)
        self.key = self._project_key()

    def start_api(self, address: str) -> ForkedProcess:
        return self._start("api", LONGHAUL_HOST=address)

    def _start(self, command: str, **more: str) -> ForkedProcess:
        log = self.folder / f"{command}-{len(list(self.folder.iterdir()))}.log"
        process = ForkedProcess([command], {**self._environment, **more}, log)
        self._stack.callback(process.kill)
        return process

    def wait_for(self, address: str) -> None:
        def is_ready() -> bool:
            try:
                return httpx.get(f"http://{address}:{self.port}/health/ready", timeout=5).is_success
            except httpx.TransportError:
                return False

        until_sync(is_ready, what=lambda: f"{address} is ready: {self._logs()}", pause=0.1)

    def _logs(self) -> str:
        return "\n".join(f"-- {path.name}\n{path.read_text()[-2000:]}" for path in self.folder.glob("*.log"))

    def _project_key(self) -> str:
        with self.direct() as admin:
            project = admin.post("/v1/organization/projects", json={"name": "team"}).json()["id"]
            path = f"/v1/organization/projects/{project}/service_accounts"
            return str(admin.post(path, json={"name": "jobs"}).json()["api_key"]["value"])

    def direct(self, source: str | None = None) -> httpx.Client:
        """Asks the first API itself as the admin, from the address `source`."""
        return httpx.Client(
            base_url=f"http://{APIS[0]}:{self.port}",
            headers={"Authorization": f"Bearer {self.admin}"},
            transport=httpx.HTTPTransport(local_address=source),
            timeout=PATIENCE_SECONDS,
        )

    def last_address(self) -> str:
        """From where the last project was made, by the audit log."""
        with self.direct() as admin:
            logs = admin.get("/v1/organization/audit_logs", params={"event_types[]": "project.created"}).json()
            return str(logs["data"][0]["ip_address"])


@pytest.fixture(scope="module")
def deployment(services: Services) -> Iterator[Deployment]:
    with ExitStack() as stack:
        yield Deployment(stack, services)


class Front:
    """A proxy with the shipped file in front of both APIs; only its addresses and paths are others."""

    def __init__(self, name: str, deployment: Deployment, folder: Path) -> None:
        self.port = free_port()
        self.seen = ""
        self._context = ssl.create_default_context()
        authority = Authority(folder)
        self._context.load_verify_locations(authority.file)
        certificate, key = authority.certify()
        self.command = getattr(self, f"_{name}")(folder, certificate, key, deployment.port)

    def _shipped(self, name: str, api_port: int) -> str:
        text = (DEPLOY / name).read_text(encoding="utf-8").replace("10.0.0.", "127.0.0.")
        return text.replace(":8000", f":{api_port}")

    def _haproxy(self, folder: Path, certificate: Path, key: Path, api_port: int) -> list[str]:
        (folder / "longhaul.pem").write_bytes(certificate.read_bytes() + key.read_bytes())
        text = self._shipped("haproxy.cfg", api_port).replace("/etc/haproxy", str(folder))
        text = text.replace("/run/haproxy", str(folder)).replace("bind :443", f"bind {HOST}:{self.port}")
        (folder / "haproxy.cfg").write_text(text)
        return [program("haproxy"), "-W", "-db", "-f", str(folder / "haproxy.cfg")]

    def _nginx(self, folder: Path, certificate: Path, key: Path, api_port: int) -> list[str]:
        shutil.copy(certificate, folder / "longhaul.pem")
        shutil.copy(key, folder / "longhaul.key")
        places = [f"{kind}_temp_path {folder}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")]
        text = self._shipped("nginx.conf", api_port).replace("/etc/nginx", str(folder))
        text = text.replace("listen 443", f"listen {HOST}:{self.port}")
        text = text.replace("http {\n", "http {\n" + "\n".join(["access_log off;", *places]) + "\n", 1)
        (folder / "nginx.conf").write_text(text)
        globals_ = f"daemon off; pid {folder}/nginx.pid; error_log stderr;"
        return [program("nginx"), "-p", str(folder), "-c", str(folder / "nginx.conf"), "-g", globals_]

    @contextmanager
    def running(self, log: Path) -> Iterator[None]:
        process = Process(self.command, {}, log)
        try:
            with self.client() as client:
                until_sync(
                    partial(self._is_up, client), what=lambda: f"the proxy answers: {self.seen} {process.text[-2000:]}"
                )
                yield
        finally:
            process.kill()

    def _is_up(self, client: httpx.Client) -> bool:
        try:
            answer = client.get("/health/ready")
        except httpx.TransportError as error:
            self.seen = repr(error)
            return False
        self.seen = answer.text
        return answer.is_success

    def client(self, key: str | None = None) -> httpx.Client:
        return httpx.Client(
            base_url=f"https://{HOST}:{self.port}",
            headers={"Host": NAME, **({"Authorization": f"Bearer {key}"} if key else {})},
            verify=self._context,
            timeout=PATIENCE_SECONDS,
        )

    def websocket(self, key: str) -> connect:
        headers = {"Authorization": f"Bearer {key}"}
        return connect(f"wss://{HOST}:{self.port}/v1/responses", ssl=self._context, additional_headers=headers)


@contextmanager
def in_front(name: str, deployment: Deployment) -> Iterator[Front]:
    with open_folder() as folder:
        made = Front(name, deployment, folder)
        with made.running(folder / "proxy.log"):
            yield made


@pytest.fixture(scope="module")
def fronts(deployment: Deployment) -> Iterator[dict[str, Front]]:
    with ExitStack() as stack:
        yield {name: stack.enter_context(in_front(name, deployment)) for name in PROXIES}


@pytest.fixture(params=PROXIES)
def front(request: pytest.FixtureRequest, fronts: dict[str, Front]) -> Front:
    return fronts[request.param]


def test_events_pass_a_shipped_proxy_while_the_response_runs(deployment: Deployment, front: Front) -> None:
    request = {**REQUEST, "stream": True}
    with front.client(deployment.key) as client, client.stream("POST", "/v1/responses", json=request) as stream:
        lines = stream.iter_lines()
        created = json.loads(next(line for line in lines if line.startswith("data: ")).removeprefix("data: "))
        next(line for line in lines if "output_text.delta" in line)
        status = client.get(f"/v1/responses/{created['response']['id']}").json()["status"]
        assert status == "in_progress"
        assert any("response.completed" in line for line in lines)


def test_a_websocket_passes_a_shipped_proxy(deployment: Deployment, front: Front) -> None:
    with front.websocket(deployment.key) as socket:
        socket.send(json.dumps({"type": "response.create", **REQUEST}))
        while (event := json.loads(socket.recv(PATIENCE_SECONDS)))["type"] != "response.completed":
            assert event["type"] != "error", event


def test_requests_pass_each_shipped_proxy_while_one_api_is_killed(
    deployment: Deployment, fronts: dict[str, Front]
) -> None:
    killed = APIS[1]
    clients = [front.client(deployment.key) for front in fronts.values()]
    deployment.apis[killed].kill()
    try:
        request = {**REQUEST, "background": True}
        statuses = [client.post("/v1/responses", json=request).status_code for client in clients for _ in range(12)]
    finally:
        deployment.apis[killed] = deployment.start_api(killed)
        deployment.wait_for(killed)
    for client in clients:
        client.close()
    assert statuses == [200] * 24


def test_the_audit_log_has_the_clients_address_and_not_what_it_says(deployment: Deployment, front: Front) -> None:
    with front.client(deployment.admin) as client:
        made = client.post("/v1/organization/projects", json={"name": "x"}, headers={"X-Forwarded-For": FORGED})
        assert made.is_success, made.text
    assert deployment.last_address() == HOST


def test_an_api_believes_no_forwarded_address_of_a_stranger(deployment: Deployment) -> None:
    with deployment.direct(STRANGER) as client:
        made = client.post("/v1/organization/projects", json={"name": "x"}, headers={"X-Forwarded-For": FORGED})
        assert made.is_success, made.text
    assert deployment.last_address() == STRANGER


def shipped_urls() -> dict[str, str]:
    """Postgres' URLs as both installations say them, by page and parameters: those of all roles have the same."""
    found = {}
    for file in ("systemd.md", "kubernetes.md"):
        text = (DEPLOY.parent / "docs" / file).read_text(encoding="utf-8")
        urls = re.findall(r"'(postgresql://(\w+):\S+)'", text)
        assert {role for _, role in urls} == {"longhaul_owner", *ROLES}
        found |= {f"{file} {urlsplit(url).query}": url for url, _ in urls}
    return found


@contextmanager
def with_tls(url: str, authority: Authority) -> Iterator[int]:
    """The port of the tests' Postgres behind a certificate. The client begins with TLS: sslnegotiation=direct."""
    folder = parse_qs(urlsplit(url).query)["host"][0]
    tls = authority.context()
    tls.set_alpn_protocols(["postgresql"])
    thread, proxy = LoopThread(), Proxy(partial(asyncio.open_unix_connection, f"{folder}/.s.PGSQL.5432"), tls=tls)
    thread.run(proxy.start())
    try:
        yield proxy.port
    finally:
        thread.run(proxy.close())
        thread.close()


def test_the_shipped_urls_connect_to_a_postgres_whose_authority_the_system_trusts(
    services: Services, migrated: str, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    mine = urlsplit(migrated)
    with with_tls(migrated, authority) as port:
        for where, shipped in shipped_urls().items():
            parameters = urlsplit(shipped).query
            url = f"postgresql://{mine.username}:{quote(mine.password or '')}@{HOST}:{port}{mine.path}?{parameters}"
            env = {"DATABASE_URL": f"{url}&sslnegotiation=direct", "REDIS_URL": services.redis_url}
            public = longhaul("migrate", env={**env, "SSL_CERT_FILE": str(authority.file)})
            assert public.returncode == 0, (where, public.stderr)
        private = longhaul("migrate", env=env)
        assert private.returncode != 0
        assert private.stderr.startswith("longhaul: DATABASE_URL: ")


def test_the_units_are_valid(tmp_path: Path) -> None:
    """Only the program is another: it is not installed here."""
    executable = tmp_path / "longhaul"
    executable.write_text("#!/bin/sh\n")
    executable.chmod(0o755)
    for path in (DEPLOY / "systemd").glob("*.*"):
        text = path.read_text(encoding="utf-8").replace("/opt/longhaul/.venv/bin/longhaul", str(executable))
        (tmp_path / path.name).write_text(text)
    units = [*sorted(map(str, tmp_path.glob("longhaul*.service"))), str(tmp_path / "longhaul.target")]
    found = subprocess.run([program("systemd-analyze"), "verify", *units], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stderr) == (0, "")
