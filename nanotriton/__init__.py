"""nanotriton: train language models, from scratch and in the open, to write Triton GPU kernels."""

import platform
import sys

# The first import of the package is the first line a user sees: say what is supported instead of failing later in a wheel.
if sys.platform != "linux" or platform.machine() != "x86_64":
    raise SystemExit(
        f"nanotriton runs on Linux x86-64 (Triton publishes no wheel for {sys.platform} {platform.machine()}); "
        "on Windows use WSL2, on macOS a Linux container or virtual machine"
    )
if not ((3, 11) <= sys.version_info[:2] <= (3, 14)):
    raise SystemExit(f"nanotriton needs Python 3.11 to 3.14; this is {platform.python_version()}")
