"""Errors in what listens, who is asked and where the store is, and the exact text of each."""

from __future__ import annotations

from pathlib import Path

import pytest

from router.model import EndpointRecord, EndpointSeen, Replica
from router.urls import masked_url
from sidecar.channel import encode
from sidecar.config.load import parse_settings
from sidecar.config.problems import SettingsError
from sidecar.discovery.planned import static_endpoints
from sidecar.upstreams.adapters import ANY_CLASS, REASON_BYTES
from tests.support.settings_texts import GOOD, refused

# (what is wrong, file content, every line of the error)
SENSELESS: list[tuple[str, str, list[str]]] = [
    (
        "fields that cannot name a model",
        (
            'version: 1\nlisteners:\n  - {address: "127.0.0.1:1", model_header: Host}\n'
            '  - {address: "127.0.0.1:2", model_header: X-Forwarded-Model}\n'
            '  - {address: "127.0.0.1:3", model_header: "x model"}\n  - {address: "127.0.0.1:4", model_header: ""}\n'
            '  - {address: "127.0.0.1:5", model_header: null}\n  - {address: "127.0.0.1:6", model_header: X-Model}\n'
            'models: [{name: magika, endpoints: ["http://w:9001"]}]\n'
        ),
        [
            (
                'w.yaml:3:44: listeners[0].model_header: "Host": '
                "has a meaning of its own: choose another field, for example x-model"
            ),
            (
                'w.yaml:4:44: listeners[1].model_header: "X-Forwarded-Model": '
                "has a meaning of its own: choose another field, for example x-model"
            ),
            (
                'w.yaml:5:44: listeners[2].model_header: "x model": '
                "must be a field name: 1 to 64 letters, digits or hyphens; null turns it off"
            ),
            (
                'w.yaml:6:44: listeners[3].model_header: "": '
                "must be a field name: 1 to 64 letters, digits or hyphens; null turns it off"
            ),
        ],
    ),
    (
        "whom a listener trusts",
        (
            'version: 1\nlisteners:\n  - address: "127.0.0.1:8080"\n'
            '    trusted_networks: [10.0.0.0/8, "fd00::/8", 10.1.2.3, unix, 10.1.2.3/8, proxy.local, "/run/x", ""]\n'
            'models: [{name: magika, endpoints: ["http://w:9001"]}]\n'
        ),
        [
            (
                'w.yaml:4:64: listeners[0].trusted_networks[4]: "10.1.2.3/8": '
                "must end where its prefix does: write 10.0.0.0/8 for the network, or the address alone"
            ),
            (
                'w.yaml:4:76: listeners[0].trusted_networks[5]: "proxy.local": '
                "must be a network, for example 10.0.0.0/8, an address, or unix"
            ),
            (
                'w.yaml:4:89: listeners[0].trusted_networks[6]: "/run/x": '
                "must be a network, for example 10.0.0.0/8, an address, or unix"
            ),
            (
                'w.yaml:4:99: listeners[0].trusted_networks[7]: "": '
                "must be a network, for example 10.0.0.0/8, an address, or unix"
            ),
        ],
    ),
    (
        "listeners and endpoints of different protocols",
        (
            'version: 1\nlisteners:\n  - {address: "127.0.0.1:1"}\n  - {address: "127.0.0.1:2", protocol: grpc}\n'
            'models: [{name: m, endpoints: ["grpc://w:9001"], probe: {}}]\n'
            'endpoints: [{url: "grpcs://w:9002", models: [m], probe: {}}, {url: "grpc+unix:w", models: [m]}]\n'
        ),
        [
            (
                'w.yaml:3:5: listeners[0].protocol: "http": no endpoint speaks it: '
                "give a model endpoints that start with http://"
            ),
            (
                'w.yaml:6:68: endpoints[1].url: "grpc+unix:w": must be unix: and the absolute path of a socket, '
                "for example unix:/run/app/http.sock"
            ),
        ],
    ),
    (
        "listeners",
        (
            'version: 1\nlisteners:\n  - {address: "127.0.0.1:8080", name: a}\n'
            '  - {address: "127.0.0.1:08080", name: a, default_model: magik}\n  - {address: "::1:8080"}\n'
            '  - {address: "localhost"}\n  - {address: "h:70000"}\n  - {address: "127.0.0.1:0"}\n'
            '  - {address: "127.0.0.1:0"}\n  - {address: "300.0.0.1:1"}\n  - {address: "[zz]:1"}\n'
            '  - {address: "a b:1"}\n'
            'models: [{name: magika, endpoints: ["http://w:9001"]}]\n'
        ),
        [
            (
                'w.yaml:4:15: listeners[1].address: "127.0.0.1:08080": already the address of listeners[0]: '
                "give each its own, or use processes for more of them"
            ),
            'w.yaml:4:40: listeners[1].name: "a": already the name of listeners[0]: give each its own',
            'w.yaml:4:58: listeners[1].default_model: "magik": no such model; did you mean "magika"?',
            (
                'w.yaml:5:15: listeners[2].address: "::1:8080": '
                "must have its IPv6 address in brackets, for example [::1]:8080"
            ),
            'w.yaml:6:15: listeners[3].address: "localhost": must be HOST:PORT, for example 127.0.0.1:8080',
            'w.yaml:7:15: listeners[4].address: "h:70000": must end in a port between 0 and 65535',
            (
                'w.yaml:10:15: listeners[7].address: "300.0.0.1:1": '
                "must hold an IPv4 address of four numbers up to 255, or a host name"
            ),
            (
                'w.yaml:11:15: listeners[8].address: "[zz]:1": '
                "must hold an IPv6 address between [ and ], for example [::1]:8080"
            ),
            'w.yaml:12:15: listeners[9].address: "a b:1": must be HOST:PORT with an IP address or a host name',
        ],
    ),
    (
        "models",
        (
            'version: 1\nlisteners: [{address: "127.0.0.1:0"}]\nmodels:\n  - {name: a, default: true, endpoints: ["http://a:1"]}\n'
            "  - name: a\n    default: true\n    endpoints:\n      - https://w\n      - w:9001\n      - http://w\n"
            "      - http://w:1/v2\n      - http://w:2\n      - http://w:2/\n      - ftp://w:1\n      - http://u:pw@w:1\n"
            "      - http://w:0\n      - ''\n  - {name: b}\n"
        ),
        [
            'w.yaml:5:11: models[1].name: "a": already the name of models[0]: declare each model once',
            "w.yaml:6:14: models[1].default: true: models[0] is the default already: keep one of them",
            'w.yaml:8:9: models[1].endpoints[0]: "https://w": must be https://HOST:PORT, for example https://127.0.0.1:9001',
            'w.yaml:9:9: models[1].endpoints[1]: "w:9001": must be http://HOST:PORT; did you mean http://w:9001?',
            'w.yaml:10:9: models[1].endpoints[2]: "http://w": must be http://HOST:PORT, for example http://127.0.0.1:9001',
            (
                'w.yaml:11:9: models[1].endpoints[3]: "http://w:1/v2": '
                "must end after the port: requests keep their own path; write http://w:1"
            ),
            'w.yaml:13:9: models[1].endpoints[5]: "http://w:2/": the same as endpoints[4]: name each once',
            (
                'w.yaml:14:9: models[1].endpoints[6]: "ftp://w:1": '
                "must start with http(s):// or grpc(s)://, or be unix:/PATH or grpc+unix:/PATH"
            ),
            'w.yaml:15:9: models[1].endpoints[7]: "http://***@w:1": must not hold a user or password',
            'w.yaml:16:9: models[1].endpoints[8]: "http://w:0": must have a port between 1 and 65535',
            'w.yaml:17:9: models[1].endpoints[9]: "": must be http://HOST:PORT, for example http://127.0.0.1:9001',
            (
                'w.yaml:18:12: models[2].name: "b": has no endpoint and never will: '
                "give it endpoints or dns, or set state.url for workers to come"
            ),
        ],
    ),
    (
        "names to look up",
        (
            'version: 1\nlisteners: [{address: "127.0.0.1:0"}]\n'
            'models: [{name: d, dns: {name: "a b", port: 0, type: mx}}]\n'
        ),
        [
            (
                'w.yaml:3:32: models[0].dns.name: "a b": must be a DNS name: labels of letters, digits, hyphens and '
                "underscores"
            ),
            "w.yaml:3:45: models[0].dns.port: 0: must be at least 1",
            'w.yaml:3:54: models[0].dns.type: "mx": must be one of: a, srv',
        ],
    ),
    (
        "what is looked up",
        (
            'version: 1\nlisteners: [{address: "127.0.0.1:0"}]\n'
            "models:\n"
            "  - {name: a, dns: {name: workers.test}}\n"
            "  - {name: b, dns: {name: _h._tcp.w.test, type: srv, port: 1}}\n"
            "  - {name: c, dns: {name: w.test, port: 1, scheme: https}}\n"
            'dns: {servers: ["10.0.0.1:53", "fd00::1", "[fd00::1]:53", dns.test, "10.0.0.1:0"]}\n'
        ),
        [
            (
                "w.yaml:4:20: models[0].dns: a mapping: needs the port of the endpoints: set port, or type: srv, whose "
                "records have it"
            ),
            "w.yaml:5:60: models[1].dns.port: 1: has no use with type srv, whose records have the port: leave it out",
            (
                'w.yaml:6:52: models[2].dns.scheme: "https": needs upstream_tls.server_name: endpoints are addresses, '
                "and certificates are for names"
            ),
            'w.yaml:7:59: dns.servers[3]: "dns.test": must be IP or IP:PORT, for example 10.0.0.10:53 or [fd00::a]:53',
            (
                'w.yaml:7:69: dns.servers[4]: "10.0.0.1:0": must be IP or IP:PORT, for example 10.0.0.10:53 or '
                "[fd00::a]:53"
            ),
        ],
    ),
    (
        "endpoints",
        GOOD + "endpoints:\n  - {url: 'http://a:2', models: []}\n"
        "  - {url: 'http://a:2/', models: [magica, x@, magika@1, magika@1, '']}\n"
        "  - {url: 'http://a:3', name: e, models: [magika]}\n  - {url: 'http://a:4', name: e, models: [zebra]}\n",
        [
            "w.yaml:5:33: endpoints[0].models: an empty list: must hold at least one model, NAME or NAME@VERSION",
            'w.yaml:6:11: endpoints[1].url: "http://a:2/": already the URL of endpoints[0]: list its models there',
            'w.yaml:6:35: endpoints[1].models[0]: "magica": no such model; did you mean "magika"?',
            'w.yaml:6:43: endpoints[1].models[1]: "x@": must be NAME or NAME@VERSION, perhaps with #SHARD',
            'w.yaml:6:57: endpoints[1].models[3]: "magika@1": the same as models[2]: name each once',
            'w.yaml:6:67: endpoints[1].models[4]: "": must be NAME or NAME@VERSION, perhaps with #SHARD',
            'w.yaml:8:31: endpoints[3].name: "e": already the name of endpoints[2]: give each its own',
            'w.yaml:8:43: endpoints[3].models[0]: "zebra": no such model; declared are: magika',
        ],
    ),
    (
        "admin open to everyone",
        GOOD + "admin: {address: '0.0.0.0:9901'}\n",
        [
            (
                'w.yaml:4:18: admin.address: "0.0.0.0:9901": '
                "must be a loopback address (127.0.0.1 or [::1]), or admin.token_file must be set"
            )
        ],
    ),
    (
        "no admin at all",
        GOOD + "admin: {address: null}\n",
        [
            (
                "w.yaml:4:8: admin: a mapping: must have a socket (--admin-socket) or an address: "
                "there would be no way to see or steer the sidecar"
            )
        ],
    ),
    (
        "admin on a listener's address, and a path too long for a socket",
        GOOD + f"admin: {{address: '127.0.0.1:8080', socket: {'s' * 108}}}\n",
        [
            (
                'w.yaml:4:18: admin.address: "127.0.0.1:8080": '
                "already the address of listeners[0]: give the admin API its own port"
            ),
            (
                f'w.yaml:4:44: admin.socket: "{"s" * 108}": '
                "must be at most 107 bytes: the kernel takes no longer socket path"
            ),
        ],
    ),
    (
        "two schemes at one place",
        (
            "version: 1\nlisteners: [{address: '127.0.0.1:0'}]\nmodels:\n"
            "  - {name: a, endpoints: ['http://w:1', 'https://w:1', 'https://w:2']}\n"
            "  - {name: b, endpoints: ['https://w:1', 'http://w:2/']}\n"
            "endpoints: [{url: 'http://w:2', name: two, models: [a]}]\n"
        ),
        [
            (
                'w.yaml:4:41: models[0].endpoints[1]: "https://w:1": has the same HOST:PORT as http://w:1: '
                "list one of them under endpoints, with a name of its own"
            ),
            (
                'w.yaml:5:27: models[1].endpoints[0]: "https://w:1": has the same HOST:PORT as http://w:1: '
                "list one of them under endpoints, with a name of its own"
            ),
        ],
    ),
    (
        "Unix sockets that are none",
        (
            "version: 1\nlisteners:\n  - {address: 'unix:run/a.sock'}\n  - {address: 'unix:/run/a.sock'}\n"
            "  - {address: 'unix:/run/a.sock'}\n"
            f"models: [{{name: m, endpoints: ['unix:', 'unix:/run/w.sock', 'unix:/{'s' * 107}']}}]\n"
        ),
        [
            (
                'w.yaml:3:15: listeners[0].address: "unix:run/a.sock": '
                "must be unix: and the absolute path of a socket, for example unix:/run/app/http.sock"
            ),
            (
                'w.yaml:5:15: listeners[2].address: "unix:/run/a.sock": already the address of listeners[1]: '
                "give each its own, or use processes for more of them"
            ),
            (
                'w.yaml:6:32: models[0].endpoints[0]: "unix:": '
                "must be unix: and the absolute path of a socket, for example unix:/run/app/http.sock"
            ),
            (
                f'w.yaml:6:61: models[0].endpoints[2]: "unix:/{"s" * 107}": '
                "must be at most 107 bytes: the kernel takes no longer socket path"
            ),
        ],
    ),
    (
        "a limit that another excludes, at its default",
        GOOD + "limits: {head_bytes: 1024}\n",
        ["w.yaml:4:9: limits.target_bytes: 16384: must be at most limits.head_bytes (1024): the target is in the head"],
    ),
    (
        "work refused before room is made",
        GOOD + "overload: {soft_ratio: 0.9, hard_ratio: 0.8}\n",
        [
            (
                "w.yaml:4:24: overload.soft_ratio: 0.9: must be below overload.hard_ratio (0.8): room is made before "
                "work is refused"
            )
        ],
    ),
    (
        "nothing to route to",
        'version: 1\nlisteners: [{address: "127.0.0.1:0", default_model: m}]\n',
        [
            (
                "w.yaml:1:1: models: an empty list: "
                "must name a model with endpoints, or state.url must name a store that knows workers"
            ),
            'w.yaml:2:53: listeners[0].default_model: "m": no such model: declare it under models',
        ],
    ),
    (
        "files that are not there",
        GOOD + "admin: {token_file: /nonexistent/token}\n",
        [
            (
                'w.yaml:4:21: admin.token_file: "/nonexistent/token": '
                "cannot be read (No such file or directory): name a file that this user can read"
            )
        ],
    ),
    (
        "TLS without rediss, a key without its certificate, a password without a store",
        GOOD + "state:\n  password_file: /dev/null\n  tls: {key_file: /dev/null}\n",
        [
            'w.yaml:5:18: state.password_file: "/dev/null": has no use without a store: set state.url',
            'w.yaml:5:18: state.password_file: "/dev/null": is not a regular file: name one',
            'w.yaml:6:19: state.tls.key_file: "/dev/null": TLS needs state.url to start with rediss://',
            'w.yaml:6:19: state.tls.key_file: "/dev/null": needs its certificate: set state.tls.cert_file',
            'w.yaml:6:19: state.tls.key_file: "/dev/null": is not a regular file: name one',
        ],
    ),
]


@pytest.mark.parametrize(("content", "lines"), [row[1:] for row in SENSELESS], ids=[row[0] for row in SENSELESS])
def test_senseless_text(content: str, lines: list[str]) -> None:
    assert refused(content) == lines


@pytest.mark.parametrize(
    ("url", "remedy"),
    [
        ("sentinel://a:1", "sentinel:// is not supported yet: use redis:// or rediss:// with one server's address"),
        ("cluster://a:1", "cluster:// is not supported yet: use redis:// or rediss:// with one server's address"),
        ("memcached://a:1", "must start with redis://, rediss:// or unix://, or be none"),
        ("localhost:6379", "must start with redis://, rediss:// or unix://, or be none"),
        ("unix://", "must name a socket, for example unix:///run/redis/redis.sock"),
        ("unix://run/s.sock", "must hold an absolute path, after three slashes: unix:///run/redis/redis.sock"),
        ("unix://u:p@run/s.sock", "must hold an absolute path, after three slashes: unix:///run/redis/redis.sock"),
        ("redis://", "must name a server, for example redis://127.0.0.1:6379"),
        ("redis://h:x", "must be redis://HOST:PORT/DATABASE, the port between 1 and 65535"),
        ("rediss://h:0", "must have a port between 1 and 65535"),
        ("redis://a b@h:1", "must hold no spaces: write what is in a user or password as %20"),
        ("redis://h:1/main", "must end in the number of a database, for example redis://h/0"),
    ],
)
def test_state_url(url: str, remedy: str) -> None:
    assert refused(f"{GOOD}state: {{url: '{url}'}}\n") == [f'w.yaml:4:14: state.url: "{masked_url(url)}": {remedy}']


@pytest.mark.parametrize("name", ["password", "username", "ssl_password", "Password"])
@pytest.mark.parametrize("place", ["redis://h:1/0", "unix:///run/s.sock"])
def test_credentials_in_the_query_of_the_state_url(place: str, name: str) -> None:
    scheme = place.partition(":")[0]
    remedy = f"must not hold {name} after a ?: write {scheme}://USER:PASSWORD@…, or password_file"
    assert refused(f"{GOOD}state: {{url: '{place}?db=1&{name}=hunter2'}}\n") == [
        f'w.yaml:4:14: state.url: "{place}": {remedy}'
    ]


def test_password_in_two_places(tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.write_text("hunter2\n")
    secret.chmod(0o600)
    text = f"{GOOD}state:\n  url: redis://user:hunter2@h:1\n  password_file: {secret}\n"
    remedy = "the password stands in state.url too: keep one of the two"
    assert refused(text) == [f'w.yaml:6:18: state.password_file: "{secret}": {remedy}']


def test_a_password_file_that_is_not_utf8(tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.write_bytes(b"caf\xe9\n")
    secret.chmod(0o600)
    text = f"{GOOD}state:\n  url: redis://user@h:1\n  password_file: {secret}\n"
    remedy = "byte 4 of it is not UTF-8: save the file as UTF-8"
    assert refused(text) == [f'w.yaml:6:18: state.password_file: "{secret}": {remedy}']


@pytest.mark.parametrize("probe", ["null", "{}"])
def test_more_models_than_one_endpoint_can_tell_of(probe: str) -> None:
    names = [f"model-{number:04d}" for number in range(1000)]
    models = ", ".join(f"{{name: {name}}}" for name in names)
    endpoint = f"{{url: 'http://127.0.0.1:1', models: [{', '.join(names)}], probe: {probe}}}"
    head = "version: 1\nlisteners: [{address: 'h:1'}]\nstate: {url: 'redis://h:1'}\n"
    text = f"{head}models: [{models}]\nendpoints: [{endpoint}]\n"
    with pytest.raises(SettingsError) as caught:
        parse_settings(text.encode(), "w.yaml")
    (problem,) = caught.value.problems
    most = int(problem.path.removeprefix("endpoints[0].models[").removesuffix("]"))
    assert f"no more than the {most} models before this one" in problem.remedy
    fits = parse_settings(text.replace(f"[{', '.join(names)}]", f"[{', '.join(names[:most])}]").encode(), "w.yaml")
    (planned,) = static_endpoints(fits.settings)
    found = {} if probe == "null" else {"reason": "x" * REASON_BYTES, "warmth": ((ANY_CLASS, 1.0),)}
    replicas = tuple(Replica(one.model, one.version, **found) for one in planned.replicas)  # type: ignore[arg-type]
    assert encode(EndpointSeen(EndpointRecord(planned.id, planned.address, replicas=replicas, static=True), 0.1))


def test_empty_token_file(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("\n")
    token.chmod(0o600)
    remedy = "is empty: put the content in it, or leave the field out"
    assert refused(f"{GOOD}admin: {{token_file: {token}}}\n") == [f'w.yaml:4:21: admin.token_file: "{token}": {remedy}']
