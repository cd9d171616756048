from __future__ import annotations

import time
from pathlib import Path

import msgspec
import pytest

from sidecar.cli.main import main
from sidecar.settings import Settings
from sidecar.tls.expiry import DAY_S, Calendar, Ending, ExpiryWatch, endings, expired, places
from sidecar.tls.material import MaterialError
from tests.support.certificates import Authority, write


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


def settings(directory: Path, authority: Authority, days: float) -> Settings:
    cert_file, key_file = authority.issue("a.test", days=days).write(directory, "a")
    tls = {"cert_file": cert_file, "key_file": key_file, "client_auth": "required"}
    tls["ca_file"] = write(directory / "ca.pem", authority.pem + Authority("another").pem)
    listener = {"address": "127.0.0.1:0", "name": "in", "tls": tls}
    return msgspec.convert({"version": 1, "listeners": [listener]}, Settings)


def test_the_ends_of_all_files_that_are_used(tmp_path: Path, authority: Authority) -> None:
    listener, upstream = places(settings(tmp_path, authority, 60))
    certificate, ca = endings(listener)
    now = time.time()
    assert (certificate.of, certificate.kind, ca.kind) == ("in", "certificate", "ca")
    assert abs(certificate.not_after - now - 60 * DAY_S) < 60
    assert abs(ca.not_after - now - 365 * DAY_S) < 60
    assert endings(upstream) == ()


def test_files_that_could_not_be_used_have_no_ends(tmp_path: Path, authority: Authority) -> None:
    listener, _ = places(settings(tmp_path, authority, 60))
    write(tmp_path / "a.key", authority.issue("b.test").key)
    with pytest.raises(MaterialError, match="do not belong together"):
        endings(listener)


def test_only_what_ends_within_thirty_days_is_said(tmp_path: Path, authority: Authority) -> None:
    assert list(expired(settings(tmp_path, authority, 31), time.time())) == []
    ((ending, days),) = expired(settings(tmp_path, authority, -2), time.time())
    assert (ending.of, ending.kind, round(days)) == ("in", "certificate", -2)


def test_a_warning_at_each_step_and_none_between() -> None:
    calendar = Calendar()
    ending = Ending("in", "certificate", "a.pem", 100 * DAY_S)
    said = [day for day in range(102) if calendar.due(ending, day * DAY_S)]
    assert said == [70, 93, 99, 100]
    renewed = Ending("in", "certificate", "a.pem", 105 * DAY_S)
    assert calendar.due(renewed, 101 * DAY_S), "a new certificate that ends soon too"
    assert not calendar.due(renewed, 101.5 * DAY_S)


def test_a_first_look_at_one_that_ends_soon_warns_once() -> None:
    calendar = Calendar()
    ending = Ending("in", "ca", "a.pem", 3 * DAY_S)
    assert calendar.due(ending, 0.0)
    assert not calendar.due(ending, 1.0)


def test_what_was_last_good_is_shown_while_the_files_are_not(
    tmp_path: Path, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    configured = settings(tmp_path, authority, 3)
    watch = ExpiryWatch(configured, time.time)
    found = endings(places(configured)[0])
    watch.take({"in": found})
    watch.take({})
    assert watch.endings == found
    assert [record.getMessage() for record in caplog.records] == ["tls.certificate_ends"]


def config(directory: Path, cert_file: str, key_file: str) -> Path:
    path = directory / "w.yaml"
    path.write_text(
        "version: 1\nlisteners:\n"
        f"  - {{address: '127.0.0.1:0', name: in, tls: {{cert_file: {cert_file}, key_file: {key_file}}}}}\n"
        "models: [{name: m, endpoints: ['https://w.test:9001'], default: true}]\n"
    )
    return path


def test_config_check_warns_of_what_has_ended(
    tmp_path: Path, authority: Authority, capsys: pytest.CaptureFixture[str]
) -> None:
    path = config(tmp_path, *authority.issue("a.test", days=-2).write(tmp_path, "a"))
    assert main(["config", "check", str(path)]) == 0
    out = capsys.readouterr().out
    assert "TLS, client certificates not asked for" in out
    assert f"warning: in: {tmp_path}/a.pem: the certificate ended 2.0 days ago: renew it" in out


def test_config_check_refuses_a_pair_that_is_none(
    tmp_path: Path, authority: Authority, capsys: pytest.CaptureFixture[str]
) -> None:
    cert_file, _ = authority.issue("a.test").write(tmp_path, "a")
    _, key_file = authority.issue("a.test").write(tmp_path, "b")
    assert main(["config", "check", str(config(tmp_path, cert_file, key_file))]) == 2
    assert f"{cert_file} and {key_file} do not belong together" in capsys.readouterr().err
