"""A version in an S3-compatible store, ``s3://BUCKET/PREFIX``: ``PREFIX/SHA256SUMS`` says which files there are.

The library ``obstore`` (the extra ``s3``) signs and speaks to it. Credentials, region and endpoint are found as other
tools find them: ``AWS_ACCESS_KEY_ID``, ``AWS_REGION``, ``AWS_ENDPOINT_URL`` and so on in the environment, a web
identity, or the machine's own role.
"""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from worker.loading.sources import MAX_SUMS_BYTES, RemoteFile, SourceError
from worker.loading.version_files import SUMS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

CONNECT_S = 5.0
STALL_S = 10.0


class S3Source:
    """See this module's text."""

    def __init__(self, url: str) -> None:
        try:
            import obstore
            from obstore.store import S3Store
        except ImportError as error:
            raise SourceError("it needs the library obstore; install warmroute[s3]") from error
        self.name = url.rstrip("/")
        self._library: Any = obstore
        try:
            self._store = S3Store.from_url(
                self.name,
                client_options={
                    "allow_http": True,  # who names an endpoint without TLS means it
                    "connect_timeout": timedelta(seconds=CONNECT_S),
                    "read_timeout": timedelta(seconds=STALL_S),
                },
                retry_config={"max_retries": 0},  # who asks tries again, elsewhere too, and can give up
            )
        except obstore.exceptions.BaseError as error:
            raise SourceError(_text(error)) from error

    def sums(self) -> bytes | None:
        """See :class:`worker.loading.sources.Source`."""
        (file,) = self.files([SUMS])
        if file.size_bytes > MAX_SUMS_BYTES:
            raise SourceError(f"{SUMS}: over {MAX_SUMS_BYTES} bytes")
        return b"".join(self.read(file, 0, file.size_bytes)) if file.size_bytes else b""

    def files(self, names: Sequence[str]) -> tuple[RemoteFile, ...]:
        """See :class:`worker.loading.sources.Source`."""
        found = []
        for name in names:
            meta = self._ask(name, partial(self._library.head, self._store, name))
            found.append(RemoteFile(name, int(meta["size"]), meta["e_tag"] or ""))
        return tuple(found)

    def read(self, file: RemoteFile, offset: int, length: int) -> Iterator[bytes]:
        """See :class:`worker.loading.sources.Source`."""
        options: dict[str, Any] = {"range": (offset, offset + length)}
        if file.tag:
            options["if_match"] = file.tag
        answer = self._ask(file.name, lambda: self._library.get(self._store, file.name, options=options))
        pieces = iter(answer.stream())
        while (piece := self._ask(file.name, lambda: next(pieces, None))) is not None:
            yield bytes(piece)

    def close(self) -> None:
        """The library keeps connections by itself."""

    def _ask(self, name: str, ask: Any) -> Any:
        kinds = self._library.exceptions
        try:
            return ask()
        except (FileNotFoundError, kinds.NotFoundError) as error:
            raise SourceError(f"{name}: there is none") from error
        except kinds.PreconditionError as error:
            raise SourceError(f"{name}: is another one by now") from error
        except (kinds.PermissionDeniedError, kinds.UnauthenticatedError) as error:
            raise SourceError(f"{name}: {_text(error)}") from error
        except (kinds.BaseError, OSError) as error:
            raise SourceError(f"{name}: {_text(error)}", again=True) from error


def _text(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else type(error).__name__
