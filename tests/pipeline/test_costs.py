"""The cost of a purgatory's work, the configuration recommended for it, and the format of numbers and names."""

import math
import runpy
import sys
from typing import Any

import pytest

from purgatory import DelayedOperationPurgatory, VirtualClock
from purgatory.spark import costs, words
from purgatory.spark.configurations import ConfigurationChoice, choose
from purgatory.spark.simulate import Configuration
from tests.pipeline.reports import HOSTILE, Row


def _costs(tick: float, cost: float, late: float | None = 0.0009, dead: int = 900, **settings: Any) -> Row:
    row = {"tick": tick, "wheel_size": 20, "purge_interval": 1000, "timeout": 1.0}
    return row | {"cost": cost, "late_p99": late, "peak_dead": dead} | settings


class TestTheRecommendedConfiguration:
    @pytest.mark.parametrize(
        ("rows", "tick"),
        [
            ([_costs(0.001, 4.0), _costs(0.005, 2.0), _costs(0.01, 3.0)], 0.005),
            ([_costs(0.001, 4.0), _costs(0.005, 2.0, late=0.011)], 0.001),
            ([_costs(0.001, 2.05), _costs(0.005, 2.0), _costs(0.002, 2.05, dead=1)], 0.005),
            ([_costs(0.001, 2.04), _costs(0.005, 2.0), _costs(0.002, 2.039, dead=899)], 0.002),
            ([_costs(0.002, 2.0), _costs(0.001, 2.01)], 0.001),
            ([_costs(0.001, 2.0, late=None)], 0.001),
        ],
        ids=["cheapest", "cheapest in time", "2 % is too far", "fewest dead", "finest tick", "nothing expires"],
    )
    def test_choice_is_cheapest_punctual_configuration(self, rows: list[Row], tick: float) -> None:
        [choice] = choose(rows, 0.01, None)
        assert choice.configuration == Configuration(tick, timeout=1.0)

    def test_choice_has_a_reason(self) -> None:
        rows = [
            _costs(0.005, 2.0, late=0.0045, dead=700),
            _costs(0.005, 2.01, late=0.0046, dead=90, purge_interval=100),
            _costs(0.001, 4.02),
            _costs(0.02, 1.0, late=0.019),
        ]
        [choice] = choose(rows, None, None)
        assert choice == ConfigurationChoice(
            1.0,
            0.01,
            Configuration(0.005, 20, 100, 1.0),
            "tick 5 ms, wheel 20, purge interval 100: 2.01 µs of CPU time an operation for wake-ups, cascades "
            "and purges (50 % less than the default), "
            "99 % of the expiries are at most 4.6 ms late, of 10 ms allowed, up to 90 dead entries; of 2 that cost the "
            "same within 2 %, the one with the fewest dead entries",
        )
        assert str(choice).startswith("a timeout of 1 s: tick 5 ms")

    @pytest.mark.parametrize(
        ("rows", "words"),
        [
            ([_costs(0.001, 2.0), _costs(0.005, 3.0)], "(it is the default)"),
            ([_costs(0.001, 2.0), _costs(0.005, 3.0)], "; the cheapest of 2"),
            ([_costs(0.001, 2.0, late=1.0), _costs(0.002, 3.0), _costs(0.005, 4.0)], "; the cheapest of 2 that are"),
            ([_costs(0.001, 2.0, late=1.0), _costs(0.005, 3.0)], "(50 % more than the default)"),
            ([_costs(0.001, 2.0)], "; it is the only one"),
            ([_costs(0.002, 2.0), _costs(0.005, 2.0)], "the fewest dead entries and the finest tick"),
            (
                [_costs(0.005, 0.0), _costs(0.001, 0.0, dead=1000)],
                "for wake-ups, cascades and purges, 99 %",
            ),
            ([_costs(0.001, 2.0, late=None)], "nothing expires"),
        ],
    )
    def test_reason_of_a_choice_describes_each_case(self, rows: list[Row], words: str) -> None:
        [choice] = choose(rows, 0.01, None)
        assert words in choice.reason

    def test_closest_configuration_is_named_where_none_is_punctual_enough(self) -> None:
        rows = [_costs(0.005, 2.0, late=0.0049), _costs(0.001, 4.0, late=0.001), _costs(0.002, 3.0, late=0.0019)]
        [choice] = choose(rows, 0.0005, None)
        assert choice.configuration is None
        assert choice.reason == (
            "none of the 3 configurations is punctual enough: closest is tick 1 ms, wheel 20, purge interval 1,000, "
            "with which 99 % of the expiries are at most 1 ms late, and not 500 µs"
        )

    def test_any_configuration_is_punctual_without_timeouts(self) -> None:
        [choice] = choose([_costs(0.001, 2.0, late=0.5, timeout=None)], None, None)
        assert choice.max_lateness is None
        assert str(choice).startswith("timeouts as recorded: tick 1 ms")
        assert "at most 500 ms late, and there is no bound" in choice.reason

    def test_default_configuration_is_that_of_the_library(self) -> None:
        purgatory, same = DelayedOperationPurgatory(clock=VirtualClock()), Configuration()
        wheel = purgatory.timer.wheels[0]
        assert (purgatory.timer.tick, wheel.size, purgatory._owner.purge_interval) == (
            same.tick,
            same.wheel_size,
            same.purge_interval,
        )


class TestInWords:
    @pytest.mark.parametrize(
        ("value", "text"),
        [
            (0.0, "0 s"),
            (0.2, "200 ms"),
            (1.0, "1 s"),
            (0.0689, "68.9 ms"),
            (1.5e-5, "15 µs"),
            (2e-9, "2 ns"),
            (12_340.0, "12,340 s"),
        ],
    )
    def test_seconds_are_shown_with_a_unit(self, value: float, text: str) -> None:
        assert words.seconds(value) == text

    @pytest.mark.parametrize(
        ("value", "text"),
        [(0, "0"), (1234.5, "1,234"), (99.96, "100"), (12.34, "12.3"), (0.00123456, "0.00123"), (math.inf, "inf")],
    )
    def test_figures_are_shown_with_few_digits(self, value: float, text: str) -> None:
        assert words.figure(value) == text

    @pytest.mark.parametrize("text", HOSTILE)
    def test_names_are_short_and_can_be_seen(self, text: str) -> None:
        shown = words.name(text)
        assert len(shown) <= 48
        assert shown.isprintable()


def test_costs_can_be_measured(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["costs", "--size", "2000", "--wake-ups", "20", "--rounds", "2"])
    runpy.run_path(costs.__file__, run_name="__main__")
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    measured = {name: float(microseconds) / 1e6 for name, microseconds, _ in lines}
    assert measured.keys() == {"wake_up", "bucket", "cascaded", "scanned", "purge", "insert"}
    # On any machine a wake-up costs more than a system call, and a scanned entry costs next to nothing.
    assert measured["wake_up"] > measured["scanned"]
    assert 0 < measured["insert"] < 1e-3
