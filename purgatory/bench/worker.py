"""The measurement of one case: `python -P worker.py CASE`, with the library that is the first on `PYTHONPATH`.

Its own bench is not imported: the library of another checkout does the same work as this one, in scenarios that may be
newer than that checkout. Prints the figures as a JSON object.
"""

import json
import os
import sys
from pathlib import Path
from types import ModuleType


def main() -> None:
    """Measure, print, and exit without a clean-up, which would take longer for a million waiting tasks."""
    from purgatory.bench import machine
    from purgatory.bench.case import Case, find

    case = Case(**json.loads(sys.argv[1]))
    figures = machine.run(case.loop, find(case.scenario).main(case))
    sys.stdout.write(json.dumps(figures))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    sys.modules["purgatory.bench"] = bench = ModuleType("purgatory.bench")
    bench.__path__ = [str(Path(__file__).parent)]
    main()
