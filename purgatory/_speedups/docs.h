/* The docstrings of the Python core. build.py writes this file. */

#define DOC_DelayedOperation_force_complete \
    "force_complete($self)\n" \
    "--\n" \
    "\n" \
    "Complete the operation whether its condition holds or not. Returns whether it was this call that did.\n" \
    "\n" \
    "Called more than 16 deep inside the `on_complete` of others, it returns before its own `on_complete` has run:\n" \
    "that runs before the outermost of these calls returns."

#define DOC_DelayedOperation_cancel \
    "cancel($self)\n" \
    "--\n" \
    "\n" \
    "Finish without a result and without `on_complete`. Returns whether the operation was pending.\n" \
    "\n" \
    "Tasks that await it get `OperationCancelled`."

#define DOC_DelayedOperation_done \
    "done($self)\n" \
    "--\n" \
    "\n" \
    "Whether the operation has its outcome: a result, an exception, or that it was cancelled."

#define DOC_DelayedOperation_expired \
    "expired($self)\n" \
    "--\n" \
    "\n" \
    "Whether the deadline completed it; in `on_complete`, whether it is the deadline that does."

#define DOC_DelayedOperation_cancelled \
    "cancelled($self)\n" \
    "--\n" \
    "\n" \
    "Whether it was cancelled."

#define DOC_DelayedOperationPurgatory_try_complete_else_watch \
    "try_complete_else_watch($self, operation, keys)\n" \
    "--\n" \
    "\n" \
    "Complete `operation` if its condition holds, else keep it until it does or its deadline comes.\n" \
    "\n" \
    "Tries it, watches it on every key, tries it again and starts its timer, all in this call: if the condition\n" \
    "becomes true and one of the keys is checked after that, at any moment, it is not missed. Returns the operation,\n" \
    "to be awaited or not. Its timeout counts from this call.\n" \
    "\n" \
    "Raises, with nothing registered: `PurgatoryClosed`, `PurgatoryFull` (only if it would have to wait),\n" \
    "`PurgatoryMisuse` if the operation has been used before or the purgatory belongs to another event loop,\n" \
    "`TypeError` if `operation` or `keys` is of the wrong type or a key is not hashable, `ValueError` if there are no\n" \
    "keys."

#define DOC_DelayedOperationPurgatory_check_and_complete \
    "check_and_complete($self, key, limit=None)\n" \
    "--\n" \
    "\n" \
    "Try the operations that watch `key`, in watch order. Returns how many of them that completed.\n" \
    "\n" \
    "To be called after whatever may have made a condition true. With a `limit`, at most so many complete, first come\n" \
    "first served, at a cost by the number tried: one item of a queue is for one taker. Raises `ValueError` or\n" \
    "`TypeError` unless `limit` is a positive `int`."

#define DOC_TimerHandle_when \
    "when($self)\n" \
    "--\n" \
    "\n" \
    "The time asked for, in seconds of the clock."

#define DOC_TimerHandle_cancelled \
    "cancelled($self)\n" \
    "--\n" \
    "\n" \
    "Whether it was cancelled."

#define DOC_TimerHandle_cancel \
    "cancel($self)\n" \
    "--\n" \
    "\n" \
    "Forget the callback, at once. Harmless when it has run or has been cancelled before."

#define DOC_WheelTimer_clock \
    "The clock; the running event loop, for good, if none was given. `RuntimeError` if there is none."

#define DOC_WheelTimer_add \
    "add($self, task, deadline)\n" \
    "--\n" \
    "\n" \
    "Run `task` at `deadline`, on the clock's next iteration if that has passed.\n" \
    "\n" \
    "A deadline of 2**52 ticks or more (140,000 years at 1 ms) never comes, and the task does not wait for it.\n" \
    "Raises `ValueError` if `deadline` is NaN or the task waits in a timer already, `PurgatoryMisuse` on another\n" \
    "event loop than the timer's."

#define DOC_WheelTimer_cancel \
    "cancel($self, task)\n" \
    "--\n" \
    "\n" \
    "Take `task` out, at once. Returns whether it was waiting."

#define DOC_WheelTimer_reschedule \
    "reschedule($self, task, deadline)\n" \
    "--\n" \
    "\n" \
    "Move `task` to `deadline`, earlier or later than before, whether it was waiting or not. Raises as `add`.\n" \
    "\n" \
    "Within its bucket nothing moves."

#define DOC_WheelTimer_time \
    "time($self)\n" \
    "--\n" \
    "\n" \
    "The clock's time, in seconds."

#define DOC_WheelTimer_call_at \
    "call_at($self, when, callback, *args, context=None)\n" \
    "--\n" \
    "\n" \
    "Call `callback(*args)` at `when`, as `loop.call_at` does but never early. Returns a handle to cancel it.\n" \
    "\n" \
    "It runs in `context`, or else in a copy of the present context. Raises as `add`."

#define DOC_WheelTimer_call_later \
    "call_later($self, delay, callback, *args, context=None)\n" \
    "--\n" \
    "\n" \
    "Call `callback(*args)` in `delay` seconds, as `loop.call_later` does but never early. Else as `call_at`."

#define DOC_WheelTimer_close \
    "close($self)\n" \
    "--\n" \
    "\n" \
    "Forget all tasks and leave the clock alone. The timer can be used again."
