"""The follow-up: a model's entry in the Triton model repository that prefetch owns, made from a template, and loaded
through Triton's repository API.

The template is a folder laid out as an entry (`config.pbtxt`, `1/model.json`). In its files `${path}` is the published
folder, `${model}`, `${version}` and `${name}` (the entry's name) are what they say, and the keys of READY.json's `load`
stand there under their names. Each entry holds `prefetch.json`, which says whose it is.
"""

import http.client
import json
import shutil
import string
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prefetch.errors import Cancelled, JobError
from prefetch.store import Published

_OWNER = "prefetch.json"


@dataclass(frozen=True)
class TritonConfig:
    urls: tuple[str, ...]
    repository: Path
    template: Path
    load_seconds: float


class Triton:
    def __init__(self, config: TritonConfig) -> None:
        self._config = config
        self._lock = threading.Lock()

    def deploy(self, published: Published, stop: threading.Event) -> str:
        """Write the entry and load it in every Triton; the entry's name. Ends when the model is ready everywhere.

        Raises JobError; the entry is then as it was before.
        """
        name = entry_name(published.model)
        entry = self._config.repository / name
        with self._lock:
            before = self._read(entry, published)
            try:
                _write(entry, self._filled_in(name, published))
                for url in self._config.urls:
                    self._load(url, name, stop)
            except BaseException:
                # Triton keeps the model that works when loading another fails; so must the entry.
                shutil.rmtree(entry, ignore_errors=True)
                if before:
                    _write(entry, before)
                raise
        return name

    def loaded(self) -> dict[Path, str]:
        """Published folders that an entry names, each with why it is kept: loaded, or not known to be unloaded."""
        found = self._config.repository.glob(f"*/{_OWNER}")
        entries = {file.parent.name: Path(json.loads(file.read_bytes())["folder"]) for file in found}
        if not entries:
            return {}
        kept: dict[Path, str] = {}
        for url in self._config.urls:
            try:
                index = _post(f"{url}/v2/repository/index", {}, 30)
                unloaded = {row["name"] for row in index if row.get("state", "UNAVAILABLE") == "UNAVAILABLE"}
            except (OSError, ValueError, KeyError, TypeError, http.client.HTTPException):
                kept |= dict.fromkeys(entries.values(), f"Triton at {url} does not say what it has loaded")
                continue
            kept |= {folder: f"loaded in Triton at {url}" for name, folder in entries.items() if name not in unloaded}
        return kept

    def _read(self, entry: Path, published: Published) -> dict[str, str]:
        """The files of the entry as it is, if it is this model's or none."""
        if not entry.exists():
            return {}
        try:
            owner = json.loads((entry / _OWNER).read_bytes())["model"]
        except (OSError, ValueError, KeyError):
            raise JobError(f"{entry} is not prefetch's (no {_OWNER}); give prefetch a repository of its own.") from None
        if owner != published.model:
            raise JobError(f"{entry} is the entry of the model {owner!r}; two models cannot have one name in Triton.")
        return {str(file.relative_to(entry)): file.read_text() for file in entry.rglob("*") if file.is_file()}

    def _filled_in(self, name: str, published: Published) -> dict[str, str]:
        values = published.ready["load"] | {
            "path": str(published.folder),
            "model": published.model,
            "version": published.version,
            "name": name,
        }
        # They stand between quotes, in JSON and in protobuf's text format.
        quoted = {key: json.dumps(value, ensure_ascii=False)[1:-1] for key, value in values.items()}
        owner = {"model": published.model, "version": published.version, "folder": str(published.folder)}
        files = {_OWNER: json.dumps(owner)}
        for file in sorted(self._config.template.rglob("*")):
            if file.is_file():
                try:
                    text = string.Template(file.read_text()).substitute(quoted)
                except (KeyError, ValueError) as error:
                    raise JobError(
                        f"The template {file} cannot be filled in: {error}; write $$ for a dollar."
                    ) from None
                files[str(file.relative_to(self._config.template))] = text
        return files

    def _load(self, url: str, name: str, stop: threading.Event) -> None:
        deadline = time.monotonic() + self._config.load_seconds
        quoted = urllib.parse.quote(name)
        try:
            _post(f"{url}/v2/repository/models/{quoted}/load", {}, self._config.load_seconds)
        except urllib.error.HTTPError as error:
            raise JobError(f"Triton at {url} cannot load {name}: {_said(error)}.") from None
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise JobError(f"Triton at {url} cannot be asked to load {name}: {error}.") from None
        while not _is_ready(f"{url}/v2/models/{quoted}/ready"):
            if time.monotonic() > deadline:
                raise JobError(f"{name} is loaded in Triton at {url} and did not become ready in time.")
            if stop.wait(0.2):
                raise Cancelled


def entry_name(model: str) -> str:
    """A model's name in Triton, which is one folder and one part of a URL."""
    return model.replace("/", "--")


def _write(entry: Path, files: dict[str, str]) -> None:
    """Each file whole or not at all, since Triton may read the entry at any time; others are removed."""
    for path, text in files.items():
        target = entry / path
        target.parent.mkdir(parents=True, exist_ok=True)
        new = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}")
        new.write_text(text)
        new.rename(target)
    for file in entry.rglob("*"):
        if file.is_file() and str(file.relative_to(entry)) not in files:
            file.unlink()


def _post(url: str, body: dict[str, Any], seconds: float) -> Any:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=seconds) as response:
        text = response.read()
    return json.loads(text) if text else None


def _is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=10) as response:
            return bool(response.status == 200)
    except (OSError, http.client.HTTPException):
        return False


def _said(error: urllib.error.HTTPError) -> str:
    text = error.read().decode(errors="replace")
    try:
        return str(json.loads(text)["error"])
    except (ValueError, KeyError, TypeError):
        return f"HTTP {error.code} {text[:200]}"
