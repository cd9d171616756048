"""A version below an http(s) URL: ``URL/SHA256SUMS`` says which files there are, and each is read in ranges."""

from __future__ import annotations

import http.client
import re
import ssl
import urllib.error
import urllib.request
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

from worker.loading.sources import MAX_SUMS_BYTES, RemoteFile, SourceError
from worker.loading.version_files import SUMS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

STALL_S = 10.0
"""For connecting, and for each piece."""
PIECE_BYTES = 256 << 10
_TOTAL = re.compile(r"bytes (\d+)-(\d+)/(\d+)")
_AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})


class _NoDowngrade(urllib.request.HTTPRedirectHandler):
    """Follows redirects, but never from https to anything else."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: object,
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        if req.type == "https" and urlsplit(newurl).scheme != "https":
            raise SourceError(f"{code}: redirected from https to {urlsplit(newurl).scheme}")
        return super().redirect_request(req, fp, code, msg, headers, newurl)  # type: ignore[arg-type]


class HttpSource:
    """See this module's text."""

    def __init__(self, url: str, stall_s: float = STALL_S) -> None:
        parts = urlsplit(url)
        self._base = url.partition("?")[0].rstrip("/")
        self._query = f"?{parts.query}" if parts.query else ""
        self.name = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}"
        self._stall_s = stall_s
        self._opener = urllib.request.OpenerDirector()
        for handler in (
            urllib.request.HTTPHandler(),
            urllib.request.HTTPSHandler(context=ssl.create_default_context()),
            urllib.request.HTTPDefaultErrorHandler(),
            urllib.request.HTTPErrorProcessor(),
            _NoDowngrade(),
        ):
            self._opener.add_handler(handler)

    def sums(self) -> bytes | None:
        """See :class:`worker.loading.sources.Source`."""
        with self._open(SUMS, {}) as answer:
            found = _body(answer, MAX_SUMS_BYTES + 1)
        if len(found) > MAX_SUMS_BYTES:
            raise SourceError(f"{SUMS}: over {MAX_SUMS_BYTES} bytes")
        return found

    def files(self, names: Sequence[str]) -> tuple[RemoteFile, ...]:
        """See :class:`worker.loading.sources.Source`."""
        return tuple(self._file(name) for name in names)

    def _file(self, name: str) -> RemoteFile:
        with self._open(name, {"Range": "bytes=0-0"}) as answer:
            tag = answer.headers.get("ETag") or answer.headers.get("Last-Modified") or ""
            if answer.status == 206:
                matched = _TOTAL.fullmatch(answer.headers.get("Content-Range", ""))
                if matched is None:
                    raise SourceError(f"{name}: a part without a Content-Range that tells the whole length")
                return RemoteFile(name, int(matched[3]), "" if tag.startswith("W/") else tag)
            empty = (
                answer.headers.get("Content-Range") if answer.status == 416 else answer.headers.get("Content-Length")
            )
            if empty in ("bytes */0", "0"):  # no range of it can be had
                return RemoteFile(name, 0, tag)
        raise SourceError(f"{name}: the server does not answer ranges (status {answer.status} to one)")

    def read(self, file: RemoteFile, offset: int, length: int) -> Iterator[bytes]:
        """See :class:`worker.loading.sources.Source`."""
        fields = {"Range": f"bytes={offset}-{offset + length - 1}"}
        if file.tag:
            fields["If-Range"] = file.tag
        with self._open(file.name, fields) as answer:
            matched = _TOTAL.fullmatch(answer.headers.get("Content-Range", ""))
            if answer.status != 206 or matched is None or int(matched[3]) != file.size_bytes:
                raise SourceError(f"{file.name}: is another one by now")
            if (int(matched[1]), int(matched[2])) != (offset, offset + length - 1):
                raise SourceError(f"{file.name}: the server answers another range than was asked for")
            while piece := _body(answer, PIECE_BYTES):
                yield piece

    def close(self) -> None:
        """Nothing is kept open."""

    def _open(self, name: str, fields: dict[str, str]) -> http.client.HTTPResponse:
        url = f"{self._base}/{quote(name)}{self._query}"
        request = urllib.request.Request(url, headers={"Accept-Encoding": "identity", **fields})  # noqa: S310 - its handlers
        try:
            answer = self._opener.open(request, timeout=self._stall_s)
        except urllib.error.HTTPError as error:
            if error.code == 416 and fields.get("Range") == "bytes=0-0":
                return error  # type: ignore[return-value]
            with error:
                raise SourceError(f"{name}: status {error.code}", again=error.code in _AGAIN) from error
        except urllib.error.URLError as error:
            raise SourceError(f"{name}: {_text(error.reason)}", again=True) from error
        except (OSError, http.client.HTTPException) as error:
            raise SourceError(f"{name}: {_text(error)}", again=True) from error
        found: http.client.HTTPResponse = answer
        return found


def _body(answer: http.client.HTTPResponse, most_bytes: int) -> bytes:
    try:
        return answer.read(most_bytes)
    except (OSError, http.client.HTTPException) as error:
        raise SourceError(f"the answer broke off: {_text(error)}", again=True) from error


def _text(error: object) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
