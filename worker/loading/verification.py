"""Which of a version's bytes must be read to know what they hash to, and what they then do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from worker.loading import HashedFrom, LoadError, Verify
from worker.loading.digests import FileDigest, content_hash, manifest_hash
from worker.loading.reading import Wanted
from worker.loading.sums import compare_aside, read_sums
from worker.loading.unpacking import plain_name
from worker.loading.version_files import SUMS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from worker.loading.hash_cache import HashCache
    from worker.loading.version_files import SourceFile


class Verification:
    """The hashing of one version: ``wanted`` says what to hash while reading, :meth:`conclude` what came of it."""

    def __init__(
        self,
        directory: Path,
        files: Sequence[SourceFile],
        described: Mapping[str, str],
        verify: Verify,
        cache: HashCache | None,
        known: Mapping[str, FileDigest] | None = None,
        *,
        fetched: bool = False,
        uncounted: Callable[[str], bool] = lambda _: False,
    ) -> None:
        """Look at what is known. ``described``: the sums in ``model.yaml``. ``known``: digests, instead of the cache's.

        ``fetched``: those are of what came just now, for the cache to keep. ``uncounted``: files, by name, that are no
        part of the content: held to their sums where they are among ``files``, else not looked at.

        Raises:
            LoadError: what is written down cannot be read, is missing where it is to be believed, or does not hold.
        """
        self._directory = directory
        self._files = {file.name: file for file in files}
        self._cache = cache
        self._fetched = fetched
        self._uncounted = uncounted
        self._said = read_sums(directory, described)
        for name, said in self._said.items():
            if name not in self._files and not uncounted(name):
                compare_aside(directory / name, said)
        self._believed = verify is Verify.MANIFEST
        if self._believed:
            self._check_complete()
        self.known: dict[str, FileDigest] = {}
        """Digests by name; once it is concluded, of every file, unless what is written down is believed."""
        if verify is not Verify.ALWAYS and known is not None:
            self.known = {name: digest for name, digest in known.items() if digest.whole}
        elif verify is Verify.CACHED and cache is not None and files:
            self.known = cache.recall(directory, files)
        self.wanted = Wanted() if self._believed else self._plan()

    def _check_complete(self) -> None:
        unsaid = next((name for name in self._files if name not in self._said), None)
        if unsaid is not None:
            raise LoadError(
                f"{self._directory / unsaid}: load.verify is manifest, and neither {SUMS} nor files in model.yaml has "
                f"a SHA-256 for it; add it (sha256sum writes it), or set load.verify to cached"
            )

    def _plan(self) -> Wanted:
        sums = set()
        for name, said in self._said.items():
            if name not in self._files:
                continue
            known = self.known.get(name)
            if known is None or not known.sha256:
                sums.add(name)
            else:
                said.compare(self._files[name].path, known.sha256)
        return Wanted(frozenset(name for name in self._files if name not in self.known), frozenset(sums))

    def conclude(self, digests: Mapping[str, FileDigest], sums: Mapping[str, str]) -> tuple[str, HashedFrom]:
        """Return the content hash, given the ``digests`` and SHA-256 ``sums`` of what was wanted, by file name.

        Raises:
            LoadError: a file is not what was written down of it.
        """
        if not self._files:
            return "", HashedFrom.NOTHING
        if self._believed:
            counted = (name for name in self._files if not self._uncounted(name))
            return manifest_hash((name, self._said[name].sha256) for name in counted), HashedFrom.MANIFEST
        self.known.update(digests)
        for name, sha256 in sums.items():
            self.known[name] = FileDigest(self.known[name].size_bytes, self.known[name].blocks, sha256)
        if self._cache is not None and (self.wanted or self._fetched):
            self._cache.remember(self._directory, tuple(self._files.values()), self.known)
        for name, sha256 in sums.items():
            self._said[name].compare(self._files[name].path, sha256)
        plain = ((plain_name(name), digest) for name, digest in self.known.items() if not self._uncounted(name))
        return content_hash(plain), HashedFrom.BYTES if self.wanted.blocks else HashedFrom.CACHE
