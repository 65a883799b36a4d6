"""Before the first start: a key for clients, printed once, and the token that prefetch and whoever announces share.

`first_start.py KEYS TOKEN`: the file of the gateway's keys and the file of the token. What is there already stays."""

import os
import secrets
import subprocess
import sys
from pathlib import Path


def main(keys: Path, token: Path) -> int:
    if not token.exists():
        made = token.with_suffix(".new")
        made.touch(mode=0o600)
        made.write_text(secrets.token_urlsafe(32) + "\n")
        made.rename(token)
    if keys.exists():
        return 0
    # Its own process: it prints the key alone on standard output.
    command = [sys.executable, "-m", "gateway", "keys", "new", "first", "--keys-file", str(keys)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=os.environ | {"GATEWAY_KEYS_FILE": str(keys)})
    if done.returncode == 0:
        print(f"The key for clients, shown this once: {done.stdout.strip()}", flush=True)
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
