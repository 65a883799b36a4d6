"""The commands for people: each takes its parsed arguments and the settings, prints, and returns the exit code.

0: done. 1: it failed; one sentence on stderr says why. Wrong settings and arguments (2) are found before.
"""

import json
import signal
import sys
import threading
import time
import urllib.error
import urllib.request
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from prefetch import assemble, space
from prefetch.announcement import Announcement, Manifest
from prefetch.errors import Cancelled, JobError
from prefetch.progress import Progress
from prefetch.settings import Settings
from prefetch.source import Source
from prefetch.store import Published, Store
from prefetch.verify import problems
from service_base import strict_json
from service_base.errors import SettingsError, mistake
from service_base.files import read_text

# As a shell shows an end by SIGINT.
_INTERRUPTED = 130


def pull(arguments: Namespace, settings: Settings) -> int:
    """The same job as the service's, with a progress bar."""
    announcement = _announcement(arguments)
    engine = assemble.engine(settings, for_jobs=True)
    progress, stop = Progress(), threading.Event()
    result: list[Published | BaseException] = []

    def run() -> None:
        try:
            result.append(engine.run(announcement, time.time(), progress, stop))
        except BaseException as error:
            result.append(error)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    thread = threading.Thread(target=run)
    began = time.monotonic()
    thread.start()
    if sys.stderr.isatty() and not arguments.quiet:
        _show(progress, thread)
    thread.join()
    (found,) = result
    if isinstance(found, Cancelled):
        print("prefetch: interrupted; the same command goes on where this one stopped.", file=sys.stderr)
        return _INTERRUPTED
    if isinstance(found, BaseException):
        raise found
    seconds = time.monotonic() - began
    amount = space.text(progress.downloaded)
    print(f"{found.folder}  {space.text(found.ready['bytes'])}, {amount} read in {seconds:.1f} s")
    return 0


def announce(arguments: Namespace, settings: Settings) -> int:
    """Send an announcement to a running service."""
    announcement = _announcement(arguments)
    tokens = settings.all_tokens()
    if not tokens:
        raise SettingsError("Give the service's token as PREFETCH_TOKENS or with --tokens-file.")
    job = _ask(f"{arguments.url.rstrip('/')}/v1/announcements", tokens[0], announcement.model_dump(exclude_none=True))
    print(f"{arguments.url.rstrip('/')}/v1/jobs/{job['id']}  {job['state']}")
    return 0


def ls(arguments: Namespace, settings: Settings) -> int:
    """What is published."""
    rows = []
    for candidate in assemble.engine(settings, for_jobs=False).candidates():
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(candidate.last_used))
        size = space.text(candidate.bytes)
        rows.append((candidate.model, candidate.version, size, used, candidate.kept or ""))
    _table(("model", "version", "size", "last used", "kept"), rows)
    return 0


def pin(arguments: Namespace, settings: Settings) -> int:
    """Never remove a version to make room."""
    store, published = _published(arguments, settings)
    store.pin(published.model, published.version)
    print(f"{published.model} {published.version} is pinned.")
    return 0


def unpin(arguments: Namespace, settings: Settings) -> int:
    """Remove a pin."""
    store, published = _published(arguments, settings)
    was = store.unpin(published.model, published.version)
    print(f"{published.model} {published.version} {'is not pinned any more' if was else 'was not pinned'}.")
    return 0


def gc(arguments: Namespace, settings: Settings) -> int:
    """Make the room that the watermarks ask for."""
    engine = assemble.engine(settings, for_jobs=False)
    if arguments.dry_run:
        candidates = engine.removable()
        stale = engine.store.stale_staging(settings.staging_seconds)
    else:
        candidates = engine.make_room()
        stale = engine.remove_stale_staging(settings.staging_seconds)
    verb = "would be removed" if arguments.dry_run else "removed"
    for candidate in candidates:
        print(f"{candidate.model} {candidate.version} ({space.text(candidate.bytes)}) {verb}")
    for folder in stale:
        print(f"{folder} {verb}")
    if not candidates and not stale:
        print("There is nothing to remove.")
    return 0


def verify(arguments: Namespace, settings: Settings) -> int:
    """Read published files again and compare them with what READY.json says."""
    store = Store(assemble.published(settings))
    wanted = [_published(arguments, settings)[1]] if arguments.model else store.all()
    bad = 0
    for published in wanted:
        found = problems(published.folder, published.ready)
        bad += bool(found)
        print(f"{published.model} {published.version}: {'; '.join(found) if found else 'ok'}")
    if not wanted:
        print("Nothing is published.")
    return 1 if bad else 0


def _announcement(arguments: Namespace) -> Announcement:
    """Model and version are the last two folders of the source unless given. Raises SettingsError."""
    try:
        source = Source.parse(arguments.source)
        folders = source.prefix.removesuffix("/").split("/")
        model = arguments.model or (folders[-2] if len(folders) > 1 else None)
        version = arguments.version or folders[-1]
        if not model or not version:
            raise SettingsError(f"{source} does not end in MODEL/VERSION/; give --model and --version.")
        return Announcement(
            model=model,
            version=version,
            source=str(source),
            manifest=_manifest(arguments.manifest) if arguments.manifest else None,
            priority=getattr(arguments, "priority", 0),
            pin=arguments.pin,
        )
    except ValidationError as error:
        place, what = mistake(error)
        raise SettingsError(f"The announcement's {place} is wrong: {what}.") from None
    except ValueError as error:
        raise SettingsError(f"The source is wrong: {error}.") from None


def _manifest(file: Path) -> Manifest:
    """Raises SettingsError."""
    try:
        return strict_json.model_of(Manifest, read_text(file))
    except ValidationError as error:
        place, what = mistake(error)
        raise SettingsError(f"The manifest {file} is wrong at {place or 'its beginning'}: {what}.") from None
    except ValueError as error:
        raise SettingsError(f"The manifest {file} is not valid JSON: {error}.") from None


def _published(arguments: Namespace, settings: Settings) -> tuple[Store, Published]:
    store = Store(assemble.published(settings))
    version = arguments.version or store.current(arguments.model)
    published = store.published(arguments.model, version) if version else None
    if published is None:
        raise JobError(f"{arguments.model} {version or ''} is not published below {store.target}.".replace("  ", " "))
    return store, published


def _ask(url: str, token: str, body: Any) -> Any:
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read())
    except urllib.error.HTTPError as error:
        text = error.read().decode(errors="replace")
        try:
            text = json.loads(text)["error"]["message"]
        except (ValueError, KeyError, TypeError):
            text = f"HTTP {error.code} {text[:200]}"
        raise JobError(f"The service at {url} refuses: {text}") from None
    except (OSError, ValueError) as error:
        raise JobError(f"The service at {url} cannot be asked: {error}.") from None


def _show(progress: Progress, thread: threading.Thread) -> None:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import Progress as Bars

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Bars(*columns, console=Console(stderr=True)) as bars:
        bar = bars.add_task(progress.phase, total=None)
        while thread.is_alive():
            thread.join(0.1)
            done, total = progress.totals()
            bars.update(bar, description=progress.phase, completed=done, total=total or None)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    for row in (head, *rows):
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
