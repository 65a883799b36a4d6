"""Whoever stops the gateway while it starts sees no trace of what it was doing."""

import signal
import subprocess
import sys

_INTERRUPTED_BY_ITS_IMPORTS = """
import os, runpy, signal, sys

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "gateway.app":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
runpy.run_module("gateway", run_name="__main__")
"""


def test_an_early_ctrl_c_leaves_no_trace() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", _INTERRUPTED_BY_ITS_IMPORTS], capture_output=True, text=True, timeout=120
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (-signal.SIGINT, "", "")
