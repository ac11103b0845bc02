"""Measures one case in this process: `python -m purgatory.bench.worker CASE`, a JSON object. Prints the figures."""

import json
import os
import sys

from purgatory.bench.case import Case
from purgatory.bench.scenarios import SCENARIOS


def main() -> None:
    """Measure, print, and leave as we are: to take a million waiting tasks down in good order takes longer."""
    case = Case(**json.loads(sys.argv[1]))
    figures = SCENARIOS[case.scenario].measure(case)
    sys.stdout.write(json.dumps(figures))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
