/* The core in C: the classes of the Python core, with what is called often done in C.

   The Python is the reference. Each structure here stands for a class there, and a field has the name of its attribute;
   each function has the name of its method. Methods that are called seldom are the Python ones: `purgatory/_speedups`
   makes the classes that users see of the types here and of those methods.

       here            there                                        in
       TimerEntry      TimerEntry                                   timer/task.py
       TimerHandle     TimerHandle                                  timer/handle.py
       Wheel, Bucket   TimingWheel, and the list of a slot          timer/wheel.py
       WheelTimer      WheelTimer                                   timer/timer.py
       Entry           Entry, a list of one                         watchers.py
       Watchers        Watchers                                     watchers.py
       WatcherLists    WatcherLists                                 watchers.py
       Owner           Owner                                        _owner.py
       Operation       DelayedOperation                             operation.py
       Await           the generator of DelayedOperation.__await__  operation.py
       Purgatory       DelayedOperationPurgatory                    purgatory.py

   What differs from the Python:

   - A bucket is a list whose links are in the entries. So an insert and a removal allocate nothing, and a bucket needs
     no second dict when it gets long.
   - An owner has a list of its pending operations, in the order of arrival, and the only reference by which a purgatory
     holds an operation. A bucket has none to an operation that is held so, and an `Entry` of watcher lists has none: its
     operation clears it when it is done or freed. The garbage collector therefore meets an operation once, and in the
     order of memory: in the order of random deadlines it took three times as long. A timer has a reference to its owner
     while there are such operations in it: the loop keeps the timer, and so the deadlines of a purgatory that the program
     has dropped.
   - There is no call between two lines unless one of them calls Python, makes an object that the garbage collector
     tracks, or gives up a reference. A comment marks what was looked at before such a call and may have changed. */

#ifndef PURGATORY_CORE_H
#define PURGATORY_CORE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#include <stdbool.h>

#include "docs.h"

typedef struct TimerEntry TimerEntry;
typedef struct Operation Operation;

/* ---- the timer ---- */

typedef struct {
    struct WheelTimer *timer;
    TimerEntry *first, *last;
    Py_ssize_t count, owned; /* Entries, and references to those that no owner holds. */
} Bucket;

struct TimerEntry {
    PyObject_HEAD
    TimerEntry *previous, *next;
    Bucket *bucket; /* The list that it is in. */
    double deadline;
    bool held; /* By an owner. Else its bucket has a reference to it. */
};

typedef struct {
    TimerEntry base;
    PyObject *callback; /* NULL if it was cancelled. */
    PyObject *args;
    PyObject *context;
    PyObject *weakrefs;
} TimerHandle;

typedef struct Wheel {
    int level;
    Py_ssize_t size;
    long long unit, limit, floor;
    struct Wheel *overflow;
    Bucket *buckets[1]; /* As many as its size. */
} Wheel;

typedef struct {
    long long start;
    Wheel *wheel;
} Due; /* An entry of the heap: a bucket, by its first tick. */

typedef struct WheelTimer {
    PyObject_HEAD
    struct Core *core;
    PyObject *clock; /* NULL until it is known. */
    PyObject *loop;  /* The clock, if it is an event loop. */
    double tick, rate, due, longest_slice;
    long long current, renewed;
    Wheel *lowest, *recent;
    Py_ssize_t held;  /* Entries that an owner holds: their buckets have no references to them. */
    PyObject *holder; /* The owner, while there are such entries. */
    Due *heap;
    Py_ssize_t heap_length, heap_room;
    unsigned long long epoch;
    PyObject *handle;
    double armed;
    Bucket *drained;
    int drained_level;
    Py_ssize_t wake_ups, drained_buckets, cascaded;
    PyObject *weakrefs;
} WheelTimer;

/* ---- watcher lists ---- */

typedef struct {
    PyObject_HEAD
    Operation *operation; /* Without a reference to it; NULL if the entry is dead. */
} Entry;

typedef struct {
    PyObject_HEAD
    PyObject *key;
    PyObject *entries; /* A list, replaced as a whole. */
    Py_ssize_t head;
    Py_ssize_t index;
} Watchers;

typedef struct {
    PyObject_HEAD
    PyObject *by_key;
    PyObject *register_;
    Py_ssize_t size, watched, dead, clears, peak, purged;
    PyObject *revived;
} WatcherLists;

/* ---- operations and their owner ---- */

typedef struct Link {
    struct Link *older, *newer;
} Link;

typedef struct {
    PyObject_HEAD
    struct Core *core;
    WheelTimer *timer;
    PyObject *time;
    char live, closed, purging;
    PyObject *loop, *thread, *listeners, *awaited, *max_pending, *deferred, *purge_handle; /* None if there is none. */
    WatcherLists *lists;
    Py_ssize_t purge_interval, fast_path_limit, depth;
    Py_ssize_t num_delayed, peak_delayed;
    Py_ssize_t completed_at_once, satisfied, missed, expired, closed_operations, cancelled, failed;
    Py_ssize_t purges, scanned;
    Link pending; /* A ring of its pending operations, which has a reference to each; the owner is between its ends. */
} Owner;

/* The states of the table in operation.py, in its order. */
typedef enum {
    NEW, /* The constructor was not called. */
    PENDING,
    COMPLETED,
    CLOSED,
    EXPIRED,
    CANCELLED,
    FAILED,
    COMPLETING,
    CLOSING,
    EXPIRING,
    FAILING,
    STATES
} State;

struct Operation {
    TimerEntry base;
    Link link; /* In the ring of an owner, if it is held. */
    PyObject *outcome;
    Owner *owner;
    Entry *entry;
    PyObject *waiters; /* NULL, the only one, or a list. */
    int keys;
    char state; /* A State. */
};

typedef struct {
    PyObject_HEAD
    Owner *owner;
    PyObject *name, *queue;
    PyObject *weakrefs;
} Purgatory;

/* ---- what the module knows ---- */

typedef struct Core {
    PyTypeObject *TimerEntry, *TimerHandle, *WheelTimer, *Entry, *Watchers, *WatcherLists, *Owner, *Operation, *Await,
        *Purgatory;
    PyObject *states[STATES];
    /* From the Python core, by provide(). */
    PyObject *check_loop, *seconds, *get_running_loop, *TimerHandleClass, *WatchersClass, *shown_wheels;
    Py_ssize_t nesting;
    double slice_seconds;
    /* Names. */
    PyObject *time, *is_running, *left, *bounded, *_report_task, *_timer_expire, *try_complete, *on_complete,
        *on_expiration, *create_future, *done, *set_result, *pop, *_thread_id;
} Core;

extern PyModuleDef core_module;

#define CORE_OF(object) ((Core *)PyModule_GetState(PyType_GetModuleByDef(Py_TYPE(object), &core_module)))

/* An exception that is being handled, as in an `except` block. */
typedef struct {
    PyObject *exception, *before;
} Handled;

/* The arguments of a call, as a function in Python takes them: `count` by position, and those behind by `names`.
   `wanted` ends with NULL; those not given are NULL in `values`. -1 if one of the first `needed` is missing. */
int take_arguments(const char *call, const char *const *wanted, int needed, PyObject *const *args, Py_ssize_t count,
                   PyObject *const *named, PyObject *names, PyObject **values);

void handle(Handled *);     /* Enter the block. */
void handled(Handled *);    /* Leave it. */
int is_exit(PyObject *exception);
void keep_first(PyObject **leaving, PyObject *exception);
int raise_kept(PyObject *leaving); /* As `raise leaving` does. Steals the reference. -1 if there is one. */
int raise_again(PyObject *raised); /* The same, as a bare `raise` does, with its traceback and no other context. */

/* An entry that an owner holds is in this timer from now on. */
static inline void
timer_keep(WheelTimer *self, Owner *owner)
{
    if (self->held++ == 0)
        self->holder = Py_XNewRef((PyObject *)owner);
}

/* Such an entry has left, or is held no longer. The caller looks at it no more: it may be freed with its owner. */
static inline void
timer_unkeep(WheelTimer *self)
{
    if (--self->held == 0)
        Py_CLEAR(self->holder);
}

void entry_leave(TimerEntry *); /* Take it out of its bucket, and give up the bucket's reference if it has one. */
void hold(Owner *, Operation *);
void release(Operation *); /* Give up the owner's reference. */
int is_operation(Core *, PyObject *);
int is_loop_running(Core *, Owner *);
int operation_expire(Core *, Operation *);
int timer_place(Core *, WheelTimer *, TimerEntry *, double deadline, Bucket *expected);

extern PyType_Spec timer_entry_spec, timer_handle_spec, wheel_timer_spec, entry_spec, watchers_spec, watcher_lists_spec,
    owner_spec, operation_spec, await_spec, purgatory_spec;

int watch(Core *, WatcherLists *, Entry *, PyObject *keys, Py_ssize_t *missing);
Entry *entry_of(Core *, Operation *);
int try_operation(Core *, Operation *, Owner *);
PyObject *try_each(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *try_all(PyObject *module, PyObject *const *args, Py_ssize_t count);

#endif
