"""The walk over frames that tells a server whether nothing is left to run in any of them."""

import sys
from types import CodeType, FrameType
from typing import Any

import pytest

from purgatory._frames import place_of, walk


def nested(depth: int, make: Any) -> Any:
    """Call `make` below so many frames of this function."""
    return make() if depth == 0 else nested(depth - 1, make)


def frames() -> list[FrameType]:
    """The frames that wait for the function that calls this, up to that of `outermost`."""
    found = []
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code is not END:
        found.append(frame)
        frame = frame.f_back
    return found


def outermost(depth: int, make: Any) -> Any:
    """Stands for the server."""
    return nested(depth, make)


END: CodeType = outermost.__code__


class TestWalk:
    @pytest.mark.parametrize("depth", [0, 1, 5, 40])
    def test_it_stops_at_the_first_place_that_is_not_known_to_be_harmless(self, depth: int) -> None:
        def look() -> None:
            all_ = frames()
            for index, frame in enumerate(all_):
                places = [place_of(each) for each in all_]
                for unknown in ({}, {places[index]: False}):
                    known = {place: True for place in places if place != places[index]} | unknown
                    assert walk(all_[0], END, known) is all_[places.index(place_of(frame))]

        outermost(depth, look)

    def test_chains_of_other_places_have_other_numbers(self) -> None:
        def look() -> Any:
            all_ = frames()
            known = dict.fromkeys(map(place_of, all_), True)
            assert walk(all_[0], END, known) == walk(all_[0], END, known)
            return walk(all_[0], END, known)

        numbers = [outermost(depth, look) for depth in range(20)]
        assert all(isinstance(number, int) for number in numbers)
        assert len(set(numbers)) == 20

    def test_order_counts(self) -> None:
        def one(make: Any) -> Any:
            return make()

        def two(make: Any) -> Any:
            return make()

        def look() -> Any:
            all_ = frames()
            return walk(all_[0], END, dict.fromkeys(map(place_of, all_), True))

        assert outermost(0, lambda: one(lambda: two(look))) != outermost(0, lambda: two(lambda: one(look)))

    def test_the_end_may_be_the_first_and_may_be_missing(self) -> None:
        frame = sys._getframe(1)
        assert walk(frame, frame.f_code, {}) == 0
        known = {}
        outer: FrameType | None = frame
        while outer is not None:
            known[place_of(outer)] = True
            outer = outer.f_back
        assert walk(frame, END, known) is None
