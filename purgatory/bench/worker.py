"""The measurement of one case: `python -P worker.py CASE`, with the library that is the first on `PYTHONPATH`.

Its own bench is not imported: the library of another checkout does the same work as this one, in scenarios that may be
newer than that checkout. Prints the figures as a JSON object.
"""

import importlib.util
import json
import os
import sys
from pathlib import Path

import purgatory


def main() -> None:
    """Measure, print, and exit without a clean-up, which would take longer for a million waiting tasks."""
    from purgatory.bench import machine
    from purgatory.bench.case import Case
    from purgatory.bench.registry import find

    case = Case(**json.loads(sys.argv[1]))
    figures = machine.run(case.loop, find(case.scenario).main(case))
    sys.stdout.write(json.dumps(figures))
    sys.stdout.flush()
    os._exit(0)


def _use_this_bench() -> None:
    """Make this directory the package `purgatory.bench` of the imported library."""
    here = Path(__file__).parent
    name = f"{purgatory.__name__}.{here.name}"
    spec = importlib.util.spec_from_file_location(name, here / "__init__.py", submodule_search_locations=[str(here)])
    assert spec is not None
    assert spec.loader is not None
    sys.modules[name] = bench = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(bench)


if __name__ == "__main__":
    _use_this_bench()
    main()
