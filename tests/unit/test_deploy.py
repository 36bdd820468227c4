"""What deploy/ has: it parses, is valid, and says what the product does."""

from __future__ import annotations

import configparser
import re
import tomllib
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from typer import Context
from typer.main import get_command

from app.api.holdings import HEAD_SECONDS
from app.cli import cli
from app.local.readiness import SECONDS as PROBE_SECONDS
from config.models import load_models
from config.settings import ConfigError, Settings, variable_of
from workers.celery_host.program import EXIT_SECONDS, STOP_SECONDS

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
DOCS = DEPLOY.parent / "docs"
PAGES = [DOCS / f"{name}.md" for name in ("deployment", "kubernetes", "security", "systemd", "tenants")]
KUBERNETES_VERSION = "1.32"
FILES = sorted(path for path in DEPLOY.rglob("*") if path.is_file() and path.suffix != ".pyc")
_COMMAND: Any = get_command(cli)
VARIABLES = {variable_of(field) for field in Settings.model_fields}
DEFAULTS = Settings.model_construct()
WORKER_STOP_SECONDS = DEFAULTS.shutdown_grace_seconds + STOP_SECONDS + EXIT_SECONDS
API_STOP_SECONDS = DEFAULTS.api_grace_seconds + 10
"""What docs/operations.md asks for."""
COMMANDS = set(_COMMAND.list_commands(Context(_COMMAND)))
USER = 10001


def _text(name: str) -> str:
    return (DEPLOY / name).read_text(encoding="utf-8")


def _documents() -> Iterator[tuple[str, dict[str, Any]]]:
    for path in sorted((DEPLOY / "kubernetes").glob("*.yaml")):
        for number, document in enumerate(yaml.safe_load_all(path.read_text(encoding="utf-8"))):
            yield f"{path.name}:{number}", document


DOCUMENTS = dict(_documents())
PODS = {name: found for name, found in DOCUMENTS.items() if found["kind"] in ("Deployment", "Job")}
COMPOSE: dict[str, Any] = yaml.safe_load(_text("compose.yaml"))


def _pod(name: str) -> dict[str, Any]:
    pod: dict[str, Any] = PODS[name]["spec"]["template"]["spec"]
    return pod


def _container(name: str) -> dict[str, Any]:
    (container,) = _pod(name)["containers"]
    found: dict[str, Any] = container
    return found


class Unit(configparser.RawConfigParser):
    """A unit of systemd. A key that stands several times has all its values, one a line."""

    def __init__(self, path: Path) -> None:
        super().__init__(strict=False, interpolation=None, delimiters=("=",), comment_prefixes=("#",))
        self.optionxform = str  # type: ignore[assignment,method-assign]
        self.lines: dict[str, list[str]] = {}
        for key, value in re.findall(r"^(\w+)=(.*)$", path.read_text(encoding="utf-8"), re.MULTILINE):
            self.lines.setdefault(key, []).append(value)
        self.read(path)

    def one(self, key: str) -> str:
        (value,) = self.lines[key]
        return value


UNITS = {path.stem: Unit(path) for path in sorted((DEPLOY / "systemd").glob("*.service"))}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(DEPLOY)))
def test_every_variable_that_a_file_names_is_a_setting(path: Path) -> None:
    named = set(re.findall(r"\b(?:LONGHAUL_[A-Z_]+|DATABASE_URL|REDIS_URL)\b", path.read_text(encoding="utf-8")))
    assert named - VARIABLES == set()


@pytest.mark.parametrize("path", [*FILES, *PAGES], ids=lambda path: path.name)
def test_every_command_that_a_file_names_is_there(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    named = re.findall(r"(?:bin/|-- |exec api |`|^|[A-Z]=\S+ )longhaul ([a-z][a-z-]*)", text, re.MULTILINE)
    listed = re.findall(r"\[\"?longhaul\"?, \"?([a-z-]+)", text)
    assert {*named, *listed} - COMMANDS == set()


def test_the_models_file_is_valid_and_its_models_are_those_that_are_deployed() -> None:
    try:
        names = [model.name for model in load_models(DEPLOY / "models.toml").models]
    except ConfigError as error:
        pytest.fail(str(error))
    assert {f"worker-{name}.yaml:0" for name in names} == {name for name in PODS if name.startswith("worker-")}
    assert {f"worker-{name}" for name in names} == {name for name in COMPOSE["services"] if name.startswith("worker-")}
    assert f"LONGHAUL_MODEL={names[0]}" in (DOCS / "systemd.md").read_text(encoding="utf-8")


class TestContainerfile:
    def test_both_images_run_as_a_user_without_rights_and_ask_the_product_for_their_health(self) -> None:
        text = _text("Containerfile")
        for target, check in (("api", '["longhaul", "ready", "--api"]'), ("worker", '["longhaul", "ready"]')):
            stage = re.split(r"^FROM ", text.partition(f"FROM base AS {target}\n")[2], flags=re.MULTILINE)[0]
            assert f"USER {USER}:{USER}" in stage
            assert 'ENTRYPOINT ["longhaul"]' in stage
            assert f'CMD ["{target}"]' in stage
            assert f"CMD {check}" in stage
            (timeout,) = re.findall(r"--timeout=(\d+)s", stage)
            assert float(timeout) > PROBE_SECONDS

    def test_it_installs_what_the_makefile_pins_and_all_code(self) -> None:
        text, makefile = _text("Containerfile"), (DEPLOY.parent / "Makefile").read_text(encoding="utf-8")
        for target in re.findall(r"RUN make (?:ENGINE=\S+ )?(.+)", text):
            for name in target.replace("$ENGINE", "gpu").split():
                rule = name.replace(".venv", "$(VENV)")
                assert f"{rule}:" in makefile or f"{rule.replace('-gpu', '-$(ENGINE)')}:" in makefile
        project = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text(encoding="utf-8"))
        packages = set(project["tool"]["hatch"]["build"]["targets"]["wheel"]["only-include"])
        assert set(re.findall(r"^COPY ([\w/]+) \1$", text, re.MULTILINE)) == packages | {"config/requirements"}
        assert not re.findall(r"^FROM \S+\.\S+/", text, re.MULTILINE), "no registry's host"
        assert f"longhaul:{version('longhaul-server')} " in text


class TestCompose:
    def test_every_process_is_there_and_listens_on_this_machine_alone(self) -> None:
        services = COMPOSE["services"]
        run = {
            command for service in services.values() if (command := service.get("command", ["worker"])[0]) in COMMANDS
        }
        assert run == {"api", "worker", "maintenance", "flower", "migrate"}
        ports = [port for service in services.values() for port in service.get("ports", ())]
        assert sorted(ports) == [f"127.0.0.1:{port}:{port}" for port in (DEFAULTS.flower_port, DEFAULTS.port)]

    def test_every_process_has_a_read_only_root_and_secrets_as_files(self) -> None:
        ours = {name: found for name, found in COMPOSE["services"].items() if found["image"].startswith("longhaul")}
        assert len(ours) == 6
        for name, service in ours.items():
            assert service["read_only"] is True, name
            assert service["user"] == f"{USER}:{USER}", name
            assert service["cap_drop"] == ["ALL"], name
            assert service["environment"]["LONGHAUL_SECRETS"] == "/run/secrets", name
            assert dict(map(_file_and_secret, service["secrets"])) == _secrets_of(
                service.get("command", ["worker"])[0]
            ), name
            assert not VARIABLES & {"DATABASE_URL", "REDIS_URL"} & set(service["environment"]), name
            assert service["image"].endswith(f":{version('longhaul-server')}"), name
        assert {Path(secret["file"]).name: name for name, secret in COMPOSE["secrets"].items()} == {
            name: name for name in COMPOSE["secrets"]
        }

    def test_postgres_makes_the_roles_of_the_page(self) -> None:
        page = (DOCS / "operations.md").read_text(encoding="utf-8")
        wanted = page.partition("```sql\n")[2].partition("```")[0]
        wanted = wanted.replace("CREATE DATABASE longhaul;\n", "").replace("\\connect longhaul\n", "")
        found = "".join(line for line in _text("postgres-roles.sql").splitlines(True) if line[0] not in "-\\")
        for name in ("owner", "api", "worker", "maintenance", "monitor"):
            found = found.replace(f":'{name}'", f"'{name.upper()}_PASSWORD'")
            assert f"{name}-password" in COMPOSE["services"]["postgres"]["secrets"]
        assert found == wanted

    def test_every_process_gets_the_time_that_it_takes_to_stop(self) -> None:
        services = COMPOSE["services"]
        assert _seconds(services["api"]["stop_grace_period"]) > API_STOP_SECONDS
        for name in services:
            if name.startswith("worker-"):
                assert _seconds(services[name]["stop_grace_period"]) > WORKER_STOP_SECONDS

    def test_each_worker_has_a_gpu_of_its_own(self) -> None:
        devices = [
            device_id
            for service in COMPOSE["services"].values()
            for device in service.get("deploy", {}).get("resources", {}).get("reservations", {}).get("devices", ())
            for device_id in device["device_ids"]
        ]
        assert len(devices) == len(set(devices)) == 2


class TestKubernetes:
    @pytest.mark.parametrize(
        "name",
        [name for name, found in DOCUMENTS.items() if not found["apiVersion"].startswith(("keda", "monitoring"))],
    )
    def test_a_manifest_is_valid(self, name: str) -> None:
        if DOCUMENTS[name]["kind"] != "Kustomization":
            kubernetes_validate.validate(DOCUMENTS[name], KUBERNETES_VERSION, strict=True)

    def test_the_kustomization_names_every_file_and_this_version(self) -> None:
        text, found = _text("kubernetes/kustomization.yaml"), DOCUMENTS["kustomization.yaml:0"]
        files = {path.name for path in (DEPLOY / "kubernetes").glob("*.yaml")} - {"kustomization.yaml"}
        assert set(re.findall(r"^  (?:# )?- ([\w.-]+\.yaml)", text, re.MULTILINE)) == files
        assert {image["newTag"] for image in found["images"]} == {version("longhaul-server")}
        assert all(image["newName"].startswith("registry.example/") for image in found["images"]), "to be replaced"
        replicas = {each["name"] for each in found["replicas"]}
        assert replicas == {PODS[name]["metadata"]["name"] for name in PODS if name.startswith("worker-")}
        assert not any("replicas" in PODS[name]["spec"] for name in PODS if name.startswith("worker-")), (
            "KEDA sets them"
        )
        assert {image["name"] for image in found["images"]} == {_container(name)["image"] for name in PODS}
        assert DOCUMENTS["migrate.yaml:0"]["metadata"]["name"].endswith(version("longhaul-server").replace(".", "-"))

    @pytest.mark.parametrize("name", PODS)
    def test_a_pod_has_no_rights_and_writes_where_it_may_only(self, name: str) -> None:
        pod, container = _pod(name), _container(name)
        assert pod["enableServiceLinks"] is pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert {pod["securityContext"][key] for key in ("runAsUser", "runAsGroup", "fsGroup")} == {USER}
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
        assert {mount["name"] for mount in mounts.values()} == set(volumes)
        settings = DOCUMENTS["settings.yaml:0"]["data"]
        secret = volumes[mounts[settings["LONGHAUL_SECRETS"]]["name"]]["secret"]
        assert secret["secretName"] == "longhaul"
        assert {item["path"]: item["key"] for item in secret["items"]} == _secrets_of(container["args"][0])
        assert str(Path(settings["LONGHAUL_MODELS"]).parent) in mounts
        assert "emptyDir" in volumes[mounts["/tmp"]["name"]]
        assert container["args"][0] in COMMANDS
        assert container["envFrom"] == [{"configMapRef": {"name": DOCUMENTS["settings.yaml:0"]["metadata"]["name"]}}]

    def test_the_settings_are_valid(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, value in DOCUMENTS["settings.yaml:0"]["data"].items():
            monkeypatch.setenv(name, value)
        Settings().check_auth()
        with pytest.raises(ConfigError, match="LONGHAUL_METRICS_TOKEN"):
            Settings().check_metrics()
        monkeypatch.setenv("LONGHAUL_METRICS_TOKEN", "0123456789abcdef")  # of the Secret
        Settings().check_metrics()

    def test_the_ports_are_those_that_the_product_listens_on(self) -> None:
        metrics = {
            "name": "metrics",
            "containerPort": int(DOCUMENTS["settings.yaml:0"]["data"]["LONGHAUL_METRICS_PORT"]),
        }
        assert _container("api.yaml:0")["ports"] == [{"name": "http", "containerPort": DEFAULTS.port}, metrics]
        for name in PODS:
            if name.startswith(("worker-", "maintenance")):
                assert _container(name)["ports"] == [metrics]
        assert _container("flower.yaml:0")["ports"] == [{"name": "http", "containerPort": DEFAULTS.flower_port}]
        assert DOCUMENTS["api.yaml:1"]["spec"]["ports"][0]["targetPort"] == "http"

    @pytest.mark.parametrize("name", [name for name in PODS if "migrate" not in name and "flower" not in name])
    def test_copies_are_spread_over_nodes_and_not_evicted_together(self, name: str) -> None:
        labels = PODS[name]["spec"]["template"]["metadata"]["labels"]
        (spread,) = _pod(name)["topologySpreadConstraints"]
        assert spread["topologyKey"] == "kubernetes.io/hostname"
        assert spread["labelSelector"]["matchLabels"] == labels
        file = name.partition(":")[0]
        budgets = [found for where, found in DOCUMENTS.items() if where.startswith(file) and "Budget" in found["kind"]]
        assert [budget["spec"]["selector"]["matchLabels"] for budget in budgets] == [labels]

    def test_the_service_and_the_network_policy_select_the_pods_of_the_api(self) -> None:
        labels = DOCUMENTS["api.yaml:0"]["spec"]["template"]["metadata"]["labels"]
        assert DOCUMENTS["api.yaml:1"]["spec"]["selector"] == labels
        everything, api = DOCUMENTS["network.yaml:0"]["spec"], DOCUMENTS["network.yaml:1"]["spec"]
        assert "ingress" not in everything, "nothing is let in"
        metrics = DOCUMENTS["network.yaml:2"]["spec"]
        assert metrics["podSelector"] == everything["podSelector"]
        assert [port["port"] for rule in metrics["ingress"] for port in rule["ports"]] == ["metrics"]
        assert all("namespaceSelector" in each for rule in metrics["ingress"] for each in rule["from"])
        assert everything["podSelector"]["matchLabels"].items() <= labels.items()
        assert api["podSelector"]["matchLabels"] == labels
        assert [port["port"] for rule in api["ingress"] for port in rule["ports"]] == ["http"]

    def test_every_pod_gets_the_time_that_it_takes_to_stop(self) -> None:
        api = _pod("api.yaml:0")
        waited = float(_container("api.yaml:0")["lifecycle"]["preStop"]["exec"]["command"][1])
        assert api["terminationGracePeriodSeconds"] > waited + API_STOP_SECONDS
        for name in PODS:
            if name.startswith("worker-"):
                assert _pod(name)["terminationGracePeriodSeconds"] > WORKER_STOP_SECONDS

    def test_the_workers_of_two_models_differ_by_the_name_of_the_model_alone(self) -> None:
        texts = {
            path.read_text(encoding="utf-8").replace(path.stem.removeprefix("worker-"), "MODEL")
            for path in (DEPLOY / "kubernetes").glob("worker-*.yaml")
        }
        assert len(texts) == 1

    @pytest.mark.parametrize("name", [name for name in PODS if name.startswith("worker-")])
    def test_a_worker_has_devices_of_its_own_and_is_ready_when_it_says_so(self, name: str) -> None:
        container = _container(name)
        (model,) = (variable["value"] for variable in container["env"] if variable["name"] == "LONGHAUL_MODEL")
        assert name == f"worker-{model}.yaml:0"
        assert container["resources"]["limits"]["nvidia.com/gpu"] == 1
        assert (
            container["startupProbe"]["exec"]
            == container["readinessProbe"]["exec"]
            == {"command": ["longhaul", "ready"]}
        )
        assert "livenessProbe" not in container

    def test_scaling_watches_each_workers_own_queue_in_postgres(self) -> None:
        queues = {f"longhaul-worker-{model.name}": model.queue for model in load_models(DEPLOY / "models.toml").models}
        scaled = [found for found in DOCUMENTS.values() if found["kind"] == "ScaledObject"]
        assert {found["spec"]["scaleTargetRef"]["name"] for found in scaled} == set(queues)
        for found in scaled:
            assert (found["spec"]["minReplicaCount"], found["spec"]["cooldownPeriod"]) == (0, 900)
            for trigger in found["spec"]["triggers"]:
                assert "activationTargetQueryValue" not in trigger["metadata"], "one response is enough for a worker"
                assert trigger["type"] == "postgresql"
                assert f"queue = '{queues[found['spec']['scaleTargetRef']['name']]}'" in trigger["metadata"]["query"]


class TestSystemd:
    def test_every_process_has_a_unit_that_the_target_starts(self) -> None:
        commands = {unit.one("ExecStart").removeprefix("/opt/longhaul/.venv/bin/longhaul ") for unit in UNITS.values()}
        assert commands == {"api", "worker", "maintenance", "flower", "migrate"}
        for unit in UNITS.values():
            assert unit["Install"]["WantedBy"] == unit["Unit"]["PartOf"] == "longhaul.target"

    @pytest.mark.parametrize("name", UNITS)
    def test_a_unit_gets_its_secrets_as_files_and_few_rights(self, name: str) -> None:
        unit = UNITS[name]
        assert unit["Service"]["User"] == "longhaul"
        assert "LONGHAUL_SECRETS=%d" in unit.lines["Environment"]
        secrets = _secrets_of(unit.one("ExecStart").split()[-1])
        files = {f"{name}:/etc/longhaul/secrets/{secret}" for name, secret in secrets.items()}
        assert files == set(unit.lines["LoadCredential"])
        for option in ("NoNewPrivileges", "PrivateTmp", "ProtectHome", "RestrictSUIDSGID", "LockPersonality"):
            assert unit["Service"][option] == "yes"
        assert unit["Service"]["ProtectSystem"] == "strict"
        assert "MemoryDenyWriteExecute" not in unit["Service"], "Python's libraries compile at run time"

    @pytest.mark.parametrize("name", UNITS)
    def test_a_unit_starts_again_whatever_was_wrong(self, name: str) -> None:
        """A certificate that is not trusted for a minute is an error of configuration, too."""
        assert UNITS[name]["Service"]["Restart"] == ("on-failure" if name == "longhaul-migrate" else "always")
        assert "RestartPreventExitStatus" not in UNITS[name]["Service"]
        assert UNITS[name]["Unit"]["StartLimitIntervalSec"] == "0"

    def test_each_process_of_a_machine_serves_metrics_at_a_port_of_its_own(self) -> None:
        ports = {
            name: "".join(re.findall(r"LONGHAUL_METRICS_PORT=(\S+)", _text(f"systemd/{name}.service")))
            for name in UNITS
        }
        served = {name: port.replace("%i", "0") for name, port in ports.items() if port}
        assert set(served) == {"longhaul-api", "longhaul-maintenance", "longhaul-worker@"}
        assert len(set(served.values())) == 3
        assert "%i" in ports["longhaul-worker@"]
        page = (DOCS / "metrics.md").read_text(encoding="utf-8")
        assert (
            f"{served['longhaul-api']} and on for the API, {served['longhaul-maintenance']} for maintenance, " in page
        )
        assert f"{served['longhaul-worker@']} + GPU for workers" in page

    def test_one_stop_signal_reaches_the_first_process_alone_which_gets_the_time_that_it_takes(self) -> None:
        assert (
            UNITS["longhaul-api"]["Service"]["KillMode"] == UNITS["longhaul-worker@"]["Service"]["KillMode"] == "mixed"
        )
        assert float(UNITS["longhaul-api"]["Service"]["TimeoutStopSec"]) > API_STOP_SECONDS
        assert float(UNITS["longhaul-worker@"]["Service"]["TimeoutStopSec"]) > WORKER_STOP_SECONDS

    def test_a_worker_has_a_device_and_a_ready_file_of_its_own_and_tells_systemd_when_it_is_ready(self) -> None:
        unit = UNITS["longhaul-worker@"]
        assert unit["Service"]["Type"] == "notify"
        assert "WatchdogSec" not in unit["Service"], "a worker that waits for Postgres must not lose its model"
        environment = " ".join(unit.lines["Environment"])
        assert "CUDA_VISIBLE_DEVICES=%i" in environment
        assert f"LONGHAUL_READY_FILE=%t/{unit['Service']['RuntimeDirectory']}/ready" in environment
        assert unit.lines["EnvironmentFile"][-1] == "/etc/longhaul/worker-%i.env", "may name other devices"


class TestMemory:
    """Every limit in deploy/ is at least what docs/operations.md computes from the settings of deploy/."""

    GIB = 1024
    ENGINE = 8 * GIB
    """MiB of the main memory that an engine for one GPU may take beside what the page counts, its /dev/shm included."""

    @staticmethod
    def _bound(**names: float) -> float:
        """The page's formula with these names, in MiB."""
        page = (DOCS / "operations.md").read_text(encoding="utf-8")
        (text,) = [line for line in re.findall(r"^    (.+)$", page, re.MULTILINE) if _names(line) == set(names)]
        text = re.sub(r" x ", " * ", re.sub(r"([\d.]+) KiB", r"(\1 / 1024)", text.replace(" MiB", "")))
        return float(eval(text, {}, names))

    def _api(self) -> float:
        connections = int(DOCUMENTS["settings.yaml:0"]["data"]["LONGHAUL_MAX_CONNECTIONS"])
        assert f"LONGHAUL_MAX_CONNECTIONS={connections}\n" in _text("systemd/longhaul.env")
        assert COMPOSE["services"]["api"]["environment"]["LONGHAUL_MAX_CONNECTIONS"] == str(connections)
        mib = 1024**2
        return self._bound(C=connections, R=connections, B=DEFAULTS.buffer_bytes / mib, M=DEFAULTS.max_body_bytes / mib)

    def _worker(self) -> float:
        slots = {model.engine_args["max_num_seqs"] for model in load_models(DEPLOY / "models.toml").models}
        mib = 1024**2
        values = {"M": DEFAULTS.max_body_bytes / mib, "X": DEFAULTS.max_context_bytes / mib}
        return self._bound(W=2 * max(slots), **values) + self.ENGINE

    @pytest.mark.parametrize("kind", ["api", "worker"])
    def test_a_limit_is_above_what_the_process_may_hold(self, kind: str) -> None:
        bound = getattr(self, f"_{kind}")()
        unit = UNITS["longhaul-api" if kind == "api" else "longhaul-worker@"]
        pods = [_container(name) for name in PODS if name.startswith(kind)]
        services = [found for name, found in COMPOSE["services"].items() if name.startswith(kind)]
        limits = [unit["Service"]["MemoryMax"]]
        limits += [pod["resources"]["limits"]["memory"].removesuffix("i") for pod in pods]
        limits += [service["mem_limit"].upper() for service in services]
        assert len(limits) == 1 + len(pods) + len(services) >= 3
        for limit in limits:
            assert int(limit.removesuffix("G")) * self.GIB >= bound, limit


def _names(formula: str) -> set[str]:
    return set(re.findall(r"\b[A-Z]\b", formula))


class TestProxies:
    def test_bodies_and_heads_have_the_bounds_of_the_api(self) -> None:
        nginx, haproxy = _text("nginx.conf"), _text("haproxy.cfg")
        assert f"client_max_body_size {DEFAULTS.max_body_bytes // 1024**2}m;" in nginx
        assert f"client_header_timeout {HEAD_SECONDS:g}s;" in nginx
        assert f"client_body_timeout {DEFAULTS.body_seconds:g}s;" in nginx
        assert f"send_timeout {DEFAULTS.write_seconds:g}s;" in nginx
        assert f"timeout http-request {HEAD_SECONDS:g}s " in haproxy
        assert f"timeout client {DEFAULTS.body_seconds:g}s " in haproxy

    def test_streams_are_not_buffered_and_no_stream_is_cut_between_two_keep_alives(self) -> None:
        nginx, haproxy = _text("nginx.conf"), _text("haproxy.cfg")
        assert "proxy_buffering off;" in nginx
        for timeout in (
            *re.findall(r"proxy_read_timeout (\S+);", nginx),
            *re.findall(r"timeout (?:server|tunnel) (\S+)", haproxy),
        ):
            assert _seconds(timeout) > DEFAULTS.keepalive_seconds

    def test_both_lead_to_the_port_of_the_api_and_bound_the_connections_of_one_address(self) -> None:
        nginx, haproxy = _text("nginx.conf"), _text("haproxy.cfg")
        addresses = re.findall(r"^ +server (?:api\d )?([\d.]+):(\d+)", nginx + haproxy, re.MULTILINE)
        assert {int(port) for _, port in addresses} == {DEFAULTS.port}
        assert len(addresses) == 4
        assert "limit_conn clients 100;" in nginx
        assert "sc0_conn_cur gt 100" in haproxy

    def test_a_proxy_repeats_what_it_could_not_send_and_keeps_no_connection_that_a_stopping_api_would_cut(self) -> None:
        nginx, haproxy = _text("nginx.conf"), _text("haproxy.cfg")
        assert nginx.count(" max_fails=0;") == 2, "else a rolling restart finds both marked as failed"
        assert "non_idempotent" not in nginx
        assert "keepalive" not in nginx.partition("upstream longhaul {")[2].partition("}")[0]
        assert "retry-on conn-failure " in haproxy
        assert "http-reuse never\n" in haproxy

    def test_a_proxy_and_a_restart_ask_for_readiness(self) -> None:
        assert "option httpchk GET /health/ready\n" in _text("haproxy.cfg")
        assert "longhaul ready --api" in UNITS["longhaul-api"].one("ExecStartPost")


def _secrets_of(command: str) -> dict[str, str]:
    """The secret in each file that a process gets: what it has to know, and no other."""
    owner = {"DATABASE_URL": "OWNER_DATABASE_URL", "LONGHAUL_ADMIN_KEY": "LONGHAUL_ADMIN_KEY"}
    served = {name: name for name in ("DATABASE_URL", "LONGHAUL_METRICS_TOKEN")}
    worker = {**served, "DATABASE_URL": "WORKER_DATABASE_URL"}
    maintenance = {**served, "DATABASE_URL": "MAINTENANCE_DATABASE_URL"}
    maintenance["LONGHAUL_MONITOR_DATABASE_URL"] = "LONGHAUL_MONITOR_DATABASE_URL"
    flower = {name: name for name in ("DATABASE_URL", "LONGHAUL_FLOWER_AUTH")}
    own = {"flower": flower, "migrate": owner, "worker": worker, "maintenance": maintenance}
    return {"REDIS_URL": "REDIS_URL", **own.get(command, served)}


def _file_and_secret(secret: str | dict[str, str]) -> tuple[str, str]:
    """File and name of one of a service's secrets in Compose."""
    return (secret, secret) if isinstance(secret, str) else (secret["target"], secret["source"])


def _seconds(text: str) -> float:
    return float(text[:-1]) * {"s": 1, "m": 60, "h": 3600}[text[-1]]
