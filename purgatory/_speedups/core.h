/* The core in C: twins of the base classes of `_timer/` and `_core/`, whose names end in `Base`, and of their parts.

   The Python is the reference. Each structure here stands for a class there, and each function has the name of its
   method. The classes that users see inherit from the types here as they do from those classes.

   What differs from the Python:

   - A bucket is a list whose links are in the entries. So an insert and a removal allocate nothing.
   - An owner has a ring of its pending operations, in the order of arrival, and the only reference by which a purgatory
     holds an operation. A bucket has no reference to an operation that is held so, nor has an `Entry` of watcher lists:
     its operation clears it when it is done or freed. The garbage collector therefore meets an operation once, and in the
     order of memory: in the order of random deadlines it took three times as long. While such operations are in a timer,
     that has a reference to their owner: the loop keeps the timer, and so the deadlines of a purgatory that the program
     has dropped.
   - Nothing is done again because a signal's handler has raised: handlers run in Python only.

   Python runs where a function calls it, where an object that the collector tracks is made (up to CPython 3.11), and
   where a reference is given up. A structure is whole at each of these points. In the watcher lists, where keys are
   hashed and compared in the middle of a change, a flag is set, and methods that would change them meanwhile refuse. */

#ifndef PURGATORY_CORE_H
#define PURGATORY_CORE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#include <stdbool.h>

#include "docs.h" /* Both are made by the build. */
#include "states.h"

#ifdef __GNUC__
#pragma GCC visibility push(hidden) /* libc has functions of some of these names. */
#endif

typedef struct TimerEntry TimerEntry;
typedef struct Operation Operation;
typedef struct Owner Owner;

/* ---- the timer ---- */

typedef struct {
    struct Timer *timer;
    TimerEntry *first, *last;
    Py_ssize_t count, owned; /* Entries, and references to those that no owner holds. */
} Bucket;

struct TimerEntry {
    PyObject_HEAD
    TimerEntry *previous, *next;
    Bucket *bucket; /* The list that it is in. */
    double deadline;
    bool held;           /* By an owner. Else its bucket has a reference to it. */
    unsigned char state; /* An operation's, here because the room is free: 8 bytes of each. */
};

typedef struct Wheel {
    int level;
    Py_ssize_t size;
    long long unit, limit;
    struct Wheel *overflow;
    Bucket *buckets[1]; /* As many as its size. */
} Wheel;

typedef struct {
    long long start;
    Wheel *wheel;
} Due; /* An entry of the heap: a bucket, by its first tick. */

typedef struct Timer {
    PyObject_HEAD
    struct Core *core;
    PyObject *clock; /* NULL until it is known. */
    PyObject *loop;  /* The clock, if it is an event loop. */
    double rate, armed;
    long long current;
    Wheel *lowest;
    Due *heap;
    Py_ssize_t heap_length, heap_room;
    Bucket *drained; /* The bucket that is being emptied, which is in no ring any more. */
    int drained_level;
    Py_ssize_t drained_buckets, cascaded;
    Py_ssize_t held;  /* Entries that an owner holds: their buckets have no references to them. */
    PyObject *holder; /* The owner, while there are such entries. */
} Timer;

/* ---- watcher lists ---- */

typedef struct {
    PyObject_HEAD
    Operation *operation; /* Without a reference to it; NULL if the entry is dead. */
    Py_ssize_t lists;
} Entry;

typedef struct {
    PyObject_HEAD
    PyObject *key;
    PyObject *entries; /* A list, replaced as a whole. */
    Py_ssize_t head, index;
} Watchers;

typedef struct {
    PyObject_HEAD
    PyObject *by_key, *lists; /* A dict, and a list of the same. */
    Py_ssize_t watched, dead, peak, purged;
    bool changing; /* Keys are being looked up in the middle of a change. */
} WatcherLists;

/* ---- operations and their owner ---- */

typedef struct Link {
    struct Link *older, *newer;
} Link;

struct Owner {
    PyObject_HEAD
    struct Core *core;
    Timer *timer;
    WatcherLists *lists;
    PyObject *loop, *listeners; /* None if there is none. */
    PyObject *deferred;         /* A list of operations, or NULL. */
    Operation *at_deadline;     /* The one that is being tried for the last time; its caller has a reference. */
    char live, closed, purging;
    Py_ssize_t purge_interval, max_pending, depth;
    Py_ssize_t num_delayed, peak_delayed, missed, finished[OUTCOMES];
    Link pending; /* A ring of its pending operations, with a reference to each; the owner is between its ends. */
};

struct Operation {
    TimerEntry base;
    Link link; /* In the ring of an owner, if it is held. */
    double timeout;
    PyObject *outcome;
    Owner *owner;
    Entry *entry;
    PyObject *waiters; /* NULL, the only one, the owner, or a list. */
};

typedef struct {
    PyObject_HEAD
    Owner *owner;
} Purgatory;

/* ---- what the module knows ---- */

typedef struct Core {
    PyTypeObject *TimerEntry, *Timer, *Entry, *Watchers, *WatcherLists, *Owner, *Operation, *Await, *Purgatory;
    /* Of Python modules. */
    PyObject *check_loop, *check_count, *seconds, *distinct_keys, *refuse_task, *running_loop, *get_running_loop,
        *loop_time, *PurgatoryMisuse;
    PyObject *no_on_done, *no_on_undelivered; /* The methods of OperationBase, which do nothing. */
    /* Names. */
    PyObject *states[STATES], *outcomes[OUTCOMES];
    PyObject *time, *monotonic, *_timer_expire, *try_complete, *on_complete, *on_expiration, *on_done, *on_undelivered,
        *create_future, *done, *set_result, *_thread_id;
    double slice_seconds; /* The objects are in front of it. */
    Py_ssize_t slice;     /* The most entries of a slice. */
    bool forked;          /* This process is the child of one that had the module. */
} Core;

#define OBJECTS_OF_CORE (offsetof(Core, slice_seconds) / sizeof(PyObject *))

extern PyModuleDef core_module;

#define CORE_OF(object) ((Core *)PyModule_GetState(PyType_GetModuleByDef(Py_TYPE(object), &core_module)))
#define IS_NONE(object) ((object) == NULL || (object) == Py_None)

/* ---- module.c ---- */

/* An exception that is being handled, as in an `except` block. */
typedef struct {
    PyObject *exception, *before;
} Handled;

void handle(Handled *);  /* Enter the block. */
void handled(Handled *); /* Leave it. */
void raise_again(PyObject *raised); /* As a bare `raise` does. Steals the reference. */
void raise_handled(Handled *);      /* Raise it again and leave the block. */
void free_object(void *);           /* The end of a `tp_dealloc`. */
int is_exit(PyObject *exception);
void keep(PyObject **first); /* Keep the exception that is set, if it is the first. */
int raise_kept(PyObject *first); /* Raise it, if there is one. Steals the reference. */

/* The arguments of a call, as a function in Python takes them: `count` by position, and those behind by `names`.
   `wanted` ends with NULL; those not given are NULL in `values`. -1 if one of the first `needed` is missing. */
int take_arguments(const char *call, const char *const *wanted, int needed, PyObject *const *args, Py_ssize_t count,
                   PyObject *names, PyObject **values);

int time_of(Core *, PyObject *clock, double *now);
int is_running(Core *, PyObject *loop); /* Whether `loop` runs in this thread; -1 on error. */
int check_loop(Core *, void *what, PyObject *loop, const char *call, const char *instead);

/* ---- timer.c ---- */

/* An entry that an owner holds is in this timer from now on. */
static inline void
timer_keep(Timer *self, Owner *owner)
{
    if (self->held++ == 0)
        self->holder = Py_XNewRef((PyObject *)owner);
}

/* Such an entry has left, or is held no longer. The caller looks at it no more: it may be freed with its owner. */
static inline void
timer_unkeep(Timer *self)
{
    if (--self->held == 0)
        Py_CLEAR(self->holder);
}

double seconds_now(void); /* Of a monotonic clock. */
PyObject *clock_of(Timer *); /* A new reference. */
int entry_leave(TimerEntry *); /* Take it out of its bucket, and give up the bucket's reference if it has one. */
int timer_place(Timer *, TimerEntry *, double deadline, bool is_new);

/* ---- operation.c ---- */

Entry *entry_of(Core *, Operation *, Py_ssize_t lists);
void hold(Owner *, Operation *);
void release(Operation *); /* Give up the owner's reference. */
Core *core_of(Operation *);
int call(Operation *, const char *method, PyObject *argument); /* A method in Python, of which nothing is returned. */
int outcome_of(Operation *);
int take_step(Operation *, Event);
int try_operation(Core *, Operation *);
int add_waiter(Operation *, PyObject *waiter); /* Whether it waits; -1 on error. */
int remove_waiter(Operation *, PyObject *waiter);

static inline bool
is_done(Operation *self)
{
    return self->base.state >= FIRST_DONE;
}

static inline bool
has_result(Operation *self) /* `on_complete` makes its result, and was not called or has returned. */
{
    int outcome = outcome_of(self);
    return outcome != NONE && outcome != CANCELLED_O && outcome != FAILED_O;
}

/* ---- await.c ---- */

PyObject *operation_await(Operation *);

/* ---- purgatory.c ---- */

static inline bool
is_purge_due(Owner *owner)
{
    return owner->lists->dead > owner->purge_interval && 2 * owner->lists->dead > owner->lists->watched && !owner->purging;
}

int refuse_change(Core *, WatcherLists *); /* Raise if keys are being looked up. */

/* ---- frames.c ---- */

PyObject *walk(PyObject *module, PyObject *args);

extern PyType_Spec timer_entry_spec, timer_spec, entry_spec, watchers_spec, watcher_lists_spec, owner_spec, operation_spec,
    await_spec, purgatory_spec;

#ifdef __GNUC__
#pragma GCC visibility pop
#endif

#endif
