"""Hierarchical timing wheels: a timer whose inserts and cancels cost the same whether it holds ten tasks or millions.

Ideas and names come from G. Varghese and A. Lauck, "Hashed and Hierarchical Timing Wheels" (1987), and from Apache
Kafka, which uses them for its purgatories. This is how it works here.

Time is counted in *ticks*, integers from the clock's origin, because sums of floats drift. A *wheel* is a ring of
`wheel_size` *buckets*, and a bucket holds the tasks whose deadlines fall into its span of time. Level 1 has buckets of
one tick. Each further level is the *overflow wheel* of the level below, with buckets as wide as the whole wheel below:

    tick 1 ms, wheel size 20    a bucket spans    the wheel reaches
    level 1                     1 ms              20 ms
    level 2                     20 ms             400 ms
    level 3                     400 ms            8 s
    level 4                     8 s               2 min 40 s
    level 5                     2 min 40 s        53 min 20 s
    level 6                     53 min 20 s       17 h 46 min 40 s     and so on, made when first needed

A task goes into the lowest level that reaches its deadline. When the time gets to the start of a bucket on a higher
level, its tasks *cascade*: each is inserted again, and now a lower level reaches it. On level 1 they run.

Tick 1, wheel size 10, the time is 0, tasks due at 9, 88 and 222:

      0     9 goes to level 1 bucket 9;  88 to level 2 bucket 8 (80..89);  222 to level 3 bucket 2 (200..299)
      9     9 runs
     80     level 2 bucket 8 cascades: 88 goes to level 1 bucket 8
     88     88 runs
    200     level 3 bucket 2 cascades: 222 goes to level 2 bucket 2 (220..229)
    220     level 2 bucket 2 cascades: 222 goes to level 1 bucket 2
    222     222 runs

There are six wake-ups and none in between. A heap holds the buckets that have tasks (never the tasks), and *one*
`call_at` on the clock is armed for the earliest bucket. With nothing to do, nothing happens.

A bucket is one `dict`, because a `dict` keeps insertion order and inserts and deletes in C. A linked list in Python was
several times slower. Its keys are `id(task)`, so a task may define any equality, and the snapshot of keys that is
walked while a bucket is drained keeps no task alive. (In the core in C a bucket is a linked list.)

`entry.py` contains the tasks, `wheels.py` the wheels and the heap of their buckets, and `timer.py` the one `call_at`
that drives them. None of them knows what an operation is.
"""

from purgatory._timer.entry import TimerTask
from purgatory._timer.timer import TimerStatistics, WheelTimer, is_of_a_loop
from purgatory._timer.wheels import TimingWheel

__all__ = ["TimerStatistics", "TimerTask", "TimingWheel", "WheelTimer", "is_of_a_loop"]
