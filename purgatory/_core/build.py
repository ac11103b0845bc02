"""The build of the extension, for Hatch and by hand.

With `PURGATORY_C=1` in the environment, pip builds the core in C with the package. `python purgatory/_core/build.py`
builds it in place, beside the source. Without the variable the package is the same for all platforms.
"""

import os
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

HERE = Path(__file__).parent
SOURCES = ["module.c", "timer.c", "operation.c", "purgatory.c"]
CHECKED = ["-O1", "-g", "-fsanitize=address,undefined", "-fno-omit-frame-pointer"]


def build(folder: Path = HERE, flags: list[str] | None = None) -> Path:
    """Compile the extension for this Python into `folder`. Raises what the compiler's driver raises."""
    from setuptools import Distribution, Extension
    from setuptools.command.build_ext import build_ext

    extension = Extension(
        "c",
        [str(HERE / source) for source in SOURCES],
        depends=[str(HERE / "core.h")],
        extra_compile_args=flags or [],
        extra_link_args=flags or [],
    )
    command = build_ext(Distribution({"ext_modules": [extension]}))
    command.build_lib = str(folder)
    with tempfile.TemporaryDirectory() as temporary:
        command.build_temp = temporary
        command.ensure_finalized()
        command.run()
    return folder / f"c{sysconfig.get_config_var('EXT_SUFFIX')}"


class CustomBuildHook(BuildHookInterface[Any]):
    """Puts the extension into the wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build, if it is asked for."""
        if os.environ.get("PURGATORY_C", "") in ("", "0"):
            return
        built = build()
        build_data["artifacts"].append(str(built.relative_to(self.root)))
        build_data["pure_python"] = False
        build_data["infer_tag"] = True


if __name__ == "__main__":
    sys.stdout.write(f"{build(flags=CHECKED if '--sanitized' in sys.argv else None)}\n")
