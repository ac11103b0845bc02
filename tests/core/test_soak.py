"""The soak, short. `python -m tests.support.soak` is the long one."""

from tests.support import soak
from tests.support.figures import show


def test_nothing_grows_in_a_two_hundredth_of_an_hour_of_virtual_time() -> None:
    samples = soak.virtual(soak.OPERATIONS // 200, soak.HOUR / 200)
    show(f"soak, 50,000 operations in 18 s of virtual time: {samples.describe()}")


async def test_nothing_grows_in_some_seconds_of_real_time() -> None:
    samples = await soak.real(2.0)
    show(f"soak, 2 seconds of real time: {samples.describe()}")
