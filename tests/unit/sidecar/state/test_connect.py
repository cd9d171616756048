from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from redis.asyncio.connection import SSLConnection, UnixDomainSocketConnection

from sidecar.settings import StateStore, StateTls
from sidecar.state.connect import CONNECT_TIMEOUT_S, REPLY_TIMEOUT_S, PasswordFileError, open_client


def options(settings: StateStore) -> tuple[type, dict[str, Any]]:
    pool = open_client(settings).connection_pool
    return pool.connection_class, pool.connection_kwargs


def test_tls_takes_the_files_that_are_named_and_checks_the_server() -> None:
    tls = StateTls(ca_file="ca.pem", cert_file="cert.pem", key_file="key.pem")
    kind, given = options(StateStore(url="rediss://user:secret@redis.internal:6380/2", tls=tls))
    assert kind is SSLConnection
    assert (given["ssl_ca_certs"], given["ssl_certfile"], given["ssl_keyfile"]) == ("ca.pem", "cert.pem", "key.pem")
    assert (given["host"], given["port"], given["db"]) == ("redis.internal", 6380, 2)
    assert (given["username"], given["password"]) == ("user", "secret")
    assert given.get("ssl_cert_reqs", "required") == "required"
    assert given.get("ssl_check_hostname", True) is True


def test_a_unix_socket_has_credentials_but_no_keep_alive() -> None:
    kind, given = options(StateStore(url="unix://user:secret@/run/redis.sock"))
    assert kind is UnixDomainSocketConnection
    assert (given["path"], given["username"], given["password"]) == ("/run/redis.sock", "user", "secret")
    assert "socket_keepalive" not in given


def test_every_step_is_bounded_and_nothing_is_retried_inside() -> None:
    _, given = options(StateStore(url="redis://127.0.0.1:6379"))
    assert (given["socket_connect_timeout"], given["socket_timeout"]) == (CONNECT_TIMEOUT_S, REPLY_TIMEOUT_S)
    assert given["retry"].get_retries() == 0
    assert given["protocol"] == 3


def test_the_password_file_is_read_at_each_connection(tmp_path: Path) -> None:
    file = tmp_path / "password"
    settings = StateStore(url="redis://user@127.0.0.1:6379", password_file=str(file))
    for password in ("first", "second"):
        file.write_text(password + "\n")
        assert options(settings)[1]["password"] == password
    file.write_bytes(b"caf\xe9\n")
    with pytest.raises(PasswordFileError, match=r"password: byte 4 is not UTF-8\Z"):
        open_client(settings)
    file.unlink()
    with pytest.raises(FileNotFoundError):
        open_client(settings)
