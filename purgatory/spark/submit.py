"""The script for `spark-submit [its options] submit.py COMMAND …`, with the commands of `purgatory pipeline`."""

import sys
from pathlib import Path

if __name__ == "__main__":
    # The directory of the library replaces this one on the path: the modules here are no top-level ones.
    sys.path[0] = str(Path(__file__).parents[2])
    from purgatory.__main__ import main

    main(["pipeline", *sys.argv[1:]])
