/* Operations: OperationBase of `_core/operation.py`, and Entry of `_core/watchers.py`. */

#include "core.h"

#define NESTING 16

/* The next state, by state and event; 0 if there is no such step. */
static const unsigned char NEXT[STATES][EVENTS] = STEPS_OF_STATES;
static const signed char OUTCOME[STATES] = OUTCOMES_OF_STATES;

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

Core *
core_of(Operation *self)
{
    return self->owner != NULL ? self->owner->core : CORE_OF(self);
}

int
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
        PyErr_Format(CORE_OF(self)->PurgatoryMisuse, "cannot initialize %R again: create a new operation for each wait", self);
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
    if (before == PENDING) {
        if (self->owner != NULL && self->entry != NULL) {
            self->entry->operation = NULL;
            self->owner->num_delayed--;
            self->owner->lists->dead += self->entry->lists;
        }
        entry_leave(&self->base);
        release(self);
    }
    return 1;
}

/* The result of an operation that fails with the exception that is set. A request to exit is kept, too. */
static void
fail(Operation *self, PyObject **raised)
{
    Handled now;
    handle(&now);
    PyObject *failure = PyObject_CallMethod((PyObject *)self, "_purgatory_failure", "O", now.exception);
    if (failure == NULL)
        PyErr_WriteUnraisable((PyObject *)self); /* There is no memory for it. */
    else
        Py_XSETREF(self->outcome, failure);
    if (*raised == NULL && is_exit(now.exception))
        *raised = Py_NewRef(now.exception);
    handled(&now);
}

/* A method of the operation has raised, which has its outcome without it. A request to exit is kept. */
static void
report(Operation *self, Owner *owner, PyObject **raised)
{
    Handled now;
    handle(&now);
    PyObject *done = PyObject_CallMethod((PyObject *)self, "_purgatory_report", "OO", now.exception,
                                         owner == NULL ? Py_None : (PyObject *)owner);
    handled(&now);
    if (done == NULL)
        keep(raised);
    Py_XDECREF(done);
}

static void
wake_waiter(Core *core, Operation *self, PyObject *waiter, PyObject **raised)
{
    PyObject *done = PyObject_CallMethodNoArgs(waiter, core->done);
    int is_over = done == NULL ? -1 : PyObject_IsTrue(done);
    Py_XDECREF(done);
    if (is_over == 0) {
        PyObject *set = PyObject_CallMethodOneArg(waiter, core->set_result, Py_None);
        Py_XDECREF(set);
        is_over = set == NULL ? -1 : 1;
    }
    if (is_over >= 0)
        return;
    Handled now;
    handle(&now);
    PyObject *reported = NULL;
    if (is_exit(now.exception))
        raise_handled(&now);
    else {
        reported = PyObject_CallMethod((PyObject *)self, "_purgatory_wake_failed", "OO", waiter, now.exception);
        handled(&now);
    }
    if (reported == NULL)
        keep(raised); /* The other waiters are woken anyway. */
    Py_XDECREF(reported);
}

/* Wake those who waited before on_done was called, and have not left in it. */
static int
wake(Core *core, Operation *self, PyObject *waiters, PyObject **raised)
{
    if (!PyList_CheckExact(waiters)) {
        wake_waiter(core, self, waiters, raised);
        return 0;
    }
    if (PyList_GET_SIZE(waiters) == 0) {
        if (self->waiters == NULL)
            return 0;
        Py_CLEAR(self->waiters); /* All have left while it was being completed. */
        return call(self, "_purgatory_undeliver", NULL);
    }
    PyObject *left = PyList_New(0); /* The collector may run here, and not below. */
    int failed = left == NULL ? -1 : PyList_SetSlice(left, 0, 0, waiters);
    for (Py_ssize_t i = 0; !failed && i < PyList_GET_SIZE(left); i++) {
        PyObject *waiter = Py_NewRef(PyList_GET_ITEM(left, i));
        wake_waiter(core, self, waiter, raised);
        Py_DECREF(waiter);
    }
    Py_XDECREF(left);
    return failed;
}

/* Let the only waiter be in a list. */
static int
as_list(Operation *self)
{
    PyObject *list = PyList_New(1), *only = Py_XNewRef(self->waiters); /* A collection may have taken it away. */
    if (list == NULL || only == NULL) {
        Py_XDECREF(list);
        Py_XDECREF(only);
        return list == NULL ? -1 : 0;
    }
    PyList_SET_ITEM(list, 0, only);
    Py_XSETREF(self->waiters, list);
    return 0;
}

/* _purgatory_tell: make it done, count it, call on_done, wake awaiting tasks, call listeners. */
static int
tell(Core *core, Operation *self)
{
    Owner *owner = self->owner;
    PyObject *raised = NULL;
    bool is_missed = false, has_on_done = _PyType_Lookup(Py_TYPE(self), core->on_done) != core->no_on_done;
    if (has_on_done && self->waiters != NULL && !PyList_CheckExact(self->waiters) && as_list(self) < 0)
        PyErr_Clear(); /* In the list, one that leaves in on_done is missing. */
    PyObject *waiters = Py_XNewRef(self->waiters);
    take_step(self, END);
    self->owner = NULL;
    if (owner != NULL) {
        int outcome = outcome_of(self);
        owner->finished[outcome]++;
        is_missed = outcome == SATISFIED_O && owner->at_deadline == self;
        owner->missed += is_missed;
        if (waiters == NULL && has_result(self) &&
            _PyType_Lookup(Py_TYPE(self), core->on_undelivered) != core->no_on_undelivered)
            self->waiters = Py_NewRef((PyObject *)owner);
    }
    if (has_on_done) {
        PyObject *done = PyObject_CallMethodNoArgs((PyObject *)self, core->on_done);
        if (done == NULL)
            report(self, owner, &raised);
        Py_XDECREF(done);
    }
    if (waiters != NULL && wake(core, self, waiters, &raised) < 0)
        keep(&raised);
    Py_XDECREF(waiters);
    if (owner != NULL && (is_missed || !IS_NONE(owner->listeners) || is_purge_due(owner))) {
        PyObject *done = PyObject_CallMethod((PyObject *)owner, "note_end", "(OO)", self, is_missed ? Py_True : Py_False);
        Py_XDECREF(done);
        if (done == NULL)
            keep(&raised);
    }
    Py_XDECREF(owner);
    return raise_kept(raised);
}

/* _purgatory_run: let the operation make its result, and tell everybody. */
static int
run(Core *core, Operation *self)
{
    PyObject *raised = NULL;
    if (has_result(self)) { /* Else it was cancelled, or has failed. */
        bool is_expiring = self->base.state == EXPIRING;
        Owner *owner = self->owner;
        PyObject *logged = NULL, *result = NULL;
        bool is_missed = owner != NULL && owner->at_deadline == self && self->base.state == COMPLETING;
        if (is_missed)
            logged = PyObject_CallMethod((PyObject *)owner, "log_missed", "(O)", self);
        if (!is_missed || logged != NULL)
            result = PyObject_CallMethodNoArgs((PyObject *)self, core->on_complete);
        Py_XDECREF(logged);
        if (result != NULL)
            Py_XSETREF(self->outcome, result);
        else {
            take_step(self, RAISE);
            fail(self, &raised);
        }
        if (is_expiring) {
            PyObject *done = PyObject_CallMethodNoArgs((PyObject *)self, core->on_expiration);
            if (done == NULL)
                report(self, owner, &raised);
            Py_XDECREF(done);
        }
    }
    if (tell(core, self) < 0)
        keep(&raised);
    return raise_kept(raised);
}

/* _purgatory_finish: end it now, for the winner of the compare-and-set, and then the deferred ones, or defer it. */
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
    return raise_kept(raised);
}

/* _purgatory_end: 1 if this call has ended it, 0 if it had its outcome, -1 if an exception leaves. */
static int
end(Core *core, Operation *self, Event event)
{
    if (!take_step(self, event))
        return 0;
    return finish(core, self) < 0 ? -1 : 1;
}

/* _purgatory_try: 1 if the try has completed the operation, 0 if not, -1 if an exception leaves. */
int
try_operation(Core *core, Operation *self)
{
    Owner *owner = (Owner *)Py_XNewRef(self->owner);
    PyObject *claimed = PyObject_CallMethodNoArgs((PyObject *)self, core->try_complete), *raised = NULL;
    int completed = claimed == NULL ? -1 : claimed == Py_False ? 0 : PyObject_IsTrue(claimed);
    Py_XDECREF(claimed);
    if (completed > 0 && outcome_of(self) == NONE)
        completed = call(self, "_purgatory_misuse", NULL); /* It raises. */
    if (completed < 0) {
        if (take_step(self, FAIL)) {
            fail(self, &raised);
            if (finish(core, self) < 0)
                keep(&raised);
        }
        else
            report(self, owner, &raised);
        completed = raise_kept(raised);
    }
    Py_XDECREF(owner);
    return completed;
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

static int
check_made(Operation *self)
{
    if (self->base.state == UNMADE)
        PyErr_Format(PyExc_AttributeError, "%.100s.__init__() did not call super().__init__(timeout)", Py_TYPE(self)->tp_name);
    return self->base.state == UNMADE ? -1 : 0;
}

static PyObject *
end_by(Operation *self, Event event, const char *call)
{
    Core *core = core_of(self);
    bool is_refused = check_made(self) < 0 || (call != NULL && check_owner(core, self, call) < 0);
    int ended = is_refused ? -1 : end(core, self, event);
    return ended < 0 ? NULL : PyBool_FromLong(ended);
}

static PyObject *
operation_force_complete(Operation *self, PyObject *unused)
{
    return end_by(self, COMPLETE, "operation.force_complete()");
}

static PyObject *
operation_cancel(Operation *self, PyObject *unused)
{
    return end_by(self, CANCEL, "operation.cancel()");
}

static PyObject *
operation_close(Operation *self, PyObject *unused)
{
    return end_by(self, CLOSE, NULL);
}

static PyObject *
operation_fail(Operation *self, PyObject *failure)
{
    if (self->owner != NULL && refuse_change(self->owner->core, self->owner->lists) < 0)
        return NULL;
    if (NEXT[self->base.state][FAIL] != 0)
        Py_XSETREF(self->outcome, Py_NewRef(failure));
    return end_by(self, FAIL, NULL);
}

/* on_done and on_undelivered of a class that does not define them: `tell` does not even call these. */
static PyObject *
operation_on_done(Operation *self, PyObject *unused)
{
    Py_RETURN_NONE;
}

/* _timer_expire: the deadline has come. Try once more, and expire if that does not complete the operation. */
static PyObject *
operation_timer_expire(Operation *self, PyObject *unused)
{
    Core *core = core_of(self);
    Owner *owner = (Owner *)Py_XNewRef(self->owner);
    Operation *before = owner == NULL ? NULL : owner->at_deadline;
    if (owner != NULL)
        owner->at_deadline = self;
    int failed = try_operation(core, self) < 0;
    if (owner != NULL)
        owner->at_deadline = before;
    Bucket *bucket = self->base.bucket;
    if (!failed && bucket != NULL && bucket == bucket->timer->drained) /* Else it was rescheduled. */
        failed = end(core, self, EXPIRE) < 0;
    Py_XDECREF(owner);
    if (failed)
        return NULL;
    Py_RETURN_NONE;
}

/* ---- waiters ---- */

int
add_waiter(Operation *self, PyObject *waiter)
{
    if (is_done(self))
        return 0;
    if (self->waiters != NULL && !PyList_CheckExact(self->waiters) && as_list(self) < 0)
        return -1;
    if (self->waiters == NULL && PyList_CheckExact(waiter) && (self->waiters = PyList_New(0)) == NULL)
        return -1;
    if (self->waiters != NULL)
        return PyList_Append(self->waiters, waiter) < 0 ? -1 : 1;
    self->waiters = Py_NewRef(waiter);
    return 1;
}

int
remove_waiter(Operation *self, PyObject *waiter)
{
    if (self->waiters == NULL || PyObject_TypeCheck(self->waiters, core_of(self)->Owner))
        return 0; /* Another one has taken the result, or it never waited. */
    if (!PyList_CheckExact(self->waiters) && as_list(self) < 0)
        return -1;
    PyObject *waiters = Py_XNewRef(self->waiters);
    Py_ssize_t at = 0, length = waiters == NULL ? 0 : PyList_GET_SIZE(waiters);
    while (at < length && PyList_GET_ITEM(waiters, at) != waiter)
        at++;
    int failed = at < length ? PyList_SetSlice(waiters, at, at + 1, NULL) : -1;
    if (at == length)
        PyErr_Format(PyExc_ValueError, "%R is not a waiter of %R", waiter, self);
    bool is_last = !failed && waiters == self->waiters && PyList_GET_SIZE(waiters) == 0;
    Py_XDECREF(waiters);
    if (!is_last || (!is_done(self) && outcome_of(self) != NONE))
        return failed; /* If it is being completed, it finds the empty list at its end. */
    Py_CLEAR(self->waiters);
    return call(self, is_done(self) ? "_purgatory_undeliver" : "cancel", NULL); /* Which a subclass may extend. */
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
    if (is_done(self)) /* Else they have not been told yet. */
        Py_CLEAR(self->waiters);
    Py_RETURN_NONE;
}

/* _purgatory_finalize: it is freed, and if nobody has taken its result, on_undelivered is called later. */
static PyObject *
operation_finalize(Operation *self, PyObject *unused)
{
    PyObject *waiter = is_done(self) && has_result(self) ? Py_XNewRef(self->waiters) : NULL;
    if (waiter != NULL && PyList_CheckExact(waiter) && PyList_GET_SIZE(waiter) > 0)
        Py_SETREF(waiter, Py_NewRef(PyList_GET_ITEM(waiter, 0)));
    int failed = waiter != NULL && call(self, "_purgatory_undeliver_later", waiter) < 0;
    Py_XDECREF(waiter);
    if (failed)
        return NULL;
    Py_RETURN_NONE;
}

/* ---- the type ---- */

static PyObject *
operation_done(Operation *self, PyObject *unused)
{
    return check_made(self) < 0 ? NULL : PyBool_FromLong(is_done(self));
}

static PyObject *
operation_expired(Operation *self, PyObject *unused)
{
    return check_made(self) < 0 ? NULL : PyBool_FromLong(outcome_of(self) == EXPIRED_O);
}

static PyObject *
operation_cancelled(Operation *self, PyObject *unused)
{
    return check_made(self) < 0 ? NULL : PyBool_FromLong(outcome_of(self) == CANCELLED_O);
}

static PyObject *
operation_get_outcome(Operation *self, void *closure)
{
    int outcome = outcome_of(self);
    if (check_made(self) < 0)
        return NULL;
    return Py_NewRef(outcome == NONE ? Py_None : core_of(self)->outcomes[outcome]);
}

static PyObject *
operation_get_state_name(Operation *self, void *closure)
{
    return check_made(self) < 0 ? NULL : Py_NewRef(core_of(self)->states[self->base.state]);
}

static PyMethodDef operation_methods[] = {
    {"__init__", (PyCFunction)(void (*)(void))operation_init, METH_FASTCALL | METH_KEYWORDS,
     DOC_OperationBase___init__},
    {"force_complete", (PyCFunction)operation_force_complete, METH_NOARGS, DOC_OperationBase_force_complete},
    {"cancel", (PyCFunction)operation_cancel, METH_NOARGS, DOC_OperationBase_cancel},
    {"done", (PyCFunction)operation_done, METH_NOARGS, DOC_OperationBase_done},
    {"expired", (PyCFunction)operation_expired, METH_NOARGS, DOC_OperationBase_expired},
    {"cancelled", (PyCFunction)operation_cancelled, METH_NOARGS, DOC_OperationBase_cancelled},
    {"on_done", (PyCFunction)operation_on_done, METH_NOARGS, DOC_OperationBase_on_done},
    {"on_undelivered", (PyCFunction)operation_on_done, METH_O, DOC_OperationBase_on_undelivered},
    {"_purgatory_close", (PyCFunction)operation_close, METH_NOARGS, NULL},
    {"_purgatory_fail", (PyCFunction)operation_fail, METH_O, NULL},
    {"_purgatory_add_waiter", (PyCFunction)operation_add_waiter, METH_O, NULL},
    {"_purgatory_remove_waiter", (PyCFunction)operation_remove_waiter, METH_O, NULL},
    {"_purgatory_taken", (PyCFunction)operation_taken, METH_NOARGS, NULL},
    {"_purgatory_finalize", (PyCFunction)operation_finalize, METH_NOARGS, NULL},
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
    {"_purgatory_result", T_OBJECT_EX, offsetof(Operation, outcome), READONLY},
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
