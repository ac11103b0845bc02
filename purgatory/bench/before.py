"""The measurement of one case with this bench and the library of another checkout: `python -P before.py CASE`.

The library is the first on `PYTHONPATH`. Its own bench, if it has one, is not imported: scenarios that are newer than
the library can be measured, and both libraries do the same work.
"""

import importlib.util
import sys
from pathlib import Path

import purgatory


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
    from purgatory.bench.worker import main

    main()
