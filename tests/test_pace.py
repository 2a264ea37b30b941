"""What is left of a run is told from its own steps and measurements, each for what it is."""

import pytest

from nanotriton.runs.pace import Pace


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test sets."""
    now = [100.0]
    monkeypatch.setattr("nanotriton.runs.pace.time.perf_counter", lambda: now[0])

    def run(pace: Pace, *took: tuple[str, float]) -> None:
        for what, seconds in took:
            now[0] += seconds
            getattr(pace, what)()

    return run


def test_a_measurement_is_no_part_of_a_step(clock):
    """The first one takes as long as many steps, and one more comes at the end."""
    pace = Pace(every=100)
    clock(pace, ("measured", 22.0), ("step", 4.0))
    assert pace.left(1, 80, 26.0) == 79 * 4 + 22
    clock(pace, ("step", 2.0))
    assert pace.left(2, 80, 28.0) == 78 * 3 + 22


@pytest.mark.parametrize(
    "step, of, between",
    # one stands before step 41, which is left after step 40; none after the last step but that of the end
    [(1, 80, 1), (40, 80, 1), (41, 80, 0), (1, 40, 0), (40, 40, 0), (80, 81, 1), (3, 200, 4)],
)
def test_measurements_to_come_are_counted(clock, step, of, between):
    pace = Pace(every=40)
    clock(pace, ("step", 1.0), ("measured", 10.0))
    assert pace.left(step, of, 0.0) == (of - step) + 10 * (between + 1)


def test_the_last_ten_steps_and_the_last_measurement_count(clock):
    pace = Pace(every=1000)
    clock(pace, ("measured", 50.0), *[("step", 9.0)] * 5, *[("step", 1.0)] * 10, ("measured", 5.0))
    assert pace.left(15, 25, 0.0) == 10 + 5


def test_without_measurements_and_after_a_pause_only_steps_count(clock):
    pace = Pace(every=1)
    clock(pace, ("start", 99.0), ("step", 2.0))
    assert pace.left(1, 5, 0.0) == 8


def test_a_limit_of_minutes_ends_it_sooner(clock):
    pace = Pace(every=1000, minutes=2.0)
    clock(pace, ("measured", 10.0), ("step", 30.0))
    assert pace.left(1, 80, spent=40.0) == 80 + 10
    assert pace.left(1, 2, spent=40.0) == 30 + 10
    assert pace.left(1, 80, spent=500.0) == 10
