"""Asking a process of ours over HTTP: one small GET, bounded in time."""

from __future__ import annotations

import http.client
import json
from typing import Any

TIMEOUT_S = 2.0
MAX_ANSWER_BYTES = 1 << 20


def ask(address: str, path: str) -> tuple[int, bytes]:
    """Return status and body of a GET at ``HOST:PORT`` or ``http://HOST:PORT``.

    The status is 0, and the body says why, where no answer came. The body is cut at one mebibyte.
    """
    connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=TIMEOUT_S)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read(MAX_ANSWER_BYTES)
    except (OSError, http.client.HTTPException) as error:
        return 0, str(error).encode()
    finally:
        connection.close()


def ask_json(address: str, path: str) -> dict[str, Any]:
    """Return the JSON object at ``path``, {} where there is none."""
    status, body = ask(address, path)
    try:
        answer = json.loads(body) if status == http.client.OK else {}
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}
