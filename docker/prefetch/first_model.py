"""The first model: `first_model.py MODEL` announces it to prefetch, or deploys a folder that is there already.

MODEL is `s3://bucket/…/name/version/`, which is announced and copied; `owner/name`, which `download.py` has brought;
the path of a folder below PREFETCH_TARGET; or empty, and then nothing happens. Ends when Triton has the model ready.
What Triton has ready already is left alone: loaded anew, its engine would be there twice for a while, and a GPU full.
"""

import json
import re
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

from prefetch import settings
from prefetch.errors import JobError
from prefetch.store import Published
from prefetch.triton import Triton, TritonConfig, entry_name

_URL = "http://prefetch:9500"
_ENDED = ("published", "failed", "cancelled")
# A Triton that was started again meanwhile loses what it was loading; what is copied stays.
_ATTEMPTS = 3
# `docker compose up --wait` takes a service that has ended when it first looks for one that has failed.
_LEAST_SECONDS = 5.0


def main(model: str) -> int:
    if not model:
        print("MODEL is not set: nothing is announced.", flush=True)
        return 0
    try:
        return _announce(model) if model.startswith("s3://") else _deploy(model)
    except JobError as error:
        print(error, file=sys.stderr)
        return 1


def _announce(source: str) -> int:
    parts = source.removeprefix("s3://").strip("/").split("/")
    if len(parts) < 3:
        raise JobError(f"MODEL={source} names no model and version; they are its last two parts: s3://bucket/name/1/.")
    published = [job["source"].rstrip("/") for job in _ask("/v1/jobs")["jobs"] if job["state"] == "published"]
    if source.rstrip("/") in published and _is_ready(entry_name(parts[-2])):
        return 0
    job = _ask("/v1/announcements", {"model": parts[-2], "version": parts[-1], "source": source})
    for attempt in range(1, _ATTEMPTS + 1):
        job = _followed(job)
        if job["state"] == "published":
            return 0
        if job["state"] == "failed" and attempt < _ATTEMPTS:
            print(f"{job.get('error')} Trying again.", flush=True)
            job = _ask(f"/v1/jobs/{job['id']}/retry", {})
    raise JobError(f"{source} was not published: {job.get('error') or job['state']}.")


def _followed(job: dict[str, Any]) -> dict[str, Any]:
    """The job when it has ended, its progress printed."""
    said = ""
    while job["state"] not in _ENDED:
        time.sleep(1)
        job = _ask(f"/v1/jobs/{job['id']}")
        progress = job.get("progress") or {}
        done, total = progress.get("bytes", 0), progress.get("total_bytes", 0)
        now = f"{job['state']} {progress.get('phase') or ''} {done} of {total}"
        if now != said:
            print(now, flush=True)
            said = now
    return job


def _deploy(model: str) -> int:
    """A folder that prefetch did not copy: the same entry in the repository, and loaded."""
    options = settings.load({})
    # The compose file sets them.
    assert options.target
    assert options.triton_repository
    assert options.triton_template
    folder = Path(model) if model.startswith("/") else options.target / model / "hub"
    if not (folder / "config.json").is_file():
        raise JobError(f"{folder} holds no model (config.json); put it there, or set MODEL to another.")
    name = re.sub(r"[^\w.-]", "--", model.removeprefix(str(options.target)).strip("/"))
    if _is_ready(name):
        return 0
    published = Published(name, "1", folder, {"load": {"safetensors_load_strategy": "lazy"}, "files": {}})
    config = TritonConfig(
        tuple(options.triton), options.triton_repository, options.triton_template, options.triton_load_timeout
    )
    print(f"{Triton(config).deploy(published, threading.Event())} is ready.")
    return 0


def _is_ready(name: str) -> bool:
    """Whether every Triton has it ready; says so."""
    try:
        for url in settings.load({}).triton:
            urllib.request.urlopen(f"{url}/v2/models/{urllib.parse.quote(name)}/ready", timeout=30).close()
    except OSError:
        return False
    print(f"{name} is ready already.", flush=True)
    return True


def _ask(path: str, body: dict[str, Any] | None = None) -> Any:
    token = settings.load({}).all_tokens()[0]
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
    try:
        with urllib.request.urlopen(urllib.request.Request(_URL + path, data, headers), timeout=30) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        raise JobError(f"prefetch refuses: {error.read().decode(errors='replace')}") from None


if __name__ == "__main__":
    began = time.monotonic()
    code = main(sys.argv[1] if len(sys.argv) > 1 else "")
    time.sleep(max(0.0, began + _LEAST_SECONDS - time.monotonic()))
    sys.exit(code)
