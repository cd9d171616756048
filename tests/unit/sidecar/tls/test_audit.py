"""Which rejected peers are a line in the log, and which are only counted."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any

import pytest

from sidecar.tls.names import PeerNames
from sidecar.tls.server import Audit


def test_rejected_names_are_told_however_many_others_are_rejected(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    now = 10.0
    audit = Audit(lambda: now)

    def names(of: str) -> list[str]:
        lines: list[dict[str, Any]] = [
            vars(record)["warmroute_fields"] for record in caplog.records if record.getMessage() == "tls.peer_rejected"
        ]
        return [",".join(line["names"]) for line in lines if line.get("listener", "") == of]

    for number in range(100):
        audit.rejected("it shows no certificate", None, listener="in", peer="10.0.0.1:1")
        audit.rejected("no", PeerNames(("spiffe://a.test/many",)), listener="in", peer=f"10.0.0.2:{number}")
    audit.rejected("no", PeerNames(("spiffe://a.test/one",)), listener="in", peer="10.0.0.3:1")
    audit.rejected("it shows no certificate", None, listener="other", peer="10.0.0.1:1")
    audit.rejected("no", PeerNames((), ("w.test",)), endpoint="w0")
    audit.rejected("it cannot be read", PeerNames(unreadable=True), listener="in", peer="10.0.0.4:1")
    told = Counter(names("in"))
    assert told == {"": 20 + 1, "spiffe://a.test/many": 1 + 20, "spiffe://a.test/one": 1}
    assert names("other") == [""]
    assert names("") == ["w.test"]
    for number in range(30):
        audit.rejected("no", PeerNames((f"spiffe://a.test/{number}",)), listener="in", peer="10.0.0.2:1")
    assert len(names("in")) == sum(told.values()) + 20 - 3, "however many names there are"
    now += 1.0
    audit.flush(now)
    fields: dict[str, Any] = vars(caplog.records[-1])["warmroute_fields"]
    assert fields == {"left_out": 80 + 79 + 13, "named": 79 + 13}
