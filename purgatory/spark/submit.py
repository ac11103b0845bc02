"""What `spark-submit` runs: `spark-submit [its options] submit.py COMMAND …`, the commands of `purgatory pipeline`."""

import sys
from pathlib import Path

if __name__ == "__main__":
    # In place of this directory, whose modules are no top-level ones, the one that this library lies in.
    sys.path[0] = str(Path(__file__).parents[2])
    from purgatory.__main__ import main

    main(["pipeline", *sys.argv[1:]])
