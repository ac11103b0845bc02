"""The build of the extension, for Hatch and by hand.

pip builds the core in C with the package. If that fails, for example without a compiler, the package contains only the
core in Python. With `PURGATORY_C=1` in the environment a failure is an error. With `PURGATORY_C=0` nothing is built,
and the package is the same for all platforms. `python purgatory/_speedups/build.py [FLAG...]` builds the extension in
place, next to the source, with flags for the compiler.
"""

import ast
import os
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

HERE = Path(__file__).parent
SOURCES = ["module.c", "timer.c", "operation.c", "await.c", "purgatory.c", "frames.c"]
DOCUMENTED = {
    "_timer/wheels.py": ["TimerBase"],
    "_core/operation.py": ["OperationBase"],
    "_core/purgatory.py": ["PurgatoryBase"],
}


def docs() -> str:
    """Return the signatures and docstrings of the public methods of the base classes in Python, as macros."""
    lines = []
    for file, names in DOCUMENTED.items():
        tree = ast.parse((HERE.parent / file).read_text())
        for class_ in [each for each in tree.body if isinstance(each, ast.ClassDef) and each.name in names]:
            methods = [each for each in class_.body if isinstance(each, ast.FunctionDef)]
            for method in [each for each in methods if each.name[0] != "_" or each.name == "__init__"]:
                for argument in ast.walk(method.args):
                    if isinstance(argument, ast.arg):
                        argument.annotation = None
                is_property = any(
                    isinstance(each, ast.Name) and each.id == "property" for each in method.decorator_list
                )
                signature = "" if is_property else f"{method.name}(${ast.unparse(method.args)})\n--\n\n"
                text = (signature + (ast.get_docstring(method) or "")).replace("\\", "\\\\").replace('"', '\\"')
                lines.append(f"#define DOC_{class_.name}_{method.name} \\")
                lines.append(" \\\n".join(f'    "{line}"' for line in text.replace("\n", "\\n\n").split("\n")) + "\n")
    return "\n".join(lines)


def _constant(name: str) -> str:
    return name.upper().replace(" ", "_")


def _list(items: Iterable[str]) -> str:
    return f"{{ {', '.join(items)} }}"


def states() -> str:
    """Return the table of `states.py` for C: enumerations, and macros of its rows and names."""
    tree = ast.parse((HERE.parent / "_core" / "states.py").read_text())
    assigned = [each for each in tree.body if isinstance(each, ast.AnnAssign) and each.value is not None]
    values = {ast.unparse(each.target): each.value for each in assigned if each.value is not None}
    table: dict[str, tuple[str | None, dict[str, str]]] = ast.literal_eval(values["TABLE"])
    outcomes = list(dict.fromkeys(outcome for outcome, _ in table.values() if outcome))
    events = dict.fromkeys(event for _, steps in table.values() for event in steps)
    rows = {
        state: _list(f"[{_constant(event)}] = {_constant(after)}" for event, after in steps.items())
        for state, (_, steps) in table.items()
        if steps
    }
    of_states = {state: f"{_constant(outcome)}_O" if outcome else "NONE" for state, (outcome, _) in table.items()}
    first_done = next(state for state, (_, steps) in table.items() if not steps)
    return f"""\
typedef enum {_list(["UNMADE", *map(_constant, table), "STATES"])} State; /* UNMADE: the constructor was not called. */
typedef enum {_list([*map(_constant, events), "EVENTS"])} Event;
enum {_list(["NONE = -1", *(f"{_constant(outcome)}_O" for outcome in outcomes), "OUTCOMES"])};
#define FIRST_DONE {_constant(first_done)}
#define STEPS_OF_STATES {_list(f"[{_constant(state)}] = {row}" for state, row in rows.items())}
#define OUTCOMES_OF_STATES {_list(["[UNMADE] = NONE", *(f"[{_constant(s)}] = {o}" for s, o in of_states.items())])}
#define NAMES_OF_STATES {_list(f'"{name}"' for name in ["unmade", *table])}
#define NAMES_OF_OUTCOMES {_list(f'"{name}"' for name in outcomes)}
"""


def build(folder: Path = HERE, flags: list[str] | None = None) -> Path:
    """Compile the extension for this Python into `folder`.

    Raise the exceptions of the compiler's driver, and `RuntimeError` on a free-threaded Python.
    """
    if sysconfig.get_config_var("Py_GIL_DISABLED"):  # the import of the extension would turn the GIL on
        raise RuntimeError("the core in C needs the GIL, which this free-threaded Python doesn't have")
    from setuptools import Distribution, Extension
    from setuptools.command.build_ext import build_ext

    built = folder / f"c{sysconfig.get_config_var('EXT_SUFFIX')}"
    strip = ["-Wl,--strip-all"] if sys.platform == "linux" and not flags else []
    with tempfile.TemporaryDirectory() as temporary:
        Path(temporary, "docs.h").write_text(docs())
        Path(temporary, "states.h").write_text(states())
        extension = Extension(
            "c",
            [str(HERE / source) for source in SOURCES],
            depends=[str(HERE / "core.h")],
            include_dirs=[temporary],
            extra_compile_args=flags or [],
            extra_link_args=flags or strip,
        )
        command = build_ext(Distribution({"ext_modules": [extension]}))
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
        """Build if possible. With `PURGATORY_C=1`, raise the exceptions of the compiler's driver."""
        asked = os.environ.get("PURGATORY_C", "")
        if asked == "0" or not (asked or sys.implementation.name == "cpython"):
            return
        try:
            built = build()
        except Exception as exception:  # no compiler, headers, setuptools, GIL or place to write to
            if asked:
                raise
            self.app.display_warning(f"the core in C was not built ({exception}): the package has the one in Python")
            return
        build_data["artifacts"].append(str(built.relative_to(self.root)))
        build_data["pure_python"] = False
        build_data["infer_tag"] = True


if __name__ == "__main__":
    sys.stdout.write(f"{build(flags=sys.argv[1:])}\n")
