/* Operations: OperationBase of `_core/_base.py`, and the generator of its `__await__`. */

#include "core.h"

#define NESTING 16

/* The table of `states.py`: the next state, by state and event; 0 if there is no such step. */
static const unsigned char NEXT[STATES][EVENTS] = {
    [NEW] = {[HAND_OVER] = ARRIVING, [COMPLETE] = COMPLETING_AT_ONCE, [CANCEL] = CANCELLED, [FAIL] = FAILED},
    [ARRIVING] = {[WATCH] = PENDING, [COMPLETE] = COMPLETING_AT_ONCE, [CANCEL] = CANCELLED, [FAIL] = FAILED},
    [PENDING] = {[COMPLETE] = COMPLETING, [CLOSE] = CLOSING, [EXPIRE] = EXPIRING, [CANCEL] = CANCELLED, [FAIL] = FAILED},
    [COMPLETING_AT_ONCE] = {[RETURN] = COMPLETED_AT_ONCE, [RAISE] = FAILED},
    [COMPLETING] = {[RETURN] = COMPLETED, [RAISE] = FAILED},
    [CLOSING] = {[RETURN] = CLOSED, [RAISE] = FAILED},
    [EXPIRING] = {[RETURN] = EXPIRED, [RAISE] = FAILED},
};

static const signed char OUTCOME[STATES] = {
    [UNMADE] = NONE,           [NEW] = NONE,          [ARRIVING] = NONE,           [PENDING] = NONE,
    [COMPLETING] = SATISFIED_O, [CLOSING] = CLOSED_O,  [COMPLETING_AT_ONCE] = AT_ONCE_O, [EXPIRING] = EXPIRED_O,
    [COMPLETED] = SATISFIED_O, [CLOSED] = CLOSED_O,   [COMPLETED_AT_ONCE] = AT_ONCE_O, [EXPIRED] = EXPIRED_O,
    [CANCELLED] = CANCELLED_O, [FAILED] = FAILED_O,
};

#define IS_DONE(operation) ((operation)->base.state >= COMPLETED_AT_ONCE)

int
outcome_of(Operation *self)
{
    return OUTCOME[self->base.state];
}

/* ---- entries of watcher lists ---- */

static PyMemberDef entry_members[] = {
    {"operation", T_OBJECT, offsetof(Entry, operation), READONLY},
    {"lists", T_PYSSIZET, offsetof(Entry, lists), READONLY},
    {NULL},
};

static PyType_Slot entry_slots[] = {
    {Py_tp_doc, "An operation in watcher lists, shared by all that watch it."},
    {Py_tp_dealloc, free_object},
    {Py_tp_members, entry_members},
    {0, NULL},
};

PyType_Spec entry_spec = {
    .name = "purgatory._speedups.c.Entry",
    .basicsize = sizeof(Entry),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = entry_slots,
};

Entry *
entry_of(Core *core, Operation *operation, Py_ssize_t lists)
{
    Entry *entry = PyObject_New(Entry, core->Entry);
    if (entry != NULL) {
        entry->operation = operation;
        entry->lists = lists;
    }
    return entry;
}

/* ---- the owner's reference ---- */

void
hold(Owner *owner, Operation *self)
{
    Link *newest = owner->pending.older;
    self->link = (Link){newest, &owner->pending};
    newest->newer = owner->pending.older = &self->link;
    self->base.held = true;
    if (self->base.bucket != NULL) {
        self->base.bucket->owned--; /* Its reference is the owner's now. */
        timer_keep(self->base.bucket->timer, owner);
    }
    else
        Py_INCREF(self);
}

void
release(Operation *self)
{
    if (!self->base.held)
        return;
    self->link.older->newer = self->link.newer;
    self->link.newer->older = self->link.older;
    self->base.held = false;
    if (self->base.bucket != NULL) {
        self->base.bucket->owned++; /* The owner's reference is the bucket's now. */
        timer_unkeep(self->base.bucket->timer);
    }
    else
        Py_DECREF(self);
}

/* ---- the life of an operation ---- */

static Core *
core_of(Operation *self)
{
    return self->owner != NULL ? self->owner->core : CORE_OF(self);
}

/* A method of the operation in Python, of which nothing is returned. */
static int
call(Operation *self, const char *method, PyObject *argument)
{
    PyObject *done = argument == NULL ? PyObject_CallMethod((PyObject *)self, method, NULL)
                                      : PyObject_CallMethod((PyObject *)self, method, "(O)", argument);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

static int
make(Operation *self, PyObject *timeout)
{
    double seconds = Py_HUGE_VAL;
    if (PyFloat_CheckExact(timeout) && PyFloat_AS_DOUBLE(timeout) >= 0 && PyFloat_AS_DOUBLE(timeout) < Py_HUGE_VAL)
        seconds = PyFloat_AS_DOUBLE(timeout);
    else if (timeout != Py_None) {
        PyObject *given = Py_BuildValue("sO", "timeout", timeout), *none = Py_BuildValue("{s:O}", "none", Py_True);
        PyObject *checked = given == NULL || none == NULL ? NULL : PyObject_Call(CORE_OF(self)->seconds, given, none);
        Py_XDECREF(given);
        Py_XDECREF(none);
        if (checked == NULL)
            return -1;
        seconds = PyFloat_AsDouble(checked);
        Py_DECREF(checked);
    }
    if (self->base.state > NEW) {
        PyErr_SetString(PyExc_RuntimeError, "cannot initialize an operation again after it was handed to a purgatory");
        return -1;
    }
    self->timeout = seconds;
    self->base.state = NEW;
    return 0;
}

/* A method, not the slot tp_init, so that it has a signature and super().__init__(timeout) builds no tuple. */
static PyObject *
operation_init(Operation *self, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    static const char *const wanted[] = {"timeout", NULL};
    PyObject *timeout;
    if (take_arguments("__init__", wanted, 1, args, count, names, &timeout) < 0 || make(self, timeout) < 0)
        return NULL;
    Py_RETURN_NONE;
}

static int
operation_traverse(Operation *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->outcome);
    Py_VISIT(self->owner);
    Py_VISIT(self->waiters);
    return 0; /* An entry refers to nothing. */
}

static int
operation_clear(Operation *self)
{
    Py_CLEAR(self->outcome);
    Py_CLEAR(self->owner);
    Py_CLEAR(self->waiters);
    return 0;
}

static void
operation_dealloc(Operation *self)
{
    PyObject_GC_UnTrack(self);
    if (self->entry != NULL && self->entry->operation == self)
        self->entry->operation = NULL;
    Py_CLEAR(self->entry);
    operation_clear(self);
    free_object(self);
}

/* _purgatory_step. The caller has a reference to the operation. */
int
take_step(Operation *self, Event event)
{
    unsigned char before = self->base.state, after = NEXT[before][event];
    if (after == 0)
        return 0;
    self->base.state = after;
    if (before == PENDING && self->owner != NULL && self->entry != NULL) {
        self->entry->operation = NULL;
        self->owner->num_delayed--;
        self->owner->lists->dead += self->entry->lists;
        entry_leave(&self->base);
        release(self);
    }
    return 1;
}

/* The outcome of an operation that fails with the exception that is set; a request to exit is kept, too. */
static int
fail(Operation *self, PyObject **exit)
{
    Handled now;
    handle(&now);
    PyObject *failure = PyObject_CallMethod((PyObject *)self, "_purgatory_failure", "O", now.exception);
    if (failure != NULL) {
        Py_XSETREF(self->outcome, failure);
        if (*exit == NULL && is_exit(now.exception))
            *exit = Py_NewRef(now.exception);
    }
    handled(&now);
    return failure == NULL ? -1 : 0;
}

/* A method of the operation has raised, which has its outcome without it. A request to exit is raised. */
static int
report(Operation *self, Owner *owner)
{
    Handled now;
    handle(&now);
    PyObject *done = PyObject_CallMethod((PyObject *)self, "_purgatory_report", "OO", now.exception,
                                         owner == NULL ? Py_None : (PyObject *)owner);
    handled(&now);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

/* The first request to exit is raised at the end, as ExitRequests.raise_first() does. */
static int
raise_exit(PyObject *exit)
{
    if (exit == NULL)
        return 0;
    raise_again(exit);
    return -1;
}

static int
wake_waiter(Core *core, Operation *self, PyObject *waiter, PyObject **exit)
{
    PyObject *done = PyObject_CallMethodNoArgs(waiter, core->done);
    int is_done = done == NULL ? -1 : PyObject_IsTrue(done);
    Py_XDECREF(done);
    if (is_done == 0) {
        PyObject *set = PyObject_CallMethodOneArg(waiter, core->set_result, Py_None);
        Py_XDECREF(set);
        is_done = set == NULL ? -1 : 1;
    }
    if (is_done >= 0 || keep_exit(exit))
        return 0;
    Handled now;
    handle(&now);
    PyObject *failed = PyObject_CallMethod((PyObject *)self, "_purgatory_wake_failed", "OO", waiter, now.exception);
    handled(&now);
    Py_XDECREF(failed);
    return failed == NULL ? -1 : 0;
}

/* _purgatory_wake: `told` are the waiters before on_done was called. */
static int
wake(Core *core, Operation *self, PyObject *told, PyObject **exit)
{
    if (!PyList_CheckExact(told))
        return wake_waiter(core, self, told, exit);
    if (PyList_GET_SIZE(told) == 0) {
        if (self->waiters == NULL)
            return 0;
        Py_CLEAR(self->waiters); /* All have left while it was being completed. */
        return call(self, "_purgatory_undeliver", NULL);
    }
    PyObject *waiters = PyList_New(0); /* The collector may run here, and not below. */
    int failed = waiters == NULL ? -1 : PyList_SetSlice(waiters, 0, 0, told);
    for (Py_ssize_t i = 0; !failed && i < PyList_GET_SIZE(waiters); i++) {
        PyObject *waiter = Py_NewRef(PyList_GET_ITEM(waiters, i));
        failed = wake_waiter(core, self, waiter, exit);
        Py_DECREF(waiter);
    }
    Py_XDECREF(waiters);
    return failed;
}

/* _purgatory_end: count the finished operation, call on_done, wake awaiting tasks, call listeners. */
static int
end(Core *core, Operation *self)
{
    Owner *owner = self->owner;
    self->owner = NULL;
    PyObject *exit = NULL;
    bool is_missed = false;
    if (owner != NULL) {
        int outcome = OUTCOME[self->base.state];
        owner->finished[outcome]++;
        is_missed = outcome == SATISFIED_O && owner->at_deadline == self;
        owner->missed += is_missed;
    }
    PyObject *waiters = Py_XNewRef(self->waiters);
    if (_PyType_Lookup(Py_TYPE(self), core->on_done) != core->no_on_done) {
        if (waiters != NULL && !PyList_CheckExact(waiters)) {
            PyObject *list = Py_BuildValue("[O]", waiters); /* In it one that leaves in on_done is missing. */
            if (list != NULL) {
                Py_XSETREF(self->waiters, list);
                Py_SETREF(waiters, Py_NewRef(list));
            }
            else
                PyErr_Clear();
        }
        PyObject *done = PyObject_CallMethodNoArgs((PyObject *)self, core->on_done);
        if (done == NULL && report(self, owner) < 0)
            keep(&exit);
        Py_XDECREF(done);
    }
    if (waiters != NULL && wake(core, self, waiters, &exit) < 0)
        keep(&exit);
    Py_XDECREF(waiters);
    if (owner != NULL && (is_missed || !IS_NONE(owner->listeners) || is_purge_due(owner))) {
        PyObject *done = PyObject_CallMethod((PyObject *)owner, "note_end", "(OO)", self, is_missed ? Py_True : Py_False);
        Py_XDECREF(done);
        if (done == NULL)
            keep(&exit);
    }
    Py_XDECREF(owner);
    return raise_exit(exit);
}

/* _purgatory_run */
static int
run(Core *core, Operation *self)
{
    if (IS_DONE(self)) /* Cancelled, or it has failed. */
        return end(core, self);
    bool is_expiring = self->base.state == EXPIRING;
    PyObject *exit = NULL;
    if (self->owner != NULL && self->owner->at_deadline == self && self->base.state == COMPLETING) {
        PyObject *logged = PyObject_CallMethod((PyObject *)self->owner, "log_missed", "(O)", self);
        if (logged == NULL)
            keep(&exit);
        Py_XDECREF(logged);
    }
    PyObject *outcome = PyObject_CallMethodNoArgs((PyObject *)self, core->on_complete);
    Event event = RETURN;
    if (outcome != NULL)
        Py_XSETREF(self->outcome, outcome);
    else {
        event = RAISE;
        if (fail(self, &exit) < 0 && !keep_exit(&exit))
            PyErr_WriteUnraisable((PyObject *)self); /* There is no memory for its outcome. */
    }
    if (is_expiring) {
        PyObject *done = PyObject_CallMethodNoArgs((PyObject *)self, core->on_expiration);
        if (done == NULL && report(self, self->owner) < 0 && !keep_exit(&exit))
            PyErr_WriteUnraisable((PyObject *)self);
        Py_XDECREF(done);
    }
    take_step(self, event);
    if (end(core, self) < 0)
        keep(&exit);
    return raise_exit(exit);
}

/* _purgatory_finish: complete or end it, for the winner of the compare-and-set, and then those that were put off. */
static int
finish(Core *core, Operation *self)
{
    Owner *owner = (Owner *)Py_XNewRef(self->owner);
    if (owner == NULL) /* It was never handed over. */
        return run(core, self);
    int failed = 0;
    if (owner->depth >= NESTING) {
        if (owner->deferred == NULL)
            owner->deferred = PyList_New(0);
        failed = owner->deferred == NULL ? -1 : PyList_Append(owner->deferred, (PyObject *)self);
        Py_DECREF(owner);
        return failed;
    }
    PyObject *raised = NULL; /* The first exception: the other ends are made anyway. */
    owner->depth++;
    if (run(core, self) < 0)
        keep(&raised);
    while (owner->depth == 1 && owner->deferred != NULL) {
        PyObject *deferred = owner->deferred;
        owner->deferred = NULL;
        for (Py_ssize_t i = 0; i < PyList_GET_SIZE(deferred); i++) {
            Operation *next = (Operation *)Py_NewRef(PyList_GET_ITEM(deferred, i));
            if (run(core, next) < 0)
                keep(&raised);
            Py_DECREF(next);
        }
        Py_DECREF(deferred);
    }
    owner->depth--;
    Py_DECREF(owner);
    return raise_exit(raised);
}

/* _purgatory_try: 1 if the try has completed the operation, 0 if not, -1 if an exception leaves. */
int
try_operation(Core *core, Operation *self)
{
    Owner *owner = (Owner *)Py_XNewRef(self->owner);
    PyObject *claimed = PyObject_CallMethodNoArgs((PyObject *)self, core->try_complete);
    int completed = claimed == NULL ? -1 : claimed == Py_False ? 0 : PyObject_IsTrue(claimed);
    Py_XDECREF(claimed);
    if (completed > 0 && OUTCOME[self->base.state] == NONE)
        completed = call(self, "_purgatory_misuse", NULL); /* It raises. */
    PyObject *exit = NULL;
    if (completed < 0 && !take_step(self, FAIL)) {
        completed = report(self, owner);
        Py_XDECREF(owner);
        return completed;
    }
    Py_XDECREF(owner);
    if (completed >= 0)
        return completed;
    if (fail(self, &exit) < 0 && !keep_exit(&exit))
        PyErr_WriteUnraisable((PyObject *)self);
    if (finish(core, self) < 0)
        keep(&exit);
    return raise_exit(exit);
}

static int
check_owner(Core *core, Operation *self, const char *call)
{
    if (self->owner == NULL)
        return 0;
    Owner *owner = (Owner *)Py_NewRef(self->owner); /* A method of the loop, or another thread, may end the operation. */
    int failed = check_loop(core, self, owner->loop, call, "") < 0 ? -1 : refuse_change(core, owner->lists);
    Py_DECREF(owner);
    return failed;
}

static PyObject *
operation_force_complete(Operation *self, PyObject *unused)
{
    Core *core = core_of(self);
    if (check_owner(core, self, "operation.force_complete()") < 0)
        return NULL;
    if (!take_step(self, COMPLETE))
        Py_RETURN_FALSE;
    if (finish(core, self) < 0)
        return NULL;
    Py_RETURN_TRUE;
}

static PyObject *
operation_cancel(Operation *self, PyObject *unused)
{
    Core *core = core_of(self);
    if (check_owner(core, self, "operation.cancel()") < 0)
        return NULL;
    if (!take_step(self, CANCEL))
        Py_RETURN_FALSE;
    if (finish(core, self) < 0)
        return NULL;
    Py_RETURN_TRUE;
}

static PyObject *
operation_fail(Operation *self, PyObject *failure)
{
    Core *core = core_of(self);
    if (self->owner != NULL && refuse_change(core, self->owner->lists) < 0)
        return NULL;
    if (!take_step(self, FAIL))
        Py_RETURN_FALSE;
    Py_XSETREF(self->outcome, Py_NewRef(failure));
    if (finish(core, self) < 0)
        return NULL;
    Py_RETURN_TRUE;
}

/* on_done of a class that does not define it: `end` does not even call this. */
static PyObject *
operation_on_done(Operation *self, PyObject *unused)
{
    Py_RETURN_NONE;
}

static PyObject *
operation_close(Operation *self, PyObject *unused)
{
    Core *core = core_of(self);
    if (!take_step(self, CLOSE))
        Py_RETURN_FALSE;
    if (finish(core, self) < 0)
        return NULL;
    Py_RETURN_TRUE;
}

/* _timer_expire: the deadline has come. Try once more, and expire if that does not complete the operation. */
static PyObject *
operation_timer_expire(Operation *self, PyObject *unused)
{
    Core *core = core_of(self);
    Owner *owner = (Owner *)Py_XNewRef(self->owner);
    double deadline = self->base.deadline;
    Operation *before = owner == NULL ? NULL : owner->at_deadline;
    if (owner != NULL)
        owner->at_deadline = self;
    int failed = try_operation(core, self) < 0;
    if (owner != NULL)
        owner->at_deadline = before;
    bool is_rescheduled = self->base.bucket != NULL || self->base.deadline != deadline;
    if (!failed && !is_rescheduled && take_step(self, EXPIRE))
        failed = finish(core, self) < 0;
    Py_XDECREF(owner);
    if (failed)
        return NULL;
    Py_RETURN_NONE;
}

/* ---- waiters ---- */

/* _purgatory_add_waiter: whether it waits; -1 on error. */
static int
add_waiter(Operation *self, PyObject *waiter)
{
    if (IS_DONE(self))
        return 0;
    if (self->waiters == NULL) {
        self->waiters = Py_NewRef(waiter);
        return 1;
    }
    if (!PyList_CheckExact(self->waiters)) {
        PyObject *list = Py_BuildValue("[O]", self->waiters);
        if (list == NULL)
            return -1;
        Py_XSETREF(self->waiters, list);
    }
    return PyList_Append(self->waiters, waiter) < 0 ? -1 : 1;
}

/* _purgatory_remove_waiter */
static int
remove_waiter(Operation *self, PyObject *waiter)
{
    if (self->waiters == NULL)
        return 0; /* Another one has taken the result. */
    if (!PyList_CheckExact(self->waiters)) {
        if (self->waiters != waiter) {
            PyErr_SetString(PyExc_ValueError, "not a waiter of this operation");
            return -1;
        }
        PyObject *none = PyList_New(0);
        if (none == NULL)
            return -1;
        Py_XSETREF(self->waiters, none);
    }
    else {
        Py_ssize_t at = PyList_GET_SIZE(self->waiters) - 1;
        while (at >= 0 && PyList_GET_ITEM(self->waiters, at) != waiter)
            at--;
        if (at < 0) {
            PyErr_SetString(PyExc_ValueError, "not a waiter of this operation");
            return -1;
        }
        if (PyList_SetSlice(self->waiters, at, at + 1, NULL) < 0)
            return -1;
    }
    if (self->waiters == NULL || PyList_GET_SIZE(self->waiters) > 0)
        return 0;
    if (OUTCOME[self->base.state] == NONE) {
        Py_CLEAR(self->waiters);
        return call(self, "cancel", NULL); /* Which a subclass may extend. */
    }
    if (!IS_DONE(self))
        return 0; /* It is being completed, and finds the empty list at its end. */
    Py_CLEAR(self->waiters);
    return call(self, "_purgatory_undeliver", NULL);
}

static PyObject *
operation_add_waiter(Operation *self, PyObject *waiter)
{
    int waits = add_waiter(self, waiter);
    return waits < 0 ? NULL : PyBool_FromLong(waits);
}

static PyObject *
operation_remove_waiter(Operation *self, PyObject *waiter)
{
    if (remove_waiter(self, waiter) < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *
operation_taken(Operation *self, PyObject *unused)
{
    if (self->owner == NULL) /* Else they have not been told yet. */
        Py_CLEAR(self->waiters);
    Py_RETURN_NONE;
}

/* ---- the type ---- */

static PyObject *
operation_done(Operation *self, PyObject *unused)
{
    return PyBool_FromLong(IS_DONE(self));
}

static PyObject *
operation_expired(Operation *self, PyObject *unused)
{
    return PyBool_FromLong(OUTCOME[self->base.state] == EXPIRED_O);
}

static PyObject *
operation_cancelled(Operation *self, PyObject *unused)
{
    return PyBool_FromLong(OUTCOME[self->base.state] == CANCELLED_O);
}

static PyObject *
operation_get_outcome(Operation *self, void *closure)
{
    int outcome = OUTCOME[self->base.state];
    return Py_NewRef(outcome == NONE ? Py_None : core_of(self)->outcomes[outcome]);
}

static PyObject *
operation_get_state_name(Operation *self, void *closure)
{
    if (self->base.state == UNMADE) {
        PyErr_SetString(PyExc_AttributeError, "_purgatory_state_name");
        return NULL;
    }
    return Py_NewRef(core_of(self)->states[self->base.state]);
}

static PyObject *operation_await(Operation *self);

static PyMethodDef operation_methods[] = {
    {"__init__", (PyCFunction)(void (*)(void))operation_init, METH_FASTCALL | METH_KEYWORDS,
     DOC_OperationBase___init__},
    {"force_complete", (PyCFunction)operation_force_complete, METH_NOARGS, DOC_OperationBase_force_complete},
    {"cancel", (PyCFunction)operation_cancel, METH_NOARGS, DOC_OperationBase_cancel},
    {"done", (PyCFunction)operation_done, METH_NOARGS, DOC_OperationBase_done},
    {"expired", (PyCFunction)operation_expired, METH_NOARGS, DOC_OperationBase_expired},
    {"cancelled", (PyCFunction)operation_cancelled, METH_NOARGS, DOC_OperationBase_cancelled},
    {"on_done", (PyCFunction)operation_on_done, METH_NOARGS, DOC_OperationBase_on_done},
    {"_purgatory_close", (PyCFunction)operation_close, METH_NOARGS, NULL},
    {"_purgatory_fail", (PyCFunction)operation_fail, METH_O, NULL},
    {"_purgatory_add_waiter", (PyCFunction)operation_add_waiter, METH_O, NULL},
    {"_purgatory_remove_waiter", (PyCFunction)operation_remove_waiter, METH_O, NULL},
    {"_purgatory_taken", (PyCFunction)operation_taken, METH_NOARGS, NULL},
    {"_timer_expire", (PyCFunction)operation_timer_expire, METH_NOARGS, NULL},
    {NULL},
};

static PyGetSetDef operation_getset[] = {
    {"outcome", (getter)operation_get_outcome, NULL, DOC_OperationBase_outcome, NULL},
    {"_purgatory_state_name", (getter)operation_get_state_name, NULL, NULL, NULL},
    {NULL},
};

static PyMemberDef operation_members[] = {
    {"_purgatory_owner", T_OBJECT, offsetof(Operation, owner), READONLY},
    {"_purgatory_entry", T_OBJECT, offsetof(Operation, entry), READONLY},
    {"_purgatory_outcome", T_OBJECT_EX, offsetof(Operation, outcome), READONLY},
    {"_purgatory_timeout", T_DOUBLE, offsetof(Operation, timeout), READONLY},
    {NULL},
};

static PyType_Slot operation_slots[] = {
    {Py_tp_doc, "OperationBase(timeout)\n--\n\nAn operation: its state, its place in a purgatory, its awaiting tasks."},
    {Py_tp_traverse, operation_traverse},
    {Py_tp_clear, operation_clear},
    {Py_tp_dealloc, operation_dealloc},
    {Py_tp_methods, operation_methods},
    {Py_tp_getset, operation_getset},
    {Py_tp_members, operation_members},
    {Py_am_await, operation_await},
    {0, NULL},
};

PyType_Spec operation_spec = {
    .name = "purgatory._speedups.c.OperationBase",
    .basicsize = sizeof(Operation),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = operation_slots,
};

/* ---- awaiting ---- */

typedef struct {
    PyObject_HEAD
    Operation *operation; /* NULL at the end. */
    PyObject *waiter;     /* The future, once it has begun. */
    PyObject *iterator;   /* That of the future. */
    bool running;         /* A step is under way, in which a generator in Python refuses another one. */
} Await;

static PyObject *
operation_await(Operation *self)
{
    Core *core = core_of(self);
    Await *await = PyObject_GC_New(Await, core->Await);
    if (await == NULL)
        return NULL;
    await->operation = (Operation *)Py_NewRef(self);
    await->running = false;
    await->waiter = await->iterator = NULL;
    PyObject_GC_Track(await);
    return (PyObject *)await;
}

/* Begin to wait: 1 with a future, 0 if the operation is done already. */
static int
begin(Core *core, Operation *self, PyObject **waiter)
{
    PyObject *future = NULL, *loop = self->owner == NULL || IS_NONE(self->owner->loop) ? NULL : Py_NewRef(self->owner->loop);
    int is_here = loop == NULL ? 0 : is_running(core, loop);
    if (is_here > 0)
        future = PyObject_CallMethodNoArgs(loop, core->create_future);
    else if (is_here == 0) /* A rare case, or it raises. */
        future = PyObject_CallMethod((PyObject *)self, "_purgatory_new_waiter", NULL);
    Py_XDECREF(loop);
    int waits = future == NULL ? -1 : add_waiter(self, future);
    if (waits <= 0)
        Py_XDECREF(future);
    else
        *waiter = future;
    return waits;
}

static PyObject *
take_result(Await *self)
{
    Operation *operation = self->operation;
    self->operation = NULL;
    Py_CLEAR(self->iterator);
    Py_CLEAR(self->waiter);
    if (operation->owner == NULL) /* Else they have not been told yet. */
        Py_CLEAR(operation->waiters); /* It is delivered, even if the others leave. */
    PyObject *result;
    if (IS_DONE(operation) && operation->base.state < CANCELLED && operation->outcome != NULL)
        result = Py_NewRef(operation->outcome);
    else
        result = PyObject_CallMethod((PyObject *)operation, "result", NULL);
    Py_DECREF(operation);
    return result;
}

/* The awaiting task was cancelled, with its exception set, or its coroutine is closed. */
static void
leave(Await *self)
{
    Operation *operation = self->operation;
    PyObject *waiter = self->waiter;
    self->operation = NULL;
    self->waiter = NULL;
    Py_CLEAR(self->iterator);
    if (operation != NULL && waiter != NULL) {
        Handled raised = {NULL, NULL};
        bool is_closed = !PyErr_Occurred() || PyErr_ExceptionMatches(PyExc_GeneratorExit);
        if (PyErr_Occurred())
            handle(&raised);
        int failed = is_closed ? call(operation, "_purgatory_leave_soon", waiter) : remove_waiter(operation, waiter);
        if (raised.exception != NULL && failed)
            handled(&raised);
        else if (raised.exception != NULL)
            raise_handled(&raised);
    }
    Py_XDECREF(operation);
    Py_XDECREF(waiter);
}

static PySendResult
step_await(Await *self, PyObject *value, PyObject **result)
{
    if (self->iterator == NULL) {
        Operation *operation = self->operation;
        if (value != Py_None) {
            PyErr_SetString(PyExc_TypeError, "can't send non-None value to a just-started generator");
            return PYGEN_ERROR;
        }
        if (!IS_DONE(operation)) {
            int waits = begin(core_of(operation), operation, &self->waiter);
            if (waits > 0)
                self->iterator = PyObject_GetIter(self->waiter);
            if (waits < 0 || (waits > 0 && self->iterator == NULL)) {
                leave(self);
                return PYGEN_ERROR;
            }
        }
    }
    if (self->iterator != NULL) {
        PyObject *iterator = Py_NewRef(self->iterator);
        PySendResult sent = PyIter_Send(iterator, value, result);
        Py_DECREF(iterator);
        if (sent == PYGEN_NEXT)
            return PYGEN_NEXT;
        if (sent == PYGEN_ERROR) {
            leave(self);
            return PYGEN_ERROR;
        }
        Py_CLEAR(*result);
    }
    *result = take_result(self);
    return *result == NULL ? PYGEN_ERROR : PYGEN_RETURN;
}

static int
check_suspended(Await *self)
{
    if (self->running)
        PyErr_SetString(PyExc_ValueError, "generator already executing");
    return self->running ? -1 : 0;
}

static PySendResult
await_send(Await *self, PyObject *value, PyObject **result)
{
    *result = NULL;
    if (check_suspended(self) < 0)
        return PYGEN_ERROR;
    if (self->operation == NULL) {
        *result = Py_NewRef(Py_None);
        return PYGEN_RETURN;
    }
    self->running = true;
    PySendResult sent = step_await(self, value, result);
    self->running = false;
    return sent;
}

/* As a generator does: a value that is returned is raised as StopIteration. */
static PyObject *
stop_iteration(PyObject *result)
{
    PyObject *stop = PyObject_CallOneArg(PyExc_StopIteration, result);
    Py_DECREF(result);
    if (stop != NULL) {
        PyErr_SetObject(PyExc_StopIteration, stop);
        Py_DECREF(stop);
    }
    return NULL;
}

static PyObject *
await_send_method(Await *self, PyObject *value)
{
    PyObject *result;
    PySendResult sent = await_send(self, value, &result);
    return sent == PYGEN_RETURN ? stop_iteration(result) : result;
}

static PyObject *
await_next(Await *self)
{
    return await_send_method(self, Py_None);
}

static PyObject *
throw(Await *self, PyObject *args)
{
    if (self->iterator == NULL) { /* It has not begun, or has ended. */
        PyObject *type, *value = NULL, *traceback = NULL;
        if (!PyArg_UnpackTuple(args, "throw", 1, 3, &type, &value, &traceback))
            return NULL;
        Py_CLEAR(self->operation);
        if (PyExceptionInstance_Check(type))
            PyErr_SetObject((PyObject *)Py_TYPE(type), type);
        else if (PyExceptionClass_Check(type))
            PyErr_Restore(Py_NewRef(type), Py_XNewRef(value), Py_XNewRef(traceback == Py_None ? NULL : traceback));
        else
            PyErr_SetString(PyExc_TypeError, "exceptions must derive from BaseException");
        return NULL;
    }
    PyObject *throw = PyObject_GetAttrString(self->iterator, "throw");
    PyObject *result = throw == NULL ? NULL : PyObject_Call(throw, args, NULL);
    Py_XDECREF(throw);
    if (result != NULL)
        return result;
    if (PyErr_ExceptionMatches(PyExc_StopIteration)) {
        PyErr_Clear();
        result = take_result(self);
        return result == NULL ? NULL : stop_iteration(result);
    }
    leave(self);
    return NULL;
}

static PyObject *
await_throw(Await *self, PyObject *args)
{
    if (check_suspended(self) < 0)
        return NULL;
    self->running = true;
    PyObject *result = throw(self, args);
    self->running = false;
    return result;
}

static PyObject *
await_close(Await *self, PyObject *unused)
{
    if (check_suspended(self) < 0)
        return NULL;
    self->running = true;
    leave(self);
    self->running = false;
    if (PyErr_Occurred())
        return NULL;
    Py_RETURN_NONE;
}

static void
await_finalize(Await *self)
{
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    leave(self);
    if (PyErr_Occurred())
        PyErr_WriteUnraisable((PyObject *)self);
    PyErr_Restore(type, value, traceback);
}

static int
await_traverse(Await *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->operation);
    Py_VISIT(self->waiter);
    Py_VISIT(self->iterator);
    return 0;
}

static int
await_clear(Await *self)
{
    Py_CLEAR(self->operation);
    Py_CLEAR(self->waiter);
    Py_CLEAR(self->iterator);
    return 0;
}

static void
await_dealloc(Await *self)
{
    if (self->operation != NULL && PyObject_CallFinalizerFromDealloc((PyObject *)self) < 0)
        return;
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    await_clear(self);
    PyObject_GC_Del(self);
    Py_DECREF(type);
}

static PyMethodDef await_methods[] = {
    {"send", (PyCFunction)await_send_method, METH_O, NULL},
    {"throw", (PyCFunction)await_throw, METH_VARARGS, NULL},
    {"close", (PyCFunction)await_close, METH_NOARGS, NULL},
    {NULL},
};

static PyType_Slot await_slots[] = {
    {Py_tp_traverse, await_traverse},
    {Py_tp_clear, await_clear},
    {Py_tp_dealloc, await_dealloc},
    {Py_tp_finalize, await_finalize},
    {Py_tp_iter, PyObject_SelfIter},
    {Py_tp_iternext, await_next},
    {Py_tp_methods, await_methods},
    {Py_am_send, await_send},
    {0, NULL},
};

PyType_Spec await_spec = {
    .name = "purgatory._speedups.c.Await",
    .basicsize = sizeof(Await),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = await_slots,
};
