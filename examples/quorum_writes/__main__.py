"""A leader with two replicas. One of them stops.

python -m examples.quorum_writes
"""

import asyncio

from examples.quorum_writes.replication import Leader


async def replicate(leader: Leader, replica: str, seconds: float) -> None:
    """Follow the leader's log, `seconds` behind."""
    while True:
        end = len(leader.log.records)
        await asyncio.sleep(seconds)
        leader.acknowledge(replica, end)


async def main() -> None:
    """Run the demonstration."""
    leader = Leader(quorum=2, timeout=0.5)
    fast = asyncio.create_task(replicate(leader, "fast", 0.01))
    slow = asyncio.create_task(replicate(leader, "slow", 0.05))
    async with leader.purgatory:
        print("two replicas:", await leader.write(b"first"))
        slow.cancel()
        print("one of them has stopped:", await leader.write(b"second"))
    fast.cancel()
    await asyncio.gather(fast, slow, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(main())
