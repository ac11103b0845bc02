/* The hierarchy of wheels: timer/timer.py, timer/handle.py and timer/task.py. */

#include "core.h"

#include <math.h>
#include <time.h>

#define LAST (1LL << 52)
#define NEVER_ARMED Py_HUGE_VAL
#define AWAKE (-Py_HUGE_VAL)
#define RENEWAL 0.0001

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

/* Take the entry out; the bucket's reference, or the timer's to the owner, is the caller's to give up. */
static void
unlink_entry(TimerEntry *entry)
{
    Bucket *bucket = entry->bucket;
    if (entry->previous != NULL)
        entry->previous->next = entry->next;
    else
        bucket->first = entry->next;
    if (entry->next != NULL)
        entry->next->previous = entry->previous;
    else
        bucket->last = entry->previous;
    bucket->count--;
    bucket->owned -= !entry->held;
    entry->bucket = NULL;
    entry->previous = entry->next = NULL;
}

void
entry_leave(TimerEntry *entry)
{
    if (entry->bucket == NULL)
        return;
    WheelTimer *timer = entry->bucket->timer;
    unlink_entry(entry);
    if (entry->held)
        timer_unkeep(timer);
    else
        Py_DECREF(entry);
}

/* Move an entry to the end of another list. */
static void
move_entry(TimerEntry *entry, Bucket *bucket)
{
    WheelTimer *before = entry->bucket->timer;
    unlink_entry(entry);
    bucket_append(bucket, entry);
    if (entry->held)
        timer_unkeep(before);
    else
        Py_DECREF(entry);
}

static int
bucket_traverse(Bucket *bucket, visitproc visit, void *arg)
{
    if (bucket->owned > 0)
        for (TimerEntry *entry = bucket->first; entry != NULL; entry = entry->next)
            if (!entry->held)
                Py_VISIT(entry);
    return 0;
}

static int
in_timer(TimerEntry *entry)
{
    return entry->bucket != NULL;
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
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyObject *
entry_get_bucket(TimerEntry *self, void *closure)
{
    return in_timer(self) ? Py_NewRef(Py_True) : Py_NewRef(Py_None);
}

static int
entry_set_bucket(TimerEntry *self, PyObject *value, void *closure)
{
    if (value != Py_None || in_timer(self)) {
        PyErr_SetString(PyExc_AttributeError, "_timer_bucket is for the timer to set");
        return -1;
    }
    return 0; /* By a constructor. */
}

static PyGetSetDef entry_getset[] = {
    {"_timer_bucket", (getter)entry_get_bucket, (setter)entry_set_bucket, "Not None while it is in a timer.", NULL},
    {NULL},
};

static PyMemberDef entry_members[] = {
    {"_timer_deadline", T_DOUBLE, offsetof(TimerEntry, deadline), 0, "In seconds of the clock."},
    {NULL},
};

static PyType_Slot timer_entry_slots[] = {
    {Py_tp_traverse, entry_traverse},
    {Py_tp_dealloc, entry_dealloc},
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

/* ---- handles of calls ---- */

static int
handle_traverse(TimerHandle *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->callback);
    Py_VISIT(self->args);
    Py_VISIT(self->context);
    return 0;
}

static int
handle_clear(TimerHandle *self)
{
    Py_CLEAR(self->callback);
    Py_CLEAR(self->args);
    Py_CLEAR(self->context);
    return 0;
}

static void
handle_dealloc(TimerHandle *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    if (self->weakrefs != NULL)
        PyObject_ClearWeakRefs((PyObject *)self);
    handle_clear(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyObject *
handle_cancel(TimerHandle *self, PyObject *unused)
{
    entry_leave(&self->base);
    Py_CLEAR(self->callback);
    Py_CLEAR(self->args);
    Py_RETURN_NONE;
}

static PyObject *
handle_cancelled(TimerHandle *self, PyObject *unused)
{
    return PyBool_FromLong(self->callback == NULL);
}

static PyObject *
handle_when(TimerHandle *self, PyObject *unused)
{
    return PyFloat_FromDouble(self->base.deadline);
}

static PyObject *
handle_expire(TimerHandle *self, PyObject *unused)
{
    if (self->callback == NULL || in_timer(&self->base)) /* Cancelled or moved on the way here. */
        Py_RETURN_NONE;
    PyObject *callback = Py_NewRef(self->callback), *args = Py_NewRef(self->args), *context = Py_NewRef(self->context);
    PyObject *result = NULL;
    if (PyContext_Enter(context) == 0) {
        result = PyObject_Call(callback, args, NULL);
        PyObject *type, *value, *traceback;
        PyErr_Fetch(&type, &value, &traceback);
        if (PyContext_Exit(context) < 0)
            Py_CLEAR(result);
        else
            PyErr_Restore(type, value, traceback);
    }
    Py_DECREF(callback);
    Py_DECREF(args);
    Py_DECREF(context);
    return result;
}

static PyMethodDef handle_methods[] = {
    {"cancel", (PyCFunction)handle_cancel, METH_NOARGS, DOC_TimerHandle_cancel},
    {"cancelled", (PyCFunction)handle_cancelled, METH_NOARGS, DOC_TimerHandle_cancelled},
    {"when", (PyCFunction)handle_when, METH_NOARGS, DOC_TimerHandle_when},
    {"_timer_expire", (PyCFunction)handle_expire, METH_NOARGS, NULL},
    {NULL},
};

static PyMemberDef handle_members[] = {
    {"__weaklistoffset__", T_PYSSIZET, offsetof(TimerHandle, weakrefs), READONLY},
    {"_callback", T_OBJECT, offsetof(TimerHandle, callback), READONLY},
    {"_args", T_OBJECT, offsetof(TimerHandle, args), READONLY},
    {"_context", T_OBJECT, offsetof(TimerHandle, context), READONLY},
    {NULL},
};

static PyType_Slot timer_handle_slots[] = {
    {Py_tp_traverse, handle_traverse},
    {Py_tp_clear, handle_clear},
    {Py_tp_dealloc, handle_dealloc},
    {Py_tp_methods, handle_methods},
    {Py_tp_members, handle_members},
    {0, NULL},
};

PyType_Spec timer_handle_spec = {
    .name = "purgatory._speedups.c.TimerHandle",
    .basicsize = sizeof(TimerHandle),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = timer_handle_slots,
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
raise_limit(Wheel *wheel, long long current)
{
    /* Ticks end at 2**52: a limit beyond 2**62 needs no more digits. */
    long long first = floor_div(current, wheel->unit) + wheel->size;
    wheel->limit = first > (1LL << 62) / wheel->unit ? 1LL << 62 : first * wheel->unit;
}

static Wheel *
new_wheel(int level, long long unit, Py_ssize_t size, long long current)
{
    if ((size_t)size > (PY_SSIZE_T_MAX - sizeof(Wheel)) / sizeof(Bucket *)) {
        PyErr_NoMemory();
        return NULL;
    }
    Wheel *wheel = PyMem_Calloc(1, offsetof(Wheel, buckets) + (size_t)size * sizeof(Bucket *));
    if (wheel == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    wheel->level = level;
    wheel->unit = unit;
    wheel->size = size;
    wheel->floor = -(1LL << 62);
    raise_limit(wheel, current);
    return wheel;
}

static void
raise_limits(WheelTimer *self)
{
    long long floor = self->lowest->floor;
    for (Wheel *wheel = self->lowest; wheel != NULL; wheel = wheel->overflow) {
        wheel->floor = floor;
        raise_limit(wheel, self->current);
        floor = wheel->limit;
    }
}

/* The wheel that reaches a tick. Makes no Python objects. NULL if there is no memory. */
static Wheel *
find_wheel(WheelTimer *self, long long tick)
{
    Wheel *wheel = self->lowest;
    while (tick >= wheel->limit) {
        if (wheel->overflow == NULL) {
            wheel->overflow = new_wheel(wheel->level + 1, wheel->unit * wheel->size, wheel->size, self->current);
            if (wheel->overflow == NULL)
                return NULL;
            wheel->overflow->floor = wheel->limit;
        }
        wheel = wheel->overflow;
    }
    return wheel;
}

/* ---- the heap of buckets: of two that start together, the higher level comes first ---- */

static int
is_before(Due a, Due b)
{
    return a.start < b.start || (a.start == b.start && a.wheel->level > b.wheel->level);
}

static int
heap_push(WheelTimer *self, Due due)
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

static void
heap_pop(WheelTimer *self)
{
    Due last = self->heap[--self->heap_length];
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
    if (length > 0)
        self->heap[at] = last;
}

/* ---- the timer ---- */

static PyObject *
known_clock(WheelTimer *self)
{
    if (self->clock == NULL) {
        PyObject *loop = PyObject_CallNoArgs(self->core->get_running_loop);
        if (loop == NULL)
            return NULL;
        Py_XSETREF(self->loop, Py_NewRef(loop));
        Py_XSETREF(self->clock, loop);
    }
    return self->clock;
}

static PyObject *
clock_time(WheelTimer *self)
{
    PyObject *clock = known_clock(self);
    if (clock == NULL)
        return NULL;
    Py_INCREF(clock);
    PyObject *now = PyObject_CallMethodNoArgs(clock, self->core->time);
    Py_DECREF(clock);
    return now;
}

/* The last tick whose time has come: WheelTimer._now. */
static int
current_tick(WheelTimer *self, long long *found)
{
    PyObject *time = clock_time(self);
    if (time == NULL)
        return -1;
    double now = PyFloat_AsDouble(time);
    Py_DECREF(time);
    if (now == -1.0 && PyErr_Occurred())
        return -1;
    if (!(fabs(now * self->rate) < 4.6e18)) { /* Raises. */
        PyObject *integer = PyLong_FromDouble(now * self->rate);
        if (integer != NULL) {
            Py_DECREF(integer);
            PyErr_SetString(PyExc_OverflowError, "the time of the clock is beyond that of any timer");
        }
        return -1;
    }
    long long tick = (long long)(now * self->rate) + 1;
    if ((double)tick / self->rate > now)
        tick--;
    if ((double)tick / self->rate > now)
        tick--;
    *found = tick;
    return 0;
}

static int
check_running(WheelTimer *self, const char *call)
{
    if (self->loop == NULL)
        return 0;
    PyObject *loop = Py_NewRef(self->loop);
    PyObject *running = PyObject_CallMethodNoArgs(loop, self->core->is_running);
    int is_running = running == NULL ? -1 : PyObject_IsTrue(running);
    Py_XDECREF(running);
    if (is_running == 0) {
        PyObject *done = PyObject_CallFunction(self->core->check_loop, "OOs", self, loop, call);
        is_running = done == NULL ? -1 : 1;
        Py_XDECREF(done);
    }
    Py_DECREF(loop);
    return is_running < 0 ? -1 : 0;
}

static int
is_draining(WheelTimer *self)
{
    return self->drained != NULL && self->drained->first != NULL;
}

static int
arm(WheelTimer *self, long long tick, double not_before)
{
    PyObject *done = PyObject_CallMethod((PyObject *)self, "_arm", "Ld", tick, not_before);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

/* Put an empty bucket where `tick` belongs, for timer_place, unless something comes in between. */
static int
open_bucket(WheelTimer *self, long long tick, Bucket *expected)
{
    if (self->loop != NULL) {
        PyObject *loop = Py_NewRef(self->loop);
        const char *call = expected == NULL ? "timer.add(task, deadline)" : "timer.reschedule(task, deadline)";
        PyObject *done = PyObject_CallFunction(self->core->check_loop, "OOs", self, loop, call);
        Py_DECREF(loop);
        if (done == NULL)
            return -1;
        Py_DECREF(done);
    }
    long long now;
    if (current_tick(self, &now) < 0)
        return -1;
    if (self->armed < (double)now && self->armed != AWAKE && (double)(now - self->renewed) > RENEWAL * self->rate) {
        self->renewed = now;
        PyObject *done = PyObject_CallMethod((PyObject *)self, "_renew", NULL);
        if (done == NULL)
            return -1;
        Py_DECREF(done);
    }
    self->recent = self->lowest; /* The caller must look where this does. */
    /* The hands may be far behind, because nothing has been due for a while. */
    if (now > self->current && self->armed != AWAKE && !is_draining(self) &&
        (self->heap_length == 0 || self->heap[0].start > now)) {
        self->current = now;
        self->due = (double)now / self->rate;
        self->epoch++;
        raise_limits(self);
    }
    if (tick < self->current)
        tick = self->current;
    Wheel *wheel = find_wheel(self, tick);
    if (wheel == NULL)
        return -1;
    long long start = floor_div(tick, wheel->unit) * wheel->unit;
    Py_ssize_t slot = slot_of(wheel, tick);
    Bucket *bucket = PyMem_Calloc(1, sizeof(Bucket));
    if (bucket == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    bucket->timer = self;
    if (heap_push(self, (Due){start, wheel}) < 0) {
        PyMem_Free(bucket);
        return -1;
    }
    unsigned long long epoch = self->epoch;
    if ((double)start < self->armed && arm(self, start, -Py_HUGE_VAL) < 0) {
        PyMem_Free(bucket);
        return -1;
    }
    /* Nothing has moved the hands, looked at the heap or closed the timer since: the wheel is there. */
    if (epoch == self->epoch && wheel->buckets[slot] == NULL)
        wheel->buckets[slot] = bucket;
    else
        PyMem_Free(bucket);
    return 0;
}

/* WheelTimer._place: 1 if the entry was put where `deadline` belongs, 0 if something has come in between, -1 on error. */
int
timer_place(Core *core, WheelTimer *self, TimerEntry *entry, double deadline, Bucket *expected)
{
    /* The first tick whose time is not before the deadline. */
    double exact = deadline * self->rate;
    long long tick;
    if (isnan(exact)) {
        PyErr_SetString(PyExc_ValueError, "deadline must be a number of seconds, not nan");
        return -1;
    }
    if (exact >= (double)LAST)
        tick = LAST;
    else if (exact < -9e18)
        tick = self->current;
    else {
        tick = (long long)exact;
        if ((double)tick / self->rate < deadline)
            tick++;
    }
    if (tick >= LAST) { /* Never. */
        if (expected == NULL)
            return !in_timer(entry);
        if (entry->bucket != expected)
            return 0;
        entry->deadline = deadline;
        entry_leave(entry);
        return 1;
    }
    for (;;) {
        Wheel *wheel = self->recent;
        if (!(wheel->floor <= tick && tick < wheel->limit)) {
            wheel = find_wheel(self, tick);
            if (wheel == NULL)
                return -1;
            self->recent = wheel;
        }
        if (tick < self->current) {
            tick = self->current;
            wheel = self->lowest;
        }
        Bucket *bucket = wheel->buckets[slot_of(wheel, tick)];
        if (bucket == NULL) {
            if (open_bucket(self, tick, expected) < 0)
                return -1;
            continue;
        }
        if (expected == NULL ? in_timer(entry) || entry->deadline != deadline : entry->bucket != expected)
            return 0;
        entry->deadline = deadline;
        if (entry->bucket == NULL)
            bucket_append(bucket, entry);
        else if (entry->bucket != bucket)
            move_entry(entry, bucket);
        return 1;
    }
}

static TimerEntry *
as_entry(WheelTimer *self, PyObject *task)
{
    if (!PyObject_TypeCheck(task, self->core->TimerEntry)) {
        PyErr_Format(PyExc_TypeError, "a TimerTask is needed, not this %s", Py_TYPE(task)->tp_name);
        return NULL;
    }
    return (TimerEntry *)task;
}

static int
as_deadline(PyObject *number, double *deadline)
{
    *deadline = PyFloat_AsDouble(number);
    if (*deadline == -1.0 && PyErr_Occurred()) {
        if (!PyErr_ExceptionMatches(PyExc_OverflowError)) /* Else it is an integer or a fraction beyond any float. */
            return -1;
        PyErr_Clear();
        PyObject *zero = PyLong_FromLong(0);
        int positive = zero == NULL ? -1 : PyObject_RichCompareBool(number, zero, Py_GT);
        Py_XDECREF(zero);
        if (positive < 0)
            return -1;
        *deadline = positive ? Py_HUGE_VAL : -Py_HUGE_VAL;
    }
    if (isnan(*deadline)) {
        PyErr_SetString(PyExc_ValueError, "deadline must be a number of seconds, not nan");
        return -1;
    }
    return 0;
}

static const char *const task_and_deadline[] = {"task", "deadline", NULL};

static int
take_task(WheelTimer *self, const char *call, PyObject *const *args, Py_ssize_t count, PyObject *names,
          TimerEntry **entry, double *deadline)
{
    PyObject *values[2];
    if (take_arguments(call, task_and_deadline, 2, args, count, args + count, names, values) < 0)
        return -1;
    *entry = as_entry(self, values[0]);
    return *entry == NULL ? -1 : as_deadline(values[1], deadline);
}

static PyObject *
timer_add(WheelTimer *self, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    TimerEntry *entry;
    double deadline;
    if (check_running(self, "timer.add(task, deadline)") < 0 ||
        take_task(self, "add", args, count, names, &entry, &deadline) < 0)
        return NULL;
    if (!in_timer(entry))
        entry->deadline = deadline;
    int placed = timer_place(self->core, self, entry, deadline, NULL);
    if (placed < 0)
        return NULL;
    if (!placed)
        return PyErr_Format(PyExc_ValueError, "%R waits in a timer already", entry);
    Py_RETURN_NONE;
}

static PyObject *
timer_cancel(WheelTimer *self, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    static const char *const wanted[] = {"task", NULL};
    PyObject *task;
    if (take_arguments("cancel", wanted, 1, args, count, args + count, names, &task) < 0)
        return NULL;
    TimerEntry *entry = as_entry(self, task);
    if (entry == NULL)
        return NULL;
    if (!in_timer(entry))
        Py_RETURN_FALSE;
    entry_leave(entry);
    Py_RETURN_TRUE;
}

static PyObject *
timer_reschedule(WheelTimer *self, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    TimerEntry *entry;
    double deadline;
    if (check_running(self, "timer.reschedule(task, deadline)") < 0 ||
        take_task(self, "reschedule", args, count, names, &entry, &deadline) < 0)
        return NULL;
    int placed = 0;
    while (!placed) { /* Something may come in between and move it. */
        Bucket *expected = in_timer(entry) ? entry->bucket : NULL;
        if (expected == NULL)
            entry->deadline = deadline;
        placed = timer_place(self->core, self, entry, deadline, expected);
    }
    if (placed < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *
timer__place(WheelTimer *self, PyObject *const *args, Py_ssize_t count)
{
    TimerEntry *entry;
    double deadline;
    if (take_task(self, "_place", args, count > 2 ? 2 : count, NULL, &entry, &deadline) < 0)
        return NULL;
    int placed = timer_place(self->core, self, entry, deadline, NULL);
    return placed < 0 ? NULL : PyBool_FromLong(placed);
}

static PyObject *
timer_time(WheelTimer *self, PyObject *unused)
{
    return clock_time(self);
}

/* Start a call of `callback` with the arguments behind the first two. */
static PyObject *
start_call(WheelTimer *self, double when, PyObject *callback, PyObject *context, PyObject *const *args, Py_ssize_t count)
{
    Py_ssize_t more = count > 2 ? count - 2 : 0;
    PyObject *rest = PyTuple_New(more);
    if (rest == NULL)
        return NULL;
    for (Py_ssize_t i = 0; i < more; i++)
        PyTuple_SET_ITEM(rest, i, Py_NewRef(args[2 + i]));
    context = context == NULL || context == Py_None ? PyContext_CopyCurrent() : Py_NewRef(context);
    PyTypeObject *type = (PyTypeObject *)self->core->TimerHandleClass;
    TimerHandle *handle = context == NULL ? NULL : (TimerHandle *)type->tp_alloc(type, 0);
    if (handle == NULL) {
        Py_DECREF(rest);
        Py_XDECREF(context);
        return NULL;
    }
    handle->base.deadline = when;
    handle->callback = Py_NewRef(callback);
    handle->args = rest;
    handle->context = context;
    if (timer_place(self->core, self, &handle->base, when, NULL) < 0) {
        Py_DECREF(handle);
        return NULL;
    }
    return (PyObject *)handle;
}

static PyObject *
timer_call_at(WheelTimer *self, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    static const char *const wanted[] = {"when", "callback", "context", NULL};
    PyObject *values[3];
    double when;
    if (take_arguments("call_at", wanted, 2, args, count > 2 ? 2 : count, args + count, names, values) < 0 ||
        check_running(self, "timer.call_at(when, callback)") < 0 || as_deadline(values[0], &when) < 0)
        return NULL;
    return start_call(self, when, values[1], values[2], args, count);
}

static PyObject *
timer_call_later(WheelTimer *self, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    static const char *const wanted[] = {"delay", "callback", "context", NULL};
    PyObject *values[3];
    if (take_arguments("call_later", wanted, 2, args, count > 2 ? 2 : count, args + count, names, values) < 0 ||
        check_running(self, "timer.call_later(delay, callback)") < 0)
        return NULL;
    PyObject *now = clock_time(self);
    if (now == NULL)
        return NULL;
    PyObject *sum = PyNumber_Add(now, values[0]);
    Py_DECREF(now);
    if (sum == NULL)
        return NULL;
    double when;
    int is_number = as_deadline(sum, &when);
    Py_DECREF(sum);
    return is_number < 0 ? NULL : start_call(self, when, values[1], values[2], args, count);
}

/* WheelTimer._arm_next: arm the clock for the drain in progress or for the earliest bucket that has tasks. */
static PyObject *
timer_arm_next(WheelTimer *self, PyObject *const *args, Py_ssize_t count)
{
    double not_before = count > 0 ? PyFloat_AsDouble(args[0]) : -Py_HUGE_VAL;
    if (not_before == -1.0 && PyErr_Occurred())
        return NULL;
    if (is_draining(self)) {
        if (arm(self, self->current, -Py_HUGE_VAL) < 0)
            return NULL;
        Py_RETURN_NONE;
    }
    while (self->heap_length > 0) {
        long long start = self->heap[0].start;
        Wheel *wheel = self->heap[0].wheel;
        Py_ssize_t slot = slot_of(wheel, start);
        Bucket *bucket = wheel->buckets[slot];
        if (bucket != NULL && bucket->first != NULL) {
            if (arm(self, start, not_before) < 0)
                return NULL;
            break;
        }
        /* All of its tasks have been cancelled: not worth a wake-up. */
        wheel->buckets[slot] = NULL;
        PyMem_Free(bucket);
        self->epoch++;
        heap_pop(self);
    }
    Py_RETURN_NONE;
}

static double
seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Run a task that was taken out of the timer. A request to exit is kept for later, other exceptions are reported. */
static int
run_task(WheelTimer *self, TimerEntry *entry, PyObject **leaving)
{
    Core *core = self->core;
    int failed;
    if (is_operation(core, (PyObject *)entry))
        failed = operation_expire(core, (Operation *)entry) < 0;
    else {
        PyObject *done = PyObject_CallMethodNoArgs((PyObject *)entry, core->_timer_expire);
        failed = done == NULL;
        Py_XDECREF(done);
    }
    if (!failed)
        return 0;
    Handled now;
    handle(&now);
    if (is_exit(now.exception))
        keep_first(leaving, now.exception);
    else {
        PyObject *done = PyObject_CallMethodObjArgs((PyObject *)self, core->_report_task, entry, now.exception, NULL);
        failed = done == NULL;
        Py_XDECREF(done);
        handled(&now);
        return failed ? -1 : 0;
    }
    handled(&now);
    return 0;
}

/* WheelTimer._run_until(now, part): drain buckets in the order of their starts, up to `now` or the end of the slice. */
static PyObject *
timer_run_until(WheelTimer *self, PyObject *const *args, Py_ssize_t count)
{
    Core *core = self->core;
    if (count != 2)
        return PyErr_Format(PyExc_TypeError, "_run_until() takes a tick and a slice");
    long long now = PyLong_AsLongLong(args[0]);
    PyObject *left_ = PyObject_GetAttr(args[1], core->left), *bounded_ = PyObject_GetAttr(args[1], core->bounded);
    Py_ssize_t left = left_ == NULL ? -1 : PyLong_AsSsize_t(left_);
    int bounded = bounded_ == NULL ? -1 : PyObject_IsTrue(bounded_);
    Py_XDECREF(left_);
    Py_XDECREF(bounded_);
    if (PyErr_Occurred())
        return NULL;
    double ends = bounded ? seconds_now() + core->slice_seconds : 0.0;
    PyObject *leaving = NULL;
    for (;;) {
        /* A task may close the timer: the drained bucket is looked up for each. */
        while (is_draining(self)) {
            TimerEntry *entry = self->drained->first;
            bool is_over;
            if (self->drained_level == 1) {
                Py_INCREF(entry);
                entry_leave(entry);
                int ran = run_task(self, entry, &leaving);
                Py_DECREF(entry);
                if (ran < 0) {
                    Py_XDECREF(leaving);
                    return NULL;
                }
                left--;
                is_over = left <= 0 || (bounded && seconds_now() >= ends);
            }
            else {
                self->cascaded++;
                Py_INCREF(entry);
                int placed = timer_place(core, self, entry, entry->deadline, self->drained);
                Py_DECREF(entry);
                if (placed < 0) {
                    Py_XDECREF(leaving);
                    return NULL;
                }
                left--;
                is_over = left <= 0 || (bounded && !(left & 63) && seconds_now() >= ends);
            }
            if (is_over)
                return leaving == NULL ? Py_NewRef(Py_None) : leaving;
        }
        long long start = now;
        bool due = self->heap_length > 0 && self->heap[0].start <= now;
        if (due)
            start = self->heap[0].start;
        if (start > self->current) {
            self->current = start;
            self->due = (double)start / self->rate;
            self->epoch++;
            raise_limits(self);
        }
        if (!due)
            return leaving == NULL ? Py_NewRef(Py_None) : leaving;
        Wheel *wheel = self->heap[0].wheel;
        Py_ssize_t slot = slot_of(wheel, start);
        Bucket *bucket = wheel->buckets[slot];
        if (bucket != NULL) {
            wheel->buckets[slot] = NULL;
            PyMem_Free(self->drained); /* It is empty. */
            self->drained = bucket;
            self->drained_level = wheel->level;
            self->drained_buckets++;
        }
        self->epoch++;
        heap_pop(self);
        left--;
        if (left <= 0 || (bounded && seconds_now() >= ends))
            return leaving == NULL ? Py_NewRef(Py_None) : leaving;
    }
}

static PyObject *
timer_now(WheelTimer *self, PyObject *unused)
{
    long long tick;
    return current_tick(self, &tick) < 0 ? NULL : PyLong_FromLongLong(tick);
}

static PyObject *
timer_levels(WheelTimer *self, PyObject *unused)
{
    PyObject *levels = PyList_New(0);
    for (Wheel *wheel = self->lowest; wheel != NULL && levels != NULL; wheel = wheel->overflow) {
        Py_ssize_t tasks = self->drained != NULL && self->drained_level == wheel->level ? self->drained->count : 0;
        for (Py_ssize_t slot = 0; slot < wheel->size; slot++)
            if (wheel->buckets[slot] != NULL)
                tasks += wheel->buckets[slot]->count;
        PyObject *number = PyLong_FromSsize_t(tasks);
        if (number == NULL || PyList_Append(levels, number) < 0)
            Py_CLEAR(levels);
        Py_XDECREF(number);
    }
    return levels;
}

/* The wheels as (level, unit, size, limit, floor, tasks of each slot or None), for Python to show and to check. */
static PyObject *
timer_shown_wheels(WheelTimer *self, PyObject *unused)
{
    PyObject *wheels = PyList_New(0);
    for (Wheel *wheel = self->lowest; wheel != NULL && wheels != NULL; wheel = wheel->overflow) {
        PyObject *slots = PyList_New(wheel->size);
        if (slots == NULL) {
            Py_CLEAR(wheels);
            break;
        }
        for (Py_ssize_t slot = 0; slot < wheel->size; slot++)
            PyList_SET_ITEM(slots, slot, Py_NewRef(Py_None));
        for (Py_ssize_t slot = 0; slot < wheel->size && slots != NULL; slot++) {
            PyObject *tasks = wheel->buckets[slot] == NULL ? NULL : PyList_New(0);
            if (tasks == NULL) {
                if (PyErr_Occurred())
                    Py_CLEAR(slots);
                continue;
            }
            PyObject *before = PyList_GET_ITEM(slots, slot);
            PyList_SET_ITEM(slots, slot, tasks);
            Py_DECREF(before);
            for (TimerEntry *entry = wheel->buckets[slot]->first; entry != NULL; entry = entry->next)
                if (PyList_Append(tasks, (PyObject *)entry) < 0) {
                    Py_CLEAR(slots);
                    break;
                }
        }
        PyObject *shown = slots == NULL ? NULL
                                        : Py_BuildValue("iLnLLN", wheel->level, wheel->unit, wheel->size, wheel->limit,
                                                        wheel->floor, slots);
        if (shown == NULL || PyList_Append(wheels, shown) < 0)
            Py_CLEAR(wheels);
        Py_XDECREF(shown);
    }
    return wheels;
}

static int
broken(const char *rule)
{
    PyErr_SetString(PyExc_AssertionError, rule);
    return -1;
}

static int
bucket_check(Bucket *bucket)
{
    Py_ssize_t count = 0, owned = 0;
    TimerEntry *previous = NULL;
    for (TimerEntry *entry = bucket->first; entry != NULL; previous = entry, entry = entry->next, count++) {
        if (entry->bucket != bucket || entry->previous != previous)
            return broken("an entry of a list knows its list and its neighbours");
        owned += !entry->held;
    }
    return bucket->last == previous && bucket->count == count && bucket->owned == owned
               ? 0
               : broken("a list knows its end, its length and its references");
}

static int
check_bucket_of_wheel(WheelTimer *self, Wheel *wheel, Py_ssize_t slot)
{
    Bucket *bucket = wheel->buckets[slot];
    for (Py_ssize_t at = 0; at < self->heap_length; at++) {
        Due due = self->heap[at];
        if (due.wheel != wheel || slot_of(wheel, due.start) != slot)
            continue;
        if (!(self->armed <= (double)due.start))
            return broken("the clock is armed for the earliest bucket");
        for (TimerEntry *entry = bucket->first; entry != NULL; entry = entry->next)
            if (ceil(entry->deadline / self->tick) - 1 >= (double)(due.start + wheel->unit))
                return broken("no task is in a bucket that ends before its deadline");
        return bucket_check(bucket);
    }
    return broken("each bucket in a ring is in the heap");
}

/* For tests: the heap holds each bucket, one call is armed for the first, and each task is where its deadline puts it.
   Raises AssertionError. */
static PyObject *
timer_check(WheelTimer *self, PyObject *unused)
{
    for (Py_ssize_t at = 0; at < self->heap_length; at++) {
        Due due = self->heap[at];
        if (at > 0 && is_before(due, self->heap[(at - 1) / 2]) && broken("the heap is in order"))
            return NULL;
        Wheel *wheel = self->lowest;
        while (wheel != NULL && wheel != due.wheel)
            wheel = wheel->overflow;
        if ((wheel == NULL || due.start % wheel->unit || due.start >= wheel->limit) &&
            broken("the heap has starts of buckets of wheels of this timer"))
            return NULL;
    }
    Py_ssize_t held = 0;
    for (Wheel *wheel = self->lowest; wheel != NULL; wheel = wheel->overflow)
        for (Py_ssize_t slot = 0; slot < wheel->size; slot++)
            if (wheel->buckets[slot] != NULL) {
                if (check_bucket_of_wheel(self, wheel, slot) < 0)
                    return NULL;
                held += wheel->buckets[slot]->count - wheel->buckets[slot]->owned;
            }
    if ((self->held != held || (self->holder == NULL) != (held == 0)) &&
        broken("a timer refers to an owner while it has entries that the owner holds"))
        return NULL;
    bool has_handle = self->handle != NULL && self->handle != Py_None;
    if ((has_handle == (self->armed == NEVER_ARMED) && broken("a clock that is armed has a handle")) ||
        (is_draining(self) && broken("no drain is in progress between two calls")))
        return NULL;
    Py_RETURN_NONE;
}

/* Give up all tasks and wheels. */
static void
forget_all(Wheel *wheels, Bucket *drained)
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
            wheels->buckets[slot] = NULL;
        }
        Wheel *overflow = wheels->overflow;
        PyMem_Free(wheels);
        wheels = overflow;
    }
}

static PyObject *
timer_close(WheelTimer *self, PyObject *unused)
{
    Wheel *lowest = new_wheel(1, 1, self->lowest->size, self->current), *wheels = self->lowest;
    if (lowest == NULL)
        return NULL;
    Bucket *drained = self->drained;
    /* What comes while the old tasks are forgotten finds an empty timer. */
    self->lowest = self->recent = lowest;
    self->drained = NULL;
    self->drained_level = 1;
    self->heap_length = 0;
    self->epoch++;
    PyObject *handle = NULL;
    if (self->armed != AWAKE) {
        handle = self->handle;
        self->handle = NULL;
        self->armed = NEVER_ARMED;
    }
    PyObject *done = handle == NULL || handle == Py_None ? Py_NewRef(Py_None) : PyObject_CallMethod(handle, "cancel", NULL);
    Py_XDECREF(handle);
    if (done == NULL) {
        PyObject *type, *value, *traceback;
        PyErr_Fetch(&type, &value, &traceback);
        forget_all(wheels, drained);
        PyErr_Restore(type, value, traceback);
        return NULL;
    }
    forget_all(wheels, drained);
    return done;
}

/* Make the wheels, after __init__ has checked and set the rest. */
static PyObject *
timer_make_wheels(WheelTimer *self, PyObject *argument)
{
    Py_ssize_t size = PyLong_AsSsize_t(argument);
    if (size == -1 && PyErr_Occurred())
        return NULL;
    self->core = CORE_OF(self);
    if (self->clock == Py_None)
        Py_CLEAR(self->clock);
    if (self->loop == Py_None)
        Py_CLEAR(self->loop);
    long long current = 0;
    if (self->clock != NULL && current_tick(self, &current) < 0)
        return NULL;
    Wheel *lowest = new_wheel(1, 1, size, current);
    if (lowest == NULL)
        return NULL;
    Wheel *wheels = self->lowest;
    Bucket *drained = self->drained;
    self->lowest = self->recent = lowest;
    self->drained = NULL;
    self->drained_level = 1;
    self->heap_length = 0;
    self->current = current;
    self->due = (double)current / self->rate;
    self->armed = NEVER_ARMED;
    self->renewed = -(1LL << 62);
    self->epoch++;
    forget_all(wheels, drained); /* If the constructor is called again. */
    Py_RETURN_NONE;
}

static int
timer_traverse(WheelTimer *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->clock);
    Py_VISIT(self->loop);
    Py_VISIT(self->handle);
    Py_VISIT(self->holder);
    if (self->drained != NULL) {
        int stop = bucket_traverse(self->drained, visit, arg);
        if (stop)
            return stop;
    }
    for (Wheel *wheel = self->lowest; wheel != NULL; wheel = wheel->overflow)
        for (Py_ssize_t slot = 0; slot < wheel->size; slot++)
            if (wheel->buckets[slot] != NULL) {
                int stop = bucket_traverse(wheel->buckets[slot], visit, arg);
                if (stop)
                    return stop;
            }
    return 0;
}

static int
timer_clear(WheelTimer *self)
{
    Wheel *wheels = self->lowest;
    Bucket *drained = self->drained;
    if (wheels != NULL) {
        /* Finalizers may still call the timer. */
        Wheel *lowest = new_wheel(1, 1, wheels->size, self->current);
        if (lowest == NULL) {
            PyErr_Clear();
            return 0;
        }
        self->lowest = self->recent = lowest;
        self->drained = NULL;
        self->heap_length = 0;
        self->epoch++;
        forget_all(wheels, drained);
    }
    Py_CLEAR(self->clock);
    Py_CLEAR(self->loop);
    Py_CLEAR(self->handle);
    Py_CLEAR(self->holder);
    return 0;
}

static void
timer_dealloc(WheelTimer *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    if (self->weakrefs != NULL)
        PyObject_ClearWeakRefs((PyObject *)self);
    Wheel *wheels = self->lowest;
    Bucket *drained = self->drained;
    self->lowest = self->recent = NULL;
    self->drained = NULL;
    forget_all(wheels, drained);
    PyMem_Free(self->heap);
    Py_CLEAR(self->clock);
    Py_CLEAR(self->loop);
    Py_CLEAR(self->handle);
    Py_CLEAR(self->holder);
    type->tp_free(self);
    Py_DECREF(type);
}

static Py_ssize_t
timer_length(WheelTimer *self)
{
    Py_ssize_t tasks = self->drained == NULL ? 0 : self->drained->count;
    for (Wheel *wheel = self->lowest; wheel != NULL; wheel = wheel->overflow)
        for (Py_ssize_t slot = 0; slot < wheel->size; slot++)
            if (wheel->buckets[slot] != NULL)
                tasks += wheel->buckets[slot]->count;
    return tasks;
}

static PyObject *
timer_get_clock(WheelTimer *self, void *closure)
{
    return Py_XNewRef(known_clock(self));
}

static PyObject *
timer_get_wheels(WheelTimer *self, void *closure)
{
    int enabled = PyGC_Disable(); /* A finalizer may close the timer. */
    PyObject *levels = timer_shown_wheels(self, NULL);
    if (enabled)
        PyGC_Enable();
    PyObject *wheels = levels == NULL ? NULL : PyObject_CallOneArg(self->core->shown_wheels, levels);
    Py_XDECREF(levels);
    return wheels;
}

/* For tests: the starts of the buckets in the heap. */
static PyObject *
timer_get_heap(WheelTimer *self, void *closure)
{
    PyObject *heap = PyList_New(0);
    for (Py_ssize_t at = 0; at < self->heap_length && heap != NULL; at++) {
        PyObject *start = PyLong_FromLongLong(self->heap[at].start);
        if (start == NULL || PyList_Append(heap, start) < 0)
            Py_CLEAR(heap);
        Py_XDECREF(start);
    }
    return heap;
}

static PyMethodDef timer_methods[] = {
    {"add", (PyCFunction)(void (*)(void))timer_add, METH_FASTCALL | METH_KEYWORDS, DOC_WheelTimer_add},
    {"cancel", (PyCFunction)(void (*)(void))timer_cancel, METH_FASTCALL | METH_KEYWORDS, DOC_WheelTimer_cancel},
    {"reschedule", (PyCFunction)(void (*)(void))timer_reschedule, METH_FASTCALL | METH_KEYWORDS, DOC_WheelTimer_reschedule},
    {"time", (PyCFunction)timer_time, METH_NOARGS, DOC_WheelTimer_time},
    {"call_at", (PyCFunction)(void (*)(void))timer_call_at, METH_FASTCALL | METH_KEYWORDS, DOC_WheelTimer_call_at},
    {"call_later", (PyCFunction)(void (*)(void))timer_call_later, METH_FASTCALL | METH_KEYWORDS, DOC_WheelTimer_call_later},
    {"close", (PyCFunction)timer_close, METH_NOARGS, DOC_WheelTimer_close},
    {"_place", (PyCFunction)(void (*)(void))timer__place, METH_FASTCALL, NULL},
    {"_make_wheels", (PyCFunction)timer_make_wheels, METH_O, NULL},
    {"_now", (PyCFunction)timer_now, METH_NOARGS, NULL},
    {"_levels", (PyCFunction)timer_levels, METH_NOARGS, NULL},
    {"_arm_next", (PyCFunction)(void (*)(void))timer_arm_next, METH_FASTCALL, NULL},
    {"_run_until", (PyCFunction)(void (*)(void))timer_run_until, METH_FASTCALL, NULL},
    {"_check", (PyCFunction)timer_check, METH_NOARGS, NULL},
    {NULL},
};

static PyGetSetDef timer_getset[] = {
    {"clock", (getter)timer_get_clock, NULL, DOC_WheelTimer_clock, NULL},
    {"_wheels", (getter)timer_get_wheels, NULL, NULL, NULL},
    {"_heap", (getter)timer_get_heap, NULL, NULL, NULL},
    {NULL},
};

static PyMemberDef timer_members[] = {
    {"__weaklistoffset__", T_PYSSIZET, offsetof(WheelTimer, weakrefs), READONLY},
    {"_tick", T_DOUBLE, offsetof(WheelTimer, tick), 0},
    {"_rate", T_DOUBLE, offsetof(WheelTimer, rate), 0},
    {"_clock", T_OBJECT, offsetof(WheelTimer, clock), 0},
    {"_loop", T_OBJECT, offsetof(WheelTimer, loop), 0},
    {"_current", T_LONGLONG, offsetof(WheelTimer, current), READONLY},
    {"_epoch", T_ULONGLONG, offsetof(WheelTimer, epoch), 0},
    {"_handle", T_OBJECT, offsetof(WheelTimer, handle), 0},
    {"_armed", T_DOUBLE, offsetof(WheelTimer, armed), 0},
    {"_wake_ups", T_PYSSIZET, offsetof(WheelTimer, wake_ups), 0},
    {"_buckets", T_PYSSIZET, offsetof(WheelTimer, drained_buckets), READONLY},
    {"_cascaded", T_PYSSIZET, offsetof(WheelTimer, cascaded), READONLY},
    {"due", T_DOUBLE, offsetof(WheelTimer, due), READONLY},
    {"longest_slice", T_DOUBLE, offsetof(WheelTimer, longest_slice), 0},
    {NULL},
};

static PyObject *
timer_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    WheelTimer *self = (WheelTimer *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->core = CORE_OF(self);
    self->tick = self->rate = 1;
    self->armed = NEVER_ARMED;
    self->lowest = self->recent = new_wheel(1, 1, 2, 0);
    if (self->lowest == NULL)
        Py_CLEAR(self);
    return (PyObject *)self;
}

static PyType_Slot wheel_timer_slots[] = {
    {Py_tp_new, timer_new},
    {Py_tp_traverse, timer_traverse},
    {Py_tp_clear, timer_clear},
    {Py_tp_dealloc, timer_dealloc},
    {Py_tp_methods, timer_methods},
    {Py_tp_getset, timer_getset},
    {Py_tp_members, timer_members},
    {Py_sq_length, timer_length},
    {0, NULL},
};

PyType_Spec wheel_timer_spec = {
    .name = "purgatory._speedups.c.WheelTimer",
    .basicsize = sizeof(WheelTimer),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = wheel_timer_slots,
};
