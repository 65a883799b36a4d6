"""Makes the engine's environment and tritonserver as `./dev` does, and links whose names hold no hash.

Run while an image is built, with TVS_HOME set to the folder that the image has them in.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from devtools import environments, triton
from devtools.paths import home
from devtools.pythons import engine_python

environment = environments.bare_engine()
server = triton.server(engine_python())
(home() / "engine").symlink_to(environment.folder.relative_to(home()))
(home() / "tritonserver").symlink_to(server.relative_to(home()))
