"""The soak, short. `python -m tests.support.soak` is the long one."""

from tests.support import soak


def test_nothing_grows_in_a_two_hundredth_of_an_hour_of_virtual_time() -> None:
    soak.virtual(soak.OPERATIONS // 200, soak.HOUR / 200)


async def test_nothing_grows_in_some_seconds_of_real_time() -> None:
    await soak.real(2.0)
