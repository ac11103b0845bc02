"""The build of the extension, for Hatch and by hand.

pip builds the core in C with the package. Where that fails, as without a compiler, the package has the core in Python
alone. With `PURGATORY_C=1` in the environment a failure is an error; with `PURGATORY_C=0` nothing is built, and the
package is the same for all platforms. `python purgatory/_speedups/build.py` builds the extension in place, beside the
source, and writes `docs.h`.
"""

import ast
import os
import shutil
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

HERE = Path(__file__).parent
SOURCES = ["module.c", "timer.c", "operation.c", "purgatory.c"]
DOCUMENTED = {
    "_core/operation.py": ("DelayedOperation", "force_complete cancel done expired cancelled"),
    "_core/purgatory.py": ("DelayedOperationPurgatory", "try_complete_else_watch check_and_complete"),
    "_timer/handle.py": ("TimerHandle", "cancel cancelled when"),
    "_timer/timer.py": ("WheelTimer", "add cancel reschedule time call_at call_later close clock"),
}
CHECKED = ["-O1", "-g", "-fsanitize=address,undefined", "-fno-omit-frame-pointer"]


def docs() -> str:
    """The signatures and docstrings of public methods that are in C, from the Python core, as macros."""
    lines = ["/* The docstrings of the Python core. build.py writes this file. */\n"]
    for file, (name, methods) in DOCUMENTED.items():
        tree = ast.parse((HERE.parent / file).read_text())
        body = next(each.body for each in tree.body if isinstance(each, ast.ClassDef) and each.name == name)
        for method in [each for each in body if isinstance(each, ast.FunctionDef) and each.name in methods.split()]:
            for argument in ast.walk(method.args):
                if isinstance(argument, ast.arg):
                    argument.annotation = None
            is_property = any(isinstance(each, ast.Name) and each.id == "property" for each in method.decorator_list)
            signature = "" if is_property else f"{method.name}(${ast.unparse(method.args)})\n--\n\n"
            text = (signature + (ast.get_docstring(method) or "")).replace("\\", "\\\\").replace('"', '\\"')
            lines.append(f"#define DOC_{name}_{method.name} \\")
            lines.append(" \\\n".join(f'    "{line}"' for line in text.replace("\n", "\\n\n").split("\n")) + "\n")
    return "\n".join(lines)


def build(folder: Path = HERE, flags: list[str] | None = None) -> Path:
    """Compile the extension for this Python into `folder`. Raises what the compiler's driver raises."""
    from setuptools import Distribution, Extension
    from setuptools.command.build_ext import build_ext

    extension = Extension(
        "c",
        [str(HERE / source) for source in SOURCES],
        depends=[str(HERE / "core.h"), str(HERE / "docs.h")],
        extra_compile_args=flags or [],
        extra_link_args=flags or [],
    )
    command = build_ext(Distribution({"ext_modules": [extension]}))
    built = folder / f"c{sysconfig.get_config_var('EXT_SUFFIX')}"
    with tempfile.TemporaryDirectory() as temporary:
        command.build_lib = command.build_temp = temporary
        command.ensure_finalized()
        command.run()
        fresh = built.with_suffix(f".{os.getpid()}")
        shutil.copy(Path(temporary, built.name), fresh)
    fresh.replace(built)  # not over the file that a process may be running
    return built


class CustomBuildHook(BuildHookInterface[Any]):
    """Puts the extension into the wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build, where it can be done. Raises what the compiler's driver raises if it must be."""
        asked = os.environ.get("PURGATORY_C", "")
        # On a free-threaded CPython the import of the extension would turn the GIL on.
        is_usual = sys.implementation.name == "cpython" and not sysconfig.get_config_var("Py_GIL_DISABLED")
        if asked == "0" or not (asked or is_usual):
            return
        try:
            built = build()
        except Exception as exception:  # no compiler, no headers of Python's, no setuptools, no place to write to
            if asked:
                raise
            self.app.display_warning(f"the core in C was not built ({exception}): the package has the one in Python")
            return
        build_data["artifacts"].append(str(built.relative_to(self.root)))
        build_data["pure_python"] = False
        build_data["infer_tag"] = True


if __name__ == "__main__":
    (HERE / "docs.h").write_text(docs())
    sys.stdout.write(f"{build(flags=CHECKED if '--sanitized' in sys.argv else None)}\n")
