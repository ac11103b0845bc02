/* The generator of an operation's `__await__`, written out.

   Without it, `await` would run OperationBase.__await__ in Python. Measured as the time of one await of a waiting task,
   in units of an await of a bare future, this takes 1.10 to 1.21 and the generator in Python 1.27 to 1.34. */

#include "core.h"

typedef struct {
    PyObject_HEAD
    Operation *operation; /* NULL at the end. */
    PyObject *waiter;     /* The future, once it has begun. */
    PyObject *iterator;   /* That of the future. */
    bool running;         /* A step is under way, in which a generator in Python refuses another one. */
} Await;

PyObject *
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
    PyObject *result;
    if (is_done(operation) && has_result(operation) && operation->outcome != NULL) {
        result = Py_NewRef(operation->outcome);
        Py_CLEAR(operation->waiters); /* It is delivered, even if the others leave. */
    }
    else
        result = PyObject_CallMethod((PyObject *)operation, "_purgatory_take", NULL);
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
        if (!is_done(operation)) {
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
