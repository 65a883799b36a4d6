"""The commands of ./dev."""

import argparse
import signal
import sys
from types import FrameType

from devtools import environments, models, triton
from devtools.errors import DevError
from devtools.lock import renew


def main() -> int:
    if sys.argv[1] == "lock":
        renew()
    if sys.argv[1] == "setup":
        environments.services(); d=environments.dev()
        environments.engine()
        from devtools.pythons import engine_python
        print(triton.server(engine_python()))
        print(models.tiny(d)); print(models.smollm2())
    return 0
