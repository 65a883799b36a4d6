"""`python -m prefetch`: starts the command line (`command_line.py`)."""

import gc
import sys

if __name__ == "__main__":
    # Importing makes many objects and no garbage; looking for some, again and again, is a fifth of the start's cost.
    gc.disable()
    from prefetch.command_line import main

    gc.freeze()
    gc.enable()
    sys.exit(main())
