"""The memory of a timer or a purgatory itself, without the operations and keys that it holds."""

import sys
from collections import deque
from gc import get_referents
from typing import Final

from purgatory import DelayedOperationPurgatory, TimingWheel, WheelTimer

_CONTAINERS: Final = (dict, list, tuple, set, frozenset, deque)


def own_bytes(owner: DelayedOperationPurgatory | WheelTimer) -> int:
    """The bytes of the containers that are reached from `owner` by way of containers and of wheels alone."""
    found: dict[int, object] = {}
    further: list[object] = [each for each in get_referents(owner) if not isinstance(each, type)]
    while further:
        each = further.pop()
        if id(each) in found:
            continue
        if isinstance(each, _CONTAINERS):
            found[id(each)] = each
        elif not isinstance(each, TimingWheel):
            continue
        else:
            found[id(each)] = each
        further += [referent for referent in get_referents(each) if not isinstance(referent, type)]
    return sum(map(sys.getsizeof, found.values()))
