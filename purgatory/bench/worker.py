"""The measurement of one case in this process: `python -m purgatory.bench.worker CASE`, a JSON object.

It prints the figures.
"""

import json
import os
import sys

from purgatory.bench.case import Case
from purgatory.bench.find import find


def main() -> None:
    """Measure, print, and exit without a clean-up, which would take longer for a million waiting tasks."""
    case = Case(**json.loads(sys.argv[1]))
    figures = find(case.scenario).measure(case)
    sys.stdout.write(json.dumps(figures))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
