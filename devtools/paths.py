"""Where things are: the checkout, its state folder, and the cache that all checkouts of a user share."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCKS = ROOT / "locks"

# Logs and generated files of this checkout; git ignores it.
STATE = ROOT / ".dev"


def home() -> Path:
    """The cache of environments, the unpacked tritonserver and the models. TVS_HOME moves it."""
    if chosen := os.environ.get("TVS_HOME"):
        return Path(chosen).expanduser().resolve()
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache).resolve() / "triton-vllm-stack"
