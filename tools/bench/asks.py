"""The requests: whole messages as text, with a mark where the load generator puts its counter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Heads = Literal["usual", "same", "new"]
"""How requests differ.

usual: in the request id, as those of real callers do. same: not at all. new: also in a field that nobody knows, in
front of it, so that no two heads are of one shape.
"""

MARK = "@@@@@@@@@@@@"
"""What paced.c replaces by its counter."""


@dataclass(frozen=True)
class Ask:
    """One kind of request."""

    method: str
    path: str
    body: str = ""

    def template(self, port: int, tag: str, heads: Heads = "usual") -> bytes:
        """Return the whole request; ids begin with ``tag``, so that no two rounds send the same ones."""
        fields = [
            f"Host: 127.0.0.1:{port}",
            "User-Agent: warmroute-bench",
            "Accept: application/json",
        ]
        if self.body:
            fields += ["Content-Type: application/json", f"Content-Length: {len(self.body)}"]
        if heads == "new":
            fields.append(f"X-Nonce: {MARK}")
        fields.append(f"X-Request-Id: {'0' * len(MARK)}" if heads == "same" else f"X-Request-Id: {tag}-{MARK}")
        head = "\r\n".join((f"{self.method} {self.path} HTTP/1.1", *fields))
        return f"{head}\r\n\r\n{self.body}".encode()


_NUMBERS = ",".join(str(100 + number % 100) for number in range(1, 257))

GET = Ask("GET", "/v2/models/bench")
INFER = Ask(
    "POST",
    "/v2/models/bench/infer",
    '{"id":"bench","inputs":[{"name":"bytes","shape":[1,256],"datatype":"INT32","data":[' + _NUMBERS + "]}]}",
)
"""An inference request of about 1 KB."""

LARGE = Ask("GET", "/v2/models/bench/large")
"""Its answer has 64 KiB."""

STREAM = Ask("GET", "/v2/models/bench/stream")

COMPLETION = Ask(
    "POST",
    "/v1/completions",
    '{"model":"bench","max_tokens":16,"prompt":"' + "what the routers for language models take, " * 23 + '"}',
)
"""An OpenAI request of about 1 KB: what vllm-router and sglang-router pass on."""
