"""The memory of this process, read with the standard library alone."""

import os
from pathlib import Path

STATM = Path("/proc/self/statm")


def resident() -> int:
    """Bytes of this process in memory now, or the most so far on a system without `/proc`."""
    if STATM.exists():
        return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
