"""The long-poll server's batches: what is done together, and what is not done at all."""

import asyncio

import pytest

from examples.long_poll_server.batches import BATCH_SIZE, Batches

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio"])


async def _batches(most: int, sizes: list[int]) -> list[list[int]]:
    """The batches of items of these sizes that come during the first one."""
    done: list[list[int]] = []
    begins = asyncio.Event()

    async def work(items: list[int]) -> list[int]:
        await begins.wait()
        done.append(items)
        return items

    batches = Batches(work, most, size=lambda item: item)
    doing = [asyncio.create_task(batches.do(size)) for size in sizes]
    await asyncio.sleep(0)
    begins.set()
    assert await asyncio.gather(*doing) == sizes
    return done


async def test_a_batch_ends_when_it_is_large() -> None:
    half = BATCH_SIZE // 2
    assert await _batches(100, [half, half, 1, half, half, 1]) == [[half, half], [1, half, half], [1]]


async def test_item_larger_than_batch_size_is_batch_of_its_own() -> None:
    large = 2 * BATCH_SIZE
    assert await _batches(100, [large, large, 1]) == [[large], [large], [1]]


async def test_a_batch_ends_when_there_are_many() -> None:
    assert await _batches(2, [1, 2, 3, 4, 5]) == [[1, 2], [3, 4], [5]]


async def test_an_item_without_a_waiting_task_is_not_begun() -> None:
    done: list[str] = []
    begun = asyncio.Event()
    goes_on = asyncio.Event()

    async def work(items: list[str]) -> list[str]:
        begun.set()
        await goes_on.wait()
        done.extend(items)
        return items

    batches = Batches(work, 1)
    doing = [asyncio.create_task(batches.do(item)) for item in ("begun", "cancelled", "last")]
    await begun.wait()
    doing[0].cancel()
    doing[1].cancel()
    finishing = asyncio.create_task(batches.finish())
    await asyncio.wait(doing[:2])
    goes_on.set()
    await finishing
    assert done == ["begun", "last"]
    assert await doing[2] == "last"
