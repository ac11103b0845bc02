/* Operations: operation.py. */

#include "core.h"

#include <math.h>

#define IS_NONE(object) ((object) == NULL || (object) == Py_None)

static const char AFTER[STATES] = {
    [COMPLETING] = COMPLETED,
    [CLOSING] = CLOSED,
    [EXPIRING] = EXPIRED,
    [FAILING] = FAILED,
};

/* ---- exceptions ---- */

/* As an `except` block does: of this generator, coroutine or thread. PyErr_GetHandledException finds that of a caller. */
void
handle(Handled *now)
{
    PyObject *type, *traceback;
    PyErr_Fetch(&type, &now->exception, &traceback);
    PyErr_NormalizeException(&type, &now->exception, &traceback);
    if (traceback != NULL)
        PyException_SetTraceback(now->exception, traceback);
    Py_XDECREF(type);
    Py_XDECREF(traceback);
    _PyErr_StackItem *here = PyThreadState_Get()->exc_info;
    now->before = here->exc_value;
    here->exc_value = Py_NewRef(now->exception);
}

void
handled(Handled *now)
{
    _PyErr_StackItem *here = PyThreadState_Get()->exc_info;
    Py_XSETREF(here->exc_value, now->before);
    now->before = NULL;
    Py_CLEAR(now->exception);
}

int
is_exit(PyObject *exception)
{
    return PyErr_GivenExceptionMatches(exception, PyExc_SystemExit) ||
           PyErr_GivenExceptionMatches(exception, PyExc_KeyboardInterrupt);
}

void
keep_first(PyObject **leaving, PyObject *exception)
{
    if (*leaving == NULL)
        *leaving = Py_NewRef(exception);
}

int
raise_kept(PyObject *leaving)
{
    if (leaving == NULL)
        return 0;
    PyErr_SetObject((PyObject *)Py_TYPE(leaving), leaving);
    Py_DECREF(leaving);
    return -1;
}

/* An exception leaves a step after which others follow, as in `finally`: it is raised after them, unless they raise. */
static void
put_aside(PyObject **raised)
{
    Handled now;
    handle(&now);
    if (*raised != NULL && *raised != now.exception && PyException_GetContext(now.exception) == NULL)
        PyException_SetContext(now.exception, Py_NewRef(*raised));
    Py_XSETREF(*raised, Py_NewRef(now.exception));
    handled(&now);
}

int
raise_again(PyObject *raised)
{
    if (raised == NULL)
        return 0;
    PyErr_Restore(Py_NewRef(Py_TYPE(raised)), raised, PyException_GetTraceback(raised));
    return -1;
}

/* ---- entries of watcher lists ---- */

static void
entry_empty(Entry *self)
{
    Operation *operation = self->operation;
    self->operation = NULL;
    if (operation != NULL)
        release(operation);
}

static Py_ssize_t
entry_length(Entry *self)
{
    return self->operation != NULL;
}

static PyObject *
entry_item(Entry *self, Py_ssize_t at)
{
    if (self->operation == NULL || at != 0) {
        PyErr_SetString(PyExc_IndexError, "the entry is dead");
        return NULL;
    }
    return Py_NewRef(self->operation);
}

static int
entry_set_item(Entry *self, Py_ssize_t at, PyObject *value)
{
    if (self->operation == NULL || at != 0 || value != NULL) {
        PyErr_SetString(PyExc_IndexError, "the entry is dead, or is not to be emptied");
        return -1;
    }
    entry_empty(self);
    return 0;
}

static void
entry_dealloc(Entry *self)
{
    PyTypeObject *type = Py_TYPE(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyType_Slot entry_slots[] = {
    {Py_tp_dealloc, entry_dealloc},
    {Py_sq_length, entry_length},
    {Py_sq_item, entry_item},
    {Py_sq_ass_item, entry_set_item},
    {0, NULL},
};

PyType_Spec entry_spec = {
    .name = "purgatory._speedups.c.Entry",
    .basicsize = sizeof(Entry),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = entry_slots,
};

Entry *
entry_of(Core *core, Operation *operation)
{
    Entry *entry = PyObject_New(Entry, core->Entry);
    if (entry != NULL)
        entry->operation = operation;
    return entry;
}

/* ---- operations ---- */

int
is_operation(Core *core, PyObject *object)
{
    return PyObject_TypeCheck(object, core->Operation);
}

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

static Core *
core_of(Operation *self)
{
    return self->owner != NULL ? self->owner->core : CORE_OF(self);
}

static int
check_thread(Owner *owner, const char *call)
{
    if (owner == NULL || IS_NONE(owner->thread))
        return 0;
    PyObject *done = PyObject_CallMethod((PyObject *)owner, "check_thread", "s", call);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

static PyObject *
owner_or_none(Owner *owner)
{
    return owner == NULL ? Py_None : (PyObject *)owner;
}

static int
operation_init(Operation *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"timeout", NULL};
    PyObject *timeout;
    if (kwargs == NULL && PyTuple_GET_SIZE(args) == 1)
        timeout = PyTuple_GET_ITEM(args, 0);
    else if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O:__init__", names, &timeout))
        return -1;
    double seconds;
    if (timeout == Py_None)
        seconds = Py_HUGE_VAL;
    else if (PyFloat_CheckExact(timeout) && PyFloat_AS_DOUBLE(timeout) >= 0 && PyFloat_AS_DOUBLE(timeout) < Py_HUGE_VAL)
        seconds = PyFloat_AS_DOUBLE(timeout);
    else {
        PyObject *checked = PyObject_CallFunction(CORE_OF(self)->seconds, "sO", "timeout", timeout);
        if (checked == NULL)
            return -1;
        seconds = PyFloat_AsDouble(checked);
        Py_DECREF(checked);
    }
    if (self->owner != NULL || self->base.bucket != NULL || self->base.held) {
        PyErr_SetString(PyExc_RuntimeError, "an operation that waits is not made anew");
        return -1;
    }
    self->base.deadline = seconds;
    self->state = PENDING;
    self->keys = 0;
    Py_CLEAR(self->outcome);
    if (self->entry != NULL)
        self->entry->operation = NULL;
    Py_CLEAR(self->entry);
    Py_CLEAR(self->waiters);
    return 0;
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
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    if (self->entry != NULL && self->entry->operation == self)
        self->entry->operation = NULL;
    Py_CLEAR(self->entry);
    operation_clear(self);
    type->tp_free(self);
    Py_DECREF(type);
}

/* _purgatory_claim: step from PENDING to `state`, unless the deadline is later than `now`. No Python is called unless
   the caller has no reference. */
static int
claim(Operation *self, State state, double now)
{
    if (self->state != PENDING || self->base.deadline > now)
        return 0;
    self->state = (char)state;
    if (self->entry != NULL && self->owner != NULL) {
        self->entry->operation = NULL;
        self->owner->num_delayed--;
        self->owner->lists->dead += self->keys;
    }
    entry_leave(&self->base);
    release(self);
    return 1;
}

static int
call(Operation *self, const char *method, PyObject *exception, Owner *owner)
{
    PyObject *done = PyObject_CallMethod((PyObject *)self, method, "OO", exception, owner_or_none(owner));
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

/* An exception was raised by a method of the operation: `method` says what follows from it. */
static int
call_handling(Operation *self, const char *method, Owner *owner)
{
    Handled now;
    handle(&now);
    int done = call(self, method, now.exception, owner);
    handled(&now);
    return done;
}

static int
wake_waiter(Core *core, Operation *self, PyObject *waiter)
{
    PyObject *done = PyObject_CallMethodNoArgs(waiter, core->done);
    int is_done = done == NULL ? -1 : PyObject_IsTrue(done);
    Py_XDECREF(done);
    if (is_done)
        return is_done < 0 ? -1 : 0;
    PyObject *set = PyObject_CallMethodOneArg(waiter, core->set_result, Py_None);
    if (set == NULL) {
        /* Cancelled meanwhile, or of a closed loop. */
        Handled now;
        handle(&now);
        set = PyObject_CallMethod((PyObject *)self, "_purgatory_wake_failed", "OO", waiter, now.exception);
        handled(&now);
    }
    Py_XDECREF(set);
    return set == NULL ? -1 : 0;
}

static int
wake_waiters(Core *core, Operation *self)
{
    if (PyList_CheckExact(self->waiters) && PyList_GET_SIZE(self->waiters) == 0) {
        Py_CLEAR(self->waiters);
        PyObject *done = PyObject_CallMethod((PyObject *)self, "_purgatory_undelivered", NULL);
        Py_XDECREF(done);
        return done == NULL ? -1 : 0;
    }
    PyObject *waiters = Py_NewRef(self->waiters);
    if (PyList_CheckExact(waiters)) { /* A collection in between may let go of the list, or shorten it. */
        PyObject *copy = PyList_New(0);
        if (copy != NULL && PyList_SetSlice(copy, 0, 0, waiters) < 0)
            Py_CLEAR(copy);
        Py_SETREF(waiters, copy);
        if (waiters == NULL)
            return -1;
    }
    int failed = 0;
    if (!PyList_CheckExact(waiters))
        failed = wake_waiter(core, self, waiters);
    else
        for (Py_ssize_t i = 0; i < PyList_GET_SIZE(waiters) && !failed; i++)
            failed = wake_waiter(core, self, PyList_GET_ITEM(waiters, i));
    Py_DECREF(waiters);
    return failed;
}

/* The waiters as a list, for what Python does with it. NULL without an exception if there is none. */
static PyObject *
waiters_as_list(Operation *self)
{
    while (self->waiters != NULL && !PyList_CheckExact(self->waiters)) {
        PyObject *list = PyList_New(1);
        if (list == NULL)
            return NULL;
        if (self->waiters != NULL && !PyList_CheckExact(self->waiters)) { /* The new list may have been a collection's. */
            PyList_SET_ITEM(list, 0, self->waiters);
            self->waiters = list;
        }
        else {
            PyList_SET_ITEM(list, 0, Py_NewRef(Py_None));
            Py_DECREF(list);
        }
    }
    return self->waiters;
}

/* _purgatory_announce: tell awaiting tasks and listeners that the operation is done. A purge begins if it is due. */
static int
announce(Core *core, Operation *self, Owner *owner)
{
    if (self->waiters != NULL && wake_waiters(core, self) < 0)
        return -1;
    if (owner == NULL || owner->lists->dead <= owner->fast_path_limit)
        return 0;
    PyObject *raised = NULL;
    if (owner->lists->dead > owner->purge_interval && 2 * owner->lists->dead > owner->lists->watched) {
        PyObject *done = PyObject_CallMethod((PyObject *)owner, "purge_if_due", NULL);
        if (done == NULL)
            put_aside(&raised);
        Py_XDECREF(done);
    }
    if (!IS_NONE(owner->listeners)) {
        PyObject *listeners = Py_NewRef(owner->listeners);
        PyObject *now = PyObject_CallNoArgs(owner->time), *done = NULL;
        PyObject *outcome = now == NULL ? NULL : PyObject_GetAttrString((PyObject *)self, "outcome");
        if (outcome != NULL)
            done = PyObject_CallMethod(listeners, "finish", "OOO", self, outcome, now);
        if (done == NULL)
            put_aside(&raised);
        Py_XDECREF(done);
        Py_XDECREF(outcome);
        Py_XDECREF(now);
        Py_DECREF(listeners);
    }
    return raise_again(raised);
}

/* _purgatory_run: run on_complete, for the winner of the compare-and-set, and then the completions that were put off. */
static int
run(Core *core, Operation *self)
{
    State state = self->state;
    Owner *owner = (Owner *)Py_XNewRef(self->owner);
    Py_ssize_t depth = 0;
    if (owner != NULL) {
        depth = owner->depth;
        if (depth >= core->nesting) {
            PyObject *done = PyObject_CallMethod(owner->deferred, "append", "O", self);
            Py_XDECREF(done);
            Py_DECREF(owner);
            return done == NULL ? -1 : 0;
        }
        owner->depth = depth + 1;
    }
    PyObject *raised = NULL;
    PyObject *outcome = PyObject_CallMethodNoArgs((PyObject *)self, core->on_complete);
    if (outcome != NULL)
        Py_XSETREF(self->outcome, outcome);
    else if (call_handling(self, "_purgatory_fail", owner) < 0)
        put_aside(&raised);
    if (state == EXPIRING) {
        PyObject *done = PyObject_CallMethodNoArgs((PyObject *)self, core->on_expiration);
        if (done == NULL && call_handling(self, "_purgatory_report", owner) < 0)
            put_aside(&raised);
        Py_XDECREF(done);
    }
    /* Done and counted, or neither. */
    State after = AFTER[(int)self->state];
    if (after)
        self->state = (char)after;
    if (owner != NULL) {
        if (after == COMPLETED) {
            if (self->entry == NULL)
                owner->completed_at_once++;
            else
                owner->satisfied++;
        }
        else if (after == EXPIRED)
            owner->expired++;
        else if (after == CLOSED)
            owner->closed_operations++;
        else
            owner->failed++;
    }
    Py_CLEAR(self->owner); /* `owner` is held here. */
    if ((self->waiters != NULL || (owner != NULL && owner->lists->dead > owner->fast_path_limit)) &&
        announce(core, self, owner) < 0)
        put_aside(&raised);
    if (owner != NULL) {
        if (depth == 0 && owner->deferred != NULL && PyObject_Size(owner->deferred) > 0) {
            PyObject *done = PyObject_CallMethod((PyObject *)owner, "complete_deferred", NULL);
            if (done == NULL)
                put_aside(&raised);
            Py_XDECREF(done);
        }
        owner->depth = depth;
        Py_DECREF(owner);
    }
    return raise_again(raised);
}

static PyObject *
operation_force_complete(Operation *self, PyObject *unused)
{
    if (check_thread(self->owner, "operation.force_complete()") < 0)
        return NULL;
    if (!claim(self, COMPLETING, Py_HUGE_VAL))
        Py_RETURN_FALSE;
    if (run(core_of(self), self) < 0)
        return NULL;
    Py_RETURN_TRUE;
}

static PyObject *
operation_cancel(Operation *self, PyObject *unused)
{
    if (check_thread(self->owner, "operation.cancel()") < 0)
        return NULL;
    Core *core = core_of(self);
    if (!claim(self, CANCELLED, Py_HUGE_VAL))
        Py_RETURN_FALSE;
    Owner *owner = self->owner;
    self->owner = NULL;
    if (owner != NULL)
        owner->cancelled++;
    int announced = announce(core, self, owner);
    Py_XDECREF(owner);
    if (announced < 0)
        return NULL;
    Py_RETURN_TRUE;
}

static PyObject *
operation_close(Operation *self, PyObject *unused)
{
    Core *core = core_of(self);
    if (!claim(self, CLOSING, Py_HUGE_VAL))
        Py_RETURN_FALSE;
    if (run(core, self) < 0)
        return NULL;
    Py_RETURN_TRUE;
}

static PyObject *
operation_run(Operation *self, PyObject *unused)
{
    if (run(core_of(self), self) < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *
operation_done(Operation *self, PyObject *unused)
{
    return PyBool_FromLong(self->state != NEW && self->state != PENDING && !AFTER[(int)self->state]);
}

static PyObject *
operation_expired(Operation *self, PyObject *unused)
{
    return PyBool_FromLong(self->state == EXPIRING || self->state == EXPIRED);
}

static PyObject *
operation_cancelled(Operation *self, PyObject *unused)
{
    return PyBool_FromLong(self->state == CANCELLED);
}

static int
state_of(Core *core, PyObject *state)
{
    for (int i = PENDING; i < STATES; i++)
        if (core->states[i] == state)
            return i;
    PyErr_SetString(PyExc_TypeError, "not a state of an operation");
    return -1;
}

static PyObject *
operation_claim(Operation *self, PyObject *args)
{
    PyObject *wanted;
    double now = Py_HUGE_VAL;
    if (!PyArg_ParseTuple(args, "O|d:_purgatory_claim", &wanted, &now))
        return NULL;
    int state = state_of(core_of(self), wanted);
    return state < 0 ? NULL : PyBool_FromLong(claim(self, state, now));
}

/* _purgatory_attempt: 1 if the try has completed the operation, 0 if not, -1 if an exception leaves. */
int
try_operation(Core *core, Operation *self, Owner *owner)
{
    PyObject *claimed = PyObject_CallMethodNoArgs((PyObject *)self, core->try_complete);
    int is_claimed = claimed == NULL ? -1 : claimed == Py_False ? 0 : PyObject_IsTrue(claimed);
    if (is_claimed > 0 && self->state == PENDING) {
        PyObject *failed = PyObject_CallMethod((PyObject *)self, "_purgatory_fail_false_claim", "O", claimed);
        Py_XDECREF(failed); /* It raises. */
        is_claimed = -1;
    }
    Py_XDECREF(claimed);
    if (is_claimed < 0)
        return call_handling(self, "_purgatory_fail_attempt", owner) < 0 ? -1 : 0;
    return is_claimed;
}

static int
check_owner(Core *core, PyObject *owner)
{
    if (owner == Py_None || PyObject_TypeCheck(owner, core->Owner))
        return 0;
    PyErr_SetString(PyExc_TypeError, "owner must be an Owner or None");
    return -1;
}

static PyObject *
operation_attempt(Operation *self, PyObject *owner)
{
    Core *core = core_of(self);
    if (check_owner(core, owner) < 0)
        return NULL;
    int completed = try_operation(core, self, owner == Py_None ? NULL : (Owner *)owner);
    return completed < 0 ? NULL : PyBool_FromLong(completed);
}

static PyObject *
operation_announce(Operation *self, PyObject *owner)
{
    Core *core = CORE_OF(self);
    if (check_owner(core, owner) < 0 || announce(core, self, owner == Py_None ? NULL : (Owner *)owner) < 0)
        return NULL;
    Py_RETURN_NONE;
}

/* _timer_expire: the deadline has come. Try once more, and expire if that does not complete the operation. */
int
operation_expire(Core *core, Operation *self)
{
    Owner *owner = (Owner *)Py_XNewRef(self->owner);
    /* Rescheduled on the way here, or in the try, it is not due any more. */
    double now = owner == NULL ? Py_HUGE_VAL : owner->timer->due;
    int failed = 0;
    if (self->state == PENDING && self->base.deadline <= now) {
        int completed = try_operation(core, self, owner);
        failed = completed < 0;
        if (completed > 0) {
            if (owner != NULL && self->entry != NULL && (self->state == COMPLETING || self->state == COMPLETED))
                owner->missed++;
        }
        else if (!failed && claim(self, EXPIRING, now))
            failed = run(core, self) < 0;
    }
    Py_XDECREF(owner);
    return failed ? -1 : 0;
}

static PyObject *
operation_timer_expire(Operation *self, PyObject *unused)
{
    if (operation_expire(core_of(self), self) < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *operation_await(Operation *self);

static PyMethodDef operation_methods[] = {
    {"force_complete", (PyCFunction)operation_force_complete, METH_NOARGS, DOC_DelayedOperation_force_complete},
    {"cancel", (PyCFunction)operation_cancel, METH_NOARGS, DOC_DelayedOperation_cancel},
    {"done", (PyCFunction)operation_done, METH_NOARGS, DOC_DelayedOperation_done},
    {"expired", (PyCFunction)operation_expired, METH_NOARGS, DOC_DelayedOperation_expired},
    {"cancelled", (PyCFunction)operation_cancelled, METH_NOARGS, DOC_DelayedOperation_cancelled},
    {"_purgatory_claim", (PyCFunction)operation_claim, METH_VARARGS, NULL},
    {"_purgatory_run", (PyCFunction)operation_run, METH_NOARGS, NULL},
    {"_purgatory_attempt", (PyCFunction)operation_attempt, METH_O, NULL},
    {"_purgatory_announce", (PyCFunction)operation_announce, METH_O, NULL},
    {"_purgatory_close", (PyCFunction)operation_close, METH_NOARGS, NULL},
    {"_timer_expire", (PyCFunction)operation_timer_expire, METH_NOARGS, NULL},
    {NULL},
};

static PyObject *
operation_get_state(Operation *self, void *closure)
{
    if (self->state == NEW) {
        PyErr_SetString(PyExc_AttributeError, "_purgatory_state");
        return NULL;
    }
    return Py_NewRef(core_of(self)->states[(int)self->state]);
}

static int
operation_set_state(Operation *self, PyObject *value, void *closure)
{
    int state = state_of(core_of(self), value);
    if (state < 0)
        return -1;
    self->state = (char)state;
    return 0;
}

static PyObject *
operation_get_owner(Operation *self, void *closure)
{
    return Py_NewRef(owner_or_none(self->owner));
}

static PyObject *
operation_get_entry(Operation *self, void *closure)
{
    return self->entry == NULL ? Py_NewRef(Py_None) : Py_NewRef(self->entry);
}

static int
operation_set_none(Operation *self, PyObject *value, void *closure)
{
    if (value != Py_None) {
        PyErr_SetString(PyExc_AttributeError, "only None is set here");
        return -1;
    }
    if (closure == NULL) {
        release(self);
        Py_CLEAR(self->owner);
    }
    else {
        if (self->entry != NULL)
            entry_empty(self->entry);
        Py_CLEAR(self->entry);
    }
    return 0;
}

static PyObject *
operation_get_waiters(Operation *self, void *closure)
{
    PyObject *waiters = waiters_as_list(self);
    return waiters != NULL ? Py_NewRef(waiters) : PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

static int
operation_set_waiters(Operation *self, PyObject *value, void *closure)
{
    Py_XSETREF(self->waiters, value == Py_None ? NULL : Py_XNewRef(value));
    return 0;
}

static PyGetSetDef operation_getset[] = {
    {"_purgatory_waiters", (getter)operation_get_waiters, (setter)operation_set_waiters, NULL, NULL},
    {"_purgatory_state", (getter)operation_get_state, (setter)operation_set_state, NULL, NULL},
    {"_purgatory_owner", (getter)operation_get_owner, (setter)operation_set_none, NULL, NULL},
    {"_purgatory_entry", (getter)operation_get_entry, (setter)operation_set_none, NULL, "entry"},
    {NULL},
};

static PyMemberDef operation_members[] = {
    {"_purgatory_outcome", T_OBJECT_EX, offsetof(Operation, outcome), 0},
    {"_purgatory_keys", T_INT, offsetof(Operation, keys), 0},
    {NULL},
};

static PyType_Slot operation_slots[] = {
    {Py_tp_init, operation_init},
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
    .name = "purgatory._speedups.c.Operation",
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

/* _purgatory_add_waiter(): 1 with a future, 0 if the operation is done already. */
static int
add_waiter(Core *core, Operation *self, PyObject **waiter)
{
    Owner *owner = self->owner;
    *waiter = NULL;
    Py_XINCREF(owner);
    int is_running = owner == NULL ? 0 : is_loop_running(core, owner);
    PyObject *loop = is_running > 0 ? Py_NewRef(owner->loop) : NULL;
    bool is_left = self->owner != owner;
    Py_XDECREF(owner);
    if (is_running < 0)
        return -1;
    if (loop == NULL || is_left) {
        Py_XDECREF(loop);
        *waiter = PyObject_CallMethod((PyObject *)self, "_purgatory_add_waiter", NULL); /* A rare case, or it raises. */
        if (*waiter == Py_None)
            Py_CLEAR(*waiter);
        else if (*waiter == NULL)
            return -1;
        return *waiter != NULL;
    }
    PyObject *future = PyObject_CallMethodNoArgs(loop, core->create_future);
    Py_DECREF(loop);
    if (future == NULL)
        return -1;
    int added = 0;
    if (self->waiters == NULL)
        self->waiters = Py_NewRef(future);
    else {
        PyObject *waiters = waiters_as_list(self);
        if (waiters == NULL && !PyErr_Occurred())
            self->waiters = Py_NewRef(future);
        else
            added = waiters == NULL ? -1 : PyList_Append(waiters, future);
    }
    /* The future is seen by the completion, or the completion by the caller. */
    if (added < 0 || !(self->state == PENDING || AFTER[(int)self->state])) {
        Py_DECREF(future);
        return added;
    }
    *waiter = future;
    return 1;
}

static PyObject *
take_result(Await *self)
{
    Operation *operation = self->operation;
    self->operation = NULL;
    Py_CLEAR(self->iterator);
    Py_CLEAR(self->waiter);
    Py_CLEAR(operation->waiters); /* It is delivered, even if the others leave. */
    PyObject *result;
    if ((operation->state == COMPLETED || operation->state == EXPIRED) && operation->outcome != NULL)
        result = Py_NewRef(operation->outcome);
    else
        result = PyObject_CallMethod((PyObject *)operation, "result", NULL);
    Py_DECREF(operation);
    return result;
}

/* The awaiting task was cancelled, or its coroutine closed. */
static void
leave(Await *self)
{
    Operation *operation = self->operation;
    PyObject *waiter = self->waiter;
    self->operation = NULL;
    self->waiter = NULL;
    Py_CLEAR(self->iterator);
    if (operation != NULL && waiter != NULL) {
        PyObject *raised = NULL;
        if (PyErr_Occurred())
            put_aside(&raised);
        PyObject *done = PyObject_CallMethod((PyObject *)operation, "_purgatory_remove_waiter", "O", waiter);
        if (done == NULL)
            put_aside(&raised);
        Py_XDECREF(done);
        raise_again(raised);
    }
    Py_XDECREF(operation);
    Py_XDECREF(waiter);
}

static PySendResult
step(Await *self, PyObject *value, PyObject **result)
{
    if (self->iterator == NULL) {
        Operation *operation = self->operation;
        if (value != Py_None) {
            PyErr_SetString(PyExc_TypeError, "can't send non-None value to a just-started generator");
            return PYGEN_ERROR;
        }
        if (operation->state == PENDING || AFTER[(int)operation->state] || operation->state == NEW) {
            Core *core = core_of(operation);
            int added = add_waiter(core, operation, &self->waiter);
            if (added > 0) {
                PyTypeObject *type = Py_TYPE(self->waiter);
                self->iterator = type->tp_as_async != NULL && type->tp_as_async->am_await != NULL
                                     ? type->tp_as_async->am_await(self->waiter)
                                     : PyObject_CallMethod(self->waiter, "__await__", NULL);
            }
            if (added < 0 || (added > 0 && self->iterator == NULL)) {
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
    PySendResult sent = step(self, value, result);
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
