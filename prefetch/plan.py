"""Which files a job makes, from the listing and the manifest, before a byte is copied. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

from prefetch.announcement import Manifest
from prefetch.errors import JobError
from prefetch.names import check_paths, relative_path
from prefetch.source import Source

# Storage classes whose objects cannot be read before they are restored.
_ARCHIVED = ("GLACIER", "DEEP_ARCHIVE")


@dataclass(frozen=True)
class Listed:
    """An object as the listing shows it; `etag` with its quotes."""

    key: str
    size: int
    etag: str
    storage_class: str = "STANDARD"


@dataclass(frozen=True)
class PlannedFile:
    path: str  # below the model's folder
    key: str
    size: int
    etag: str
    sha256: str | None = None


@dataclass(frozen=True)
class Plan:
    """`files` in the order in which they are copied: small ones first, so that an index or a configuration that is
    wrong is known before the weights are copied."""

    source: Source
    files: tuple[PlannedFile, ...]

    @property
    def bytes(self) -> int:
        return sum(file.size for file in self.files)


def make_plan(source: Source, listing: Iterable[Listed], manifest: Manifest | None, markers: Iterable[str]) -> Plan:
    """`markers` are names of objects that announce a model and are none of its files. Raises JobError."""
    named = manifest.files if manifest else {}
    skipped = {source.prefix + marker for marker in markers if marker not in named}
    files = []
    for listed in listing:
        try:
            path = relative_path(listed.key, source.prefix)
        except ValueError as error:
            raise JobError(str(error)) from None
        if path is None or listed.key in skipped:
            continue
        if listed.storage_class in _ARCHIVED:
            raise archived(path, listed.storage_class)
        entry = named.get(path)
        if entry and entry.size is not None and entry.size != listed.size:
            raise JobError(f"{path} has {listed.size} bytes in {source} and {entry.size} in the manifest.")
        files.append(PlannedFile(path, listed.key, listed.size, listed.etag, entry.sha256 if entry else None))
    if not files:
        raise JobError(f"There is no object below {source}; announce the folder that holds the model's files.")
    paths = [file.path for file in files]
    try:
        check_paths(paths)
    except ValueError as error:
        raise JobError(str(error)) from None
    if absent := sorted(named.keys() - set(paths)):
        raise JobError(f"The manifest names {absent[0]}, which is not in {source}.")
    return Plan(source, tuple(sorted(files, key=lambda file: (file.size, file.path))))


def archived(path: str, storage_class: str) -> JobError:
    return JobError(
        f"{path} is archived (storage class {storage_class}); restore the object in S3, then retry the job."
    )


def part_bounds(size: int, part_size: int) -> list[tuple[int, int]]:
    """[begin, end) of each part; one empty part for an empty file."""
    return [(begin, min(begin + part_size, size)) for begin in range(0, size, part_size)] or [(0, 0)]
