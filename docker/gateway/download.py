"""A model from the Hugging Face Hub, where the host reaches it: `download.py MODEL FOLDER`.

MODEL is `owner/name`; its files come to FOLDER/owner/name/hub. Anything else (`s3://…`, a path, nothing) is left to
`first_model.py`."""

import os
import re
import sys
from pathlib import Path

HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
# What vLLM and the gateway read. Not the same weights once more in other formats.
_FILES = ["*.safetensors", "*.json", "*.txt", "*.model", "*.jinja"]


def main(model: str, folder: Path) -> int:
    if not HUB_ID.fullmatch(model):
        return 0
    os.environ["HF_HUB_OFFLINE"] = "0"
    from huggingface_hub import snapshot_download

    target = folder / model / "hub"
    print(f"Downloading {model} to {target}.", flush=True)
    try:
        snapshot_download(model, local_dir=target, allow_patterns=_FILES)
    except Exception as error:
        print(f"{model} cannot be downloaded: {error}. Set MODEL to an s3:// prefix or a path.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
