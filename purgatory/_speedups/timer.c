/* The timing wheels: TimerEntry of `_timer/entry.py` and TimerBase of `_timer/wheels.py`. */

#include "core.h"

#include <math.h>
#include <time.h>

#define LAST (1LL << 52)
#define NOT_ARMED Py_HUGE_VAL
#define AWAKE (-Py_HUGE_VAL)
#define LOST 1.0

/* ---- entries and their lists ---- */

static void
bucket_append(Bucket *bucket, TimerEntry *entry)
{
    entry->bucket = bucket;
    entry->previous = bucket->last;
    entry->next = NULL;
    if (bucket->last != NULL)
        bucket->last->next = entry;
    else
        bucket->first = entry;
    bucket->last = entry;
    bucket->count++;
    if (entry->held)
        timer_keep(bucket->timer, ((Operation *)entry)->owner);
    else {
        bucket->owned++;
        Py_INCREF(entry);
    }
}

int
entry_leave(TimerEntry *entry)
{
    Bucket *bucket = entry->bucket;
    if (bucket == NULL)
        return 0;
    if (entry->previous != NULL)
        entry->previous->next = entry->next;
    else
        bucket->first = entry->next;
    if (entry->next != NULL)
        entry->next->previous = entry->previous;
    else
        bucket->last = entry->previous;
    bucket->count--;
    entry->bucket = NULL;
    entry->previous = entry->next = NULL;
    if (entry->held)
        timer_unkeep(bucket->timer);
    else {
        bucket->owned--;
        Py_DECREF(entry);
    }
    return 1;
}

static int
bucket_traverse(Bucket *bucket, visitproc visit, void *arg)
{
    if (bucket != NULL && bucket->owned > 0)
        for (TimerEntry *entry = bucket->first; entry != NULL; entry = entry->next)
            if (!entry->held)
                Py_VISIT(entry);
    return 0;
}

static int
entry_init(TimerEntry *self, PyObject *args, PyObject *kwargs)
{
    return PyArg_ParseTuple(args, ":__init__") ? 0 : -1;
}

static PyObject *
entry_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    if (type->tp_flags & Py_TPFLAGS_IS_ABSTRACT) { /* As object.__new__ says it. */
        PyObject *object = PyTuple_New(0), *made = NULL;
        if (object != NULL)
            made = PyBaseObject_Type.tp_new(type, object, NULL);
        Py_XDECREF(object);
        return made;
    }
    TimerEntry *self = (TimerEntry *)type->tp_alloc(type, 0);
    if (self != NULL)
        self->deadline = Py_HUGE_VAL;
    return (PyObject *)self;
}

static int
entry_traverse(TimerEntry *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    return 0;
}

static void
entry_dealloc(TimerEntry *self)
{
    PyObject_GC_UnTrack(self);
    free_object(self);
}

static PyObject *
entry__timer_leave(TimerEntry *self, PyObject *unused)
{
    return PyBool_FromLong(entry_leave(self));
}

static PyObject *
entry_get_bucket(TimerEntry *self, void *closure)
{
    return Py_NewRef(self->bucket == NULL ? Py_None : Py_True);
}

static PyMethodDef entry_methods[] = {
    {"_timer_leave", (PyCFunction)entry__timer_leave, METH_NOARGS, NULL},
    {NULL},
};

static PyGetSetDef entry_getset[] = {
    {"_timer_bucket", (getter)entry_get_bucket, NULL, NULL, NULL},
    {NULL},
};

static PyMemberDef entry_members[] = {
    {"_timer_deadline", T_DOUBLE, offsetof(TimerEntry, deadline), READONLY},
    {NULL},
};

static PyType_Slot timer_entry_slots[] = {
    {Py_tp_doc, "TimerEntry()\n--\n\nSomething that can wait in a timer."},
    {Py_tp_new, entry_new},
    {Py_tp_init, entry_init},
    {Py_tp_traverse, entry_traverse},
    {Py_tp_dealloc, entry_dealloc},
    {Py_tp_methods, entry_methods},
    {Py_tp_getset, entry_getset},
    {Py_tp_members, entry_members},
    {0, NULL},
};

PyType_Spec timer_entry_spec = {
    .name = "purgatory._speedups.c.TimerEntry",
    .basicsize = sizeof(TimerEntry),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = timer_entry_slots,
};

/* ---- wheels ---- */

static long long
floor_div(long long a, long long b)
{
    return a >= 0 ? a / b : -((-a + b - 1) / b);
}

static Py_ssize_t
slot_of(Wheel *wheel, long long tick)
{
    long long slot = floor_div(tick, wheel->unit) % wheel->size;
    return (Py_ssize_t)(slot < 0 ? slot + wheel->size : slot);
}

static void
wheel_turn(Wheel *wheel, long long current)
{
    /* Ticks end at 2**52: a limit beyond 2**62 needs no more digits. */
    long long first = floor_div(current, wheel->unit) + wheel->size;
    wheel->limit = first > (1LL << 62) / wheel->unit ? 1LL << 62 : first * wheel->unit;
}

static Wheel *
new_wheel(int level, long long unit, Py_ssize_t size, long long current)
{
    Wheel *wheel = NULL;
    if ((size_t)size <= (PY_SSIZE_T_MAX - sizeof(Wheel)) / sizeof(Bucket *))
        wheel = PyMem_Calloc(1, offsetof(Wheel, buckets) + (size_t)size * sizeof(Bucket *));
    if (wheel == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    wheel->level = level;
    wheel->unit = unit;
    wheel->size = size;
    wheel_turn(wheel, current);
    return wheel;
}

/* ---- the heap of buckets: of two that start together, the higher level comes first ---- */

static int
is_before(Due a, Due b)
{
    return a.start < b.start || (a.start == b.start && a.wheel->level > b.wheel->level);
}

static int
heap_push(Timer *self, Due due)
{
    if (self->heap_length == self->heap_room) {
        Py_ssize_t room = 2 * self->heap_room + 16;
        Due *heap = PyMem_Realloc(self->heap, (size_t)room * sizeof(Due));
        if (heap == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        self->heap = heap;
        self->heap_room = room;
    }
    Py_ssize_t at = self->heap_length++;
    while (at > 0) {
        Py_ssize_t above = (at - 1) / 2;
        if (!is_before(due, self->heap[above]))
            break;
        self->heap[at] = self->heap[above];
        at = above;
    }
    self->heap[at] = due;
    return 0;
}

/* Take out the first one, and its bucket out of the ring. */
static Bucket *
heap_pop(Timer *self)
{
    Due first = self->heap[0], last = self->heap[--self->heap_length];
    Py_ssize_t at = 0, length = self->heap_length;
    for (;;) {
        Py_ssize_t below = 2 * at + 1;
        if (below >= length)
            break;
        if (below + 1 < length && is_before(self->heap[below + 1], self->heap[below]))
            below++;
        if (!is_before(self->heap[below], last))
            break;
        self->heap[at] = self->heap[below];
        at = below;
    }
    self->heap[at] = last;
    Bucket **place = &first.wheel->buckets[slot_of(first.wheel, first.start)], *bucket = *place;
    *place = NULL;
    return bucket;
}

/* ---- the timer ---- */

PyObject *
clock_of(Timer *self)
{
    if (self->clock == NULL) {
        PyObject *loop = PyObject_CallFunction(self->core->running_loop, "OOs", self, Py_None, "");
        if (loop == NULL)
            return NULL;
        Py_XSETREF(self->loop, Py_NewRef(loop));
        Py_XSETREF(self->clock, loop);
    }
    return Py_NewRef(self->clock);
}

/* The last tick whose time has come: TimerBase._now. */
static int
current_tick(Timer *self, long long *found)
{
    double now;
    PyObject *clock = clock_of(self);
    int failed = clock == NULL ? -1 : time_of(self->core, clock, &now);
    Py_XDECREF(clock);
    if (failed)
        return -1;
    if (!(fabs(now * self->rate) < 4.6e18)) {
        PyErr_SetString(isnan(now) ? PyExc_ValueError : PyExc_OverflowError, "the clock's time is too large for a timer");
        return -1;
    }
    long long tick = (long long)(now * self->rate) + 1;
    while ((double)tick / self->rate > now)
        tick--;
    *found = tick;
    return 0;
}

static int
is_draining(Timer *self)
{
    return self->drained != NULL && self->drained->first != NULL;
}

static void
turn(Timer *self, long long current)
{
    self->current = current;
    for (Wheel *wheel = self->lowest; wheel != NULL; wheel = wheel->overflow)
        wheel_turn(wheel, current);
}

/* TimerBase._reaching: the lowest wheel that reaches a tick. NULL if there is no memory. */
static Wheel *
reaching(Timer *self, long long tick)
{
    Wheel *wheel = self->lowest;
    while (tick >= wheel->limit) {
        if (wheel->overflow == NULL) {
            wheel->overflow = new_wheel(wheel->level + 1, wheel->unit * wheel->size, wheel->size, self->current);
            if (wheel->overflow == NULL)
                return NULL;
        }
        wheel = wheel->overflow;
    }
    return wheel;
}

/* Give up tasks and wheels that the timer refers to no more. */
static void
forget(Wheel *wheels, Bucket *drained)
{
    while (drained != NULL && drained->first != NULL)
        entry_leave(drained->first);
    PyMem_Free(drained);
    while (wheels != NULL) {
        for (Py_ssize_t slot = 0; slot < wheels->size; slot++) {
            Bucket *bucket = wheels->buckets[slot];
            while (bucket != NULL && bucket->first != NULL)
                entry_leave(bucket->first);
            PyMem_Free(bucket);
        }
        Wheel *overflow = wheels->overflow;
        PyMem_Free(wheels);
        wheels = overflow;
    }
}

/* The first tick whose time is not before the deadline: TimerBase._tick. */
static long long
tick_of(Timer *self, double deadline)
{
    double exact = deadline * self->rate;
    if (exact >= (double)LAST)
        return LAST;
    if (exact < -9e18)
        return -LAST;
    long long tick = (long long)exact;
    return tick + ((double)tick / self->rate < deadline);
}

/* TimerBase._find: the bucket of a tick, made if that is asked for, and its first tick. -1 if there is no memory. */
static int
find_bucket(Timer *self, long long tick, bool make, Bucket **found, long long *start)
{
    if (tick < self->current)
        tick = self->current;
    Wheel *wheel = reaching(self, tick);
    if (wheel == NULL)
        return -1;
    Bucket **place = &wheel->buckets[slot_of(wheel, tick)];
    *start = floor_div(tick, wheel->unit) * wheel->unit;
    if (*place == NULL && make) {
        Bucket *bucket = PyMem_Calloc(1, sizeof(Bucket));
        if (bucket == NULL)
            PyErr_NoMemory();
        if (bucket == NULL || heap_push(self, (Due){*start, wheel}) < 0) {
            PyMem_Free(bucket);
            return -1;
        }
        bucket->timer = self;
        *place = bucket;
    }
    *found = *place;
    return 0;
}

/* Put an entry into a bucket, from another one or from none. */
static void
move(TimerEntry *entry, Bucket *bucket)
{
    if (entry->bucket == bucket)
        return;
    Py_INCREF(entry);
    entry_leave(entry);
    bucket_append(bucket, entry);
    Py_DECREF(entry);
}

/* TimerBase._turn_back: turn the hands back to `now`, as the clock did, and place each task again. */
static int
turn_back(Timer *self, long long now)
{
    Wheel *wheels = self->lowest, *lowest = new_wheel(1, 1, wheels->size, now);
    Bucket *all = lowest == NULL ? NULL : PyMem_Calloc(1, sizeof(Bucket)), *drained = self->drained, *bucket;
    if (all == NULL) {
        PyMem_Free(lowest);
        PyErr_NoMemory();
        return -1;
    }
    PyObject *holder = Py_XNewRef(self->holder); /* It stays, though for a moment nothing is in the timer. */
    all->timer = self;
    for (Wheel *wheel = wheels; wheel != NULL; wheel = wheel->overflow)
        for (Py_ssize_t slot = -1; slot < wheel->size; slot++) {
            bucket = slot >= 0 ? wheel->buckets[slot] : wheel == wheels ? drained : NULL;
            while (bucket != NULL && bucket->first != NULL)
                move(bucket->first, all);
        }
    self->lowest = lowest;
    self->drained = all; /* If there is no memory, what is left is placed at the next wake-up. */
    self->drained_level = 2;
    self->heap_length = 0;
    self->current = now;
    forget(wheels, drained);
    int failed = 0;
    for (long long start; !failed && all->first != NULL;) {
        failed = find_bucket(self, tick_of(self, all->first->deadline), true, &bucket, &start);
        if (!failed)
            move(all->first, bucket);
    }
    Py_XDECREF(holder);
    return failed;
}

/* TimerBase._catch_up: move the hands to the clock's time. */
static int
catch_up(Timer *self)
{
    long long now;
    if (current_tick(self, &now) < 0)
        return -1;
    if (self->armed != AWAKE) {
        bool is_ahead = now < self->current;
        if (is_ahead && turn_back(self, now) < 0)
            return -1;
        if (self->armed != NOT_ARMED && (is_ahead || self->armed < (double)now - LOST * self->rate)) {
            PyObject *done = PyObject_CallMethod((PyObject *)self, "_renew", NULL);
            Py_XDECREF(done);
            if (done == NULL)
                return -1;
        }
    }
    if (now > self->current && !is_draining(self) && !(self->heap_length > 0 && self->heap[0].start <= now))
        turn(self, now);
    return 0;
}

/* TimerBase._place. Python runs in the catching up and in the arming, and where the entry's last reference is given up.
   If the clock raises, the entry is where it was before. */
int
timer_place(Timer *self, TimerEntry *entry, double deadline, bool is_new)
{
    Bucket *bucket = NULL;
    long long start = LAST;
    if (isnan(deadline)) {
        PyErr_SetString(PyExc_ValueError, "deadline must be a number of seconds, not NaN");
        return -1;
    }
    long long tick = tick_of(self, deadline);
    if (tick < LAST && self->armed != AWAKE) {
        if (tick >= self->current && find_bucket(self, tick, false, &bucket, &start) < 0)
            return -1;
        if (bucket == NULL && catch_up(self) < 0)
            return -1;
    }
    if (is_new && entry->bucket != NULL) {
        PyErr_Format(PyExc_ValueError, "%R waits in a timer already: call reschedule() to move it", entry);
        return -1;
    }
    if (tick < LAST && bucket == NULL && find_bucket(self, tick, true, &bucket, &start) < 0)
        return -1;
    double before = entry->deadline;
    bool waited = entry->bucket != NULL;
    entry->deadline = deadline;
    if (tick >= LAST) {
        entry_leave(entry);
        return 0;
    }
    move(entry, bucket);
    if ((double)start >= self->armed)
        return 0;
    PyObject *done = PyObject_CallMethod((PyObject *)self, "_arm", "L", start);
    Py_XDECREF(done);
    if (done != NULL)
        return 0;
    if (entry->bucket != NULL && entry->deadline == deadline) { /* Else the clock has moved it. */
        PyObject *raised = NULL;
        keep(&raised);
        entry->deadline = before;
        if (!waited)
            entry_leave(entry);
        else if (find_bucket(self, tick_of(self, before), true, &bucket, &start) == 0)
            move(entry, bucket); /* The clock is armed for that time already. */
        raise_kept(raised);
    }
    return -1;
}

/* A task of a user. An operation, which alone has a state, is moved by its own methods. */
static int
as_entry(Timer *self, PyObject *task, TimerEntry **entry)
{
    if (!PyObject_TypeCheck(task, self->core->TimerEntry) || ((TimerEntry *)task)->state != UNMADE) {
        PyObject *refused = PyObject_CallOneArg(self->core->refuse_task, task); /* It raises. */
        Py_XDECREF(refused);
        return -1;
    }
    *entry = (TimerEntry *)task;
    return 0;
}

/* Refuse the call if the task waits in a timer of another loop or thread. */
static int
check_leave(Timer *self, TimerEntry *entry, const char *call)
{
    Timer *its = entry->bucket == NULL ? self : entry->bucket->timer;
    return its->loop == self->loop ? 0 : check_loop(self->core, self, its->loop, call, "");
}

/* add and reschedule. */
static PyObject *
place(Timer *self, const char *name, const char *call, bool is_new, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    static const char *const wanted[] = {"task", "deadline", NULL};
    PyObject *values[2];
    TimerEntry *entry;
    if (take_arguments(name, wanted, 2, args, count, names, values) < 0 ||
        check_loop(self->core, self, self->loop, call, "") < 0 || as_entry(self, values[0], &entry) < 0)
        return NULL;
    if (!PyFloat_Check(values[1]) && !PyLong_Check(values[1]))
        return PyErr_Format(PyExc_TypeError, "deadline must be a number of seconds, not %R", values[1]);
    double deadline = PyFloat_AsDouble(values[1]);
    if (deadline == -1.0 && PyErr_Occurred()) { /* An integer beyond any float. */
        int sign;
        PyErr_Clear();
        PyLong_AsLongAndOverflow(values[1], &sign);
        deadline = sign > 0 ? Py_HUGE_VAL : -Py_HUGE_VAL;
    }
    Py_INCREF(entry);
    int failed = !is_new && check_leave(self, entry, call) < 0 ? -1 : timer_place(self, entry, deadline, is_new);
    Py_DECREF(entry);
    if (failed)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *
timer_add(Timer *self, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    return place(self, "add", "timer.add(task, deadline)", true, args, count, names);
}

static PyObject *
timer_reschedule(Timer *self, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    return place(self, "reschedule", "timer.reschedule(task, deadline)", false, args, count, names);
}

static PyObject *
timer_cancel(Timer *self, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    static const char *const wanted[] = {"task", NULL};
    PyObject *task;
    TimerEntry *entry;
    if (take_arguments("cancel", wanted, 1, args, count, names, &task) < 0 ||
        check_loop(self->core, self, self->loop, "timer.cancel(task)", "") < 0 || as_entry(self, task, &entry) < 0 ||
        check_leave(self, entry, "timer.cancel(task)") < 0)
        return NULL;
    return PyBool_FromLong(entry_leave(entry));
}

static PyObject *
timer_now(Timer *self, PyObject *unused)
{
    long long tick;
    return current_tick(self, &tick) < 0 ? NULL : PyLong_FromLongLong(tick);
}

double
seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* TimerBase._place(task, deadline), for operations, which add and reschedule refuse. */
static PyObject *
timer_place_method(Timer *self, PyObject *args)
{
    TimerEntry *entry;
    double deadline;
    if (!PyArg_ParseTuple(args, "O!d:_place", self->core->TimerEntry, &entry, &deadline) ||
        timer_place(self, entry, deadline, false) < 0)
        return NULL;
    Py_RETURN_NONE;
}

/* Run a task, which leaves the timer first. If it was interrupted before that, it stays. A request to exit leaves, other exceptions are reported. */
static int
run_task(Timer *self, TimerEntry *entry)
{
    PyObject *done = PyObject_CallMethodNoArgs((PyObject *)entry, self->core->_timer_expire);
    if (done != NULL && entry->bucket != NULL && entry->bucket == self->drained)
        entry_leave(entry); /* It has run, and has not left on its own. */
    if (done == NULL) {
        Handled now;
        handle(&now);
        if (is_exit(now.exception)) {
            raise_handled(&now);
            return -1;
        }
        done = PyObject_CallMethod((PyObject *)self, "_report_task", "OO", entry, now.exception);
        handled(&now);
    }
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

/* TimerBase._drain(now, slice) */
static PyObject *
timer_drain(Timer *self, PyObject *args)
{
    long long now;
    PyObject *slice;
    if (!PyArg_ParseTuple(args, "LO:_drain", &now, &slice) || (now < self->current && turn_back(self, now) < 0))
        return NULL;
    PyObject *left_ = PyObject_GetAttrString(slice, "left"), *bounded_ = PyObject_GetAttrString(slice, "bounded");
    Py_ssize_t left = left_ == NULL ? -1 : PyLong_AsSsize_t(left_);
    int bounded = bounded_ == NULL ? -1 : PyObject_IsTrue(bounded_);
    Py_XDECREF(left_);
    Py_XDECREF(bounded_);
    if (PyErr_Occurred())
        return NULL;
    double ends = bounded ? seconds_now() + self->core->slice_seconds : 0.0;
    bool is_over = false;
    while (!is_over) {
        /* A task may close the timer: the drained bucket is looked up for each. */
        if (is_draining(self)) {
            TimerEntry *entry = (TimerEntry *)Py_NewRef(self->drained->first);
            bool runs = self->drained_level == 1;
            int failed;
            if (runs)
                failed = run_task(self, entry);
            else {
                self->cascaded++;
                failed = timer_place(self, entry, entry->deadline, false);
            }
            Py_DECREF(entry);
            if (failed)
                return NULL;
            left--;
            /* A move takes less time than a look at the clock. */
            is_over = left <= 0 || (bounded && (runs || !(left & 63)) && seconds_now() >= ends);
        }
        else if (self->heap_length > 0 && self->heap[0].start <= now) {
            Due due = self->heap[0];
            if (due.start > self->current)
                turn(self, due.start);
            PyMem_Free(self->drained); /* It is empty. */
            self->drained = heap_pop(self);
            self->drained_level = due.wheel->level;
            self->drained_buckets++;
            left--;
            is_over = left <= 0 || (bounded && seconds_now() >= ends);
        }
        else {
            if (now > self->current)
                turn(self, now);
            is_over = true;
        }
    }
    Py_RETURN_NONE;
}

/* TimerBase._next_tick: the tick for which to arm the clock. Empty buckets in front of it are dropped. */
static PyObject *
timer_next_tick(Timer *self, PyObject *unused)
{
    if (is_draining(self))
        return PyLong_FromLongLong(self->current);
    while (self->heap_length > 0) {
        Due due = self->heap[0];
        Bucket *bucket = due.wheel->buckets[slot_of(due.wheel, due.start)];
        if (bucket->first != NULL)
            return PyLong_FromLongLong(due.start);
        PyMem_Free(heap_pop(self));
    }
    Py_RETURN_NONE;
}

/* TimerBase._levels: the unit of each level, the tasks in each of its buckets, and all of its tasks. */
static PyObject *
timer_levels(Timer *self, PyObject *unused)
{
#if PY_VERSION_HEX < 0x030C0000
    int collects = PyGC_Disable(); /* Finalizers would run at an allocation, and might close the timer. */
#endif
    PyObject *levels = PyList_New(0);
    for (Wheel *wheel = self->lowest; wheel != NULL && levels != NULL; wheel = wheel->overflow) {
        Py_ssize_t all = self->drained != NULL && self->drained_level == wheel->level ? self->drained->count : 0;
        PyObject *counts = PyList_New(wheel->size), *level = NULL;
        for (Py_ssize_t slot = 0; slot < wheel->size && counts != NULL; slot++) {
            Py_ssize_t count = wheel->buckets[slot] == NULL ? 0 : wheel->buckets[slot]->count;
            PyObject *number = PyLong_FromSsize_t(count);
            all += count;
            if (number == NULL)
                Py_CLEAR(counts);
            else
                PyList_SET_ITEM(counts, slot, number);
        }
        if (counts != NULL)
            level = Py_BuildValue("LNn", wheel->unit, counts, all);
        if (level == NULL || PyList_Append(levels, level) < 0)
            Py_CLEAR(levels);
        Py_XDECREF(level);
    }
#if PY_VERSION_HEX < 0x030C0000
    if (collects)
        PyGC_Enable();
#endif
    return levels;
}

/* Let `lowest` be the wheels, without tasks. */
static void
replace_wheels(Timer *self, Wheel *lowest)
{
    Wheel *wheels = self->lowest;
    Bucket *drained = self->drained;
    self->lowest = lowest;
    self->drained = NULL;
    self->drained_level = 1;
    self->heap_length = 0;
    PyObject *holder = Py_XNewRef(self->holder); /* Not freed with its operations in the middle. */
    forget(wheels, drained);
    Py_XDECREF(holder);
}

static PyObject *
timer_forget_all(Timer *self, PyObject *unused)
{
    Wheel *lowest = new_wheel(1, 1, self->lowest->size, self->current);
    if (lowest == NULL)
        return NULL;
    replace_wheels(self, lowest);
    Py_RETURN_NONE;
}

static PyObject *
timer_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    Timer *self = (Timer *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->core = CORE_OF(self);
    self->rate = 1;
    self->armed = NOT_ARMED;
    self->drained_level = 1;
    self->lowest = new_wheel(1, 1, 2, 0);
    if (self->lowest == NULL)
        Py_CLEAR(self);
    return (PyObject *)self;
}

static int
timer_init(Timer *self, PyObject *args, PyObject *kwargs)
{
    PyObject *clock;
    double rate;
    Py_ssize_t size;
    if (!PyArg_ParseTuple(args, "Odn:__init__", &clock, &rate, &size))
        return -1;
    if (size < 2) {
        PyErr_SetString(PyExc_ValueError, "wheel_size must be at least 2");
        return -1;
    }
    if (self->heap_length > 0 || is_draining(self)) {
        PyErr_SetString(PyExc_RuntimeError, "cannot initialize a timer again while tasks wait in it");
        return -1;
    }
    int is_loop = 0;
    if (clock != Py_None) {
        PyObject *asyncio = PyImport_ImportModule("asyncio");
        PyObject *base = asyncio == NULL ? NULL : PyObject_GetAttrString(asyncio, "AbstractEventLoop");
        is_loop = base == NULL ? -1 : PyObject_IsInstance(clock, base);
        Py_XDECREF(base);
        Py_XDECREF(asyncio);
        if (is_loop < 0)
            return -1;
    }
    self->rate = rate;
    Py_XSETREF(self->clock, clock == Py_None ? NULL : Py_NewRef(clock));
    Py_XSETREF(self->loop, is_loop ? Py_NewRef(clock) : NULL);
    long long current = 0;
    if (self->clock != NULL && current_tick(self, &current) < 0)
        return -1;
    Wheel *lowest = new_wheel(1, 1, size, current);
    if (lowest == NULL)
        return -1;
    self->current = current;
    replace_wheels(self, lowest);
    return 0;
}

static int
timer_traverse(Timer *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->clock);
    Py_VISIT(self->loop);
    Py_VISIT(self->holder);
    int stop = bucket_traverse(self->drained, visit, arg);
    for (Wheel *wheel = self->lowest; wheel != NULL && !stop; wheel = wheel->overflow)
        for (Py_ssize_t slot = 0; slot < wheel->size && !stop; slot++)
            stop = bucket_traverse(wheel->buckets[slot], visit, arg);
    return stop;
}

static int
timer_clear(Timer *self)
{
    Wheel *lowest = new_wheel(1, 1, self->lowest->size, self->current); /* Finalizers may still call the timer. */
    if (lowest == NULL)
        PyErr_Clear();
    else
        replace_wheels(self, lowest);
    Py_CLEAR(self->clock);
    Py_CLEAR(self->loop);
    Py_CLEAR(self->holder);
    return 0;
}

static void
timer_dealloc(Timer *self)
{
    PyObject_GC_UnTrack(self);
    replace_wheels(self, NULL);
    PyMem_Free(self->heap);
    Py_CLEAR(self->clock);
    Py_CLEAR(self->loop);
    Py_CLEAR(self->holder);
    free_object(self);
}

#ifdef PURGATORY_CHECKS
#include "timer_checks.h"
#endif

static PyMethodDef timer_methods[] = {
    {"add", (PyCFunction)(void (*)(void))timer_add, METH_FASTCALL | METH_KEYWORDS, DOC_TimerBase_add},
    {"cancel", (PyCFunction)(void (*)(void))timer_cancel, METH_FASTCALL | METH_KEYWORDS, DOC_TimerBase_cancel},
    {"reschedule", (PyCFunction)(void (*)(void))timer_reschedule, METH_FASTCALL | METH_KEYWORDS, DOC_TimerBase_reschedule},
    {"_place", (PyCFunction)timer_place_method, METH_VARARGS, NULL},
    {"_now", (PyCFunction)timer_now, METH_NOARGS, NULL},
    {"_drain", (PyCFunction)timer_drain, METH_VARARGS, NULL},
    {"_next_tick", (PyCFunction)timer_next_tick, METH_NOARGS, NULL},
    {"_levels", (PyCFunction)timer_levels, METH_NOARGS, NULL},
    {"_forget_all", (PyCFunction)timer_forget_all, METH_NOARGS, NULL},
#ifdef PURGATORY_CHECKS
    {"_check", (PyCFunction)timer_check, METH_NOARGS, NULL},
#endif
    {NULL},
};

static PyMemberDef timer_members[] = {
    {"_clock", T_OBJECT, offsetof(Timer, clock), 0},
    {"_loop", T_OBJECT, offsetof(Timer, loop), 0},
    {"_rate", T_DOUBLE, offsetof(Timer, rate), READONLY},
    {"_armed", T_DOUBLE, offsetof(Timer, armed), 0},
    {"_current", T_LONGLONG, offsetof(Timer, current), READONLY},
    {"_drained_buckets", T_PYSSIZET, offsetof(Timer, drained_buckets), READONLY},
    {"_cascaded", T_PYSSIZET, offsetof(Timer, cascaded), READONLY},
    {NULL},
};

static PyType_Slot timer_slots[] = {
    {Py_tp_doc, "TimerBase(clock, rate, wheel_size)\n--\n\nHierarchical timing wheels, and a heap of their buckets."},
    {Py_tp_new, timer_new},
    {Py_tp_init, timer_init},
    {Py_tp_traverse, timer_traverse},
    {Py_tp_clear, timer_clear},
    {Py_tp_dealloc, timer_dealloc},
    {Py_tp_methods, timer_methods},
    {Py_tp_members, timer_members},
    {0, NULL},
};

PyType_Spec timer_spec = {
    .name = "purgatory._speedups.c.TimerBase",
    .basicsize = sizeof(Timer),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = timer_slots,
};
