/* The module `purgatory._speedups.c`: its types, what it needs of Python modules, and helpers of all files. */

#include "core.h"

/* ---- exceptions ---- */

/* As an `except` block does: what is called in it finds the exception as the one that is being handled. */
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
    /* One that a caller handles is found too, and is not to be kept by the coroutine that runs here. */
    now->before = PyErr_GetHandledException();
    PyErr_SetHandledException(NULL);
    PyObject *of_a_caller = PyErr_GetHandledException();
    if (of_a_caller == now->before)
        Py_CLEAR(now->before);
    Py_XDECREF(of_a_caller);
    PyErr_SetHandledException(now->exception);
}

void
handled(Handled *now)
{
    PyErr_SetHandledException(now->before);
    Py_CLEAR(now->before);
    Py_CLEAR(now->exception);
}

void
raise_again(PyObject *raised)
{
    PyErr_Restore(Py_NewRef(Py_TYPE(raised)), raised, PyException_GetTraceback(raised));
}

void
raise_handled(Handled *now)
{
    raise_again(Py_NewRef(now->exception));
    handled(now);
}

void
free_object(void *self)
{
    PyTypeObject *type = Py_TYPE(self);
    type->tp_free(self);
    Py_DECREF(type);
}

int
is_exit(PyObject *exception)
{
    return PyErr_GivenExceptionMatches(exception, PyExc_SystemExit) ||
           PyErr_GivenExceptionMatches(exception, PyExc_KeyboardInterrupt);
}

void
keep(PyObject **first)
{
    Handled now;
    handle(&now);
    if (*first == NULL)
        *first = Py_NewRef(now.exception);
    handled(&now);
}

int
raise_kept(PyObject *first)
{
    if (first == NULL)
        return 0;
    raise_again(first);
    return -1;
}

/* ---- arguments ---- */

int
take_arguments(const char *call, const char *const *wanted, int needed, PyObject *const *args, Py_ssize_t count,
               PyObject *names, PyObject **values)
{
    Py_ssize_t most = 0;
    for (; wanted[most] != NULL; most++)
        values[most] = most < count ? args[most] : NULL;
    if (count > most) {
        PyErr_Format(PyExc_TypeError, "%s() takes %zd positional arguments but %zd were given", call, most, count);
        return -1;
    }
    for (Py_ssize_t i = 0; names != NULL && i < PyTuple_GET_SIZE(names); i++) {
        PyObject *name = PyTuple_GET_ITEM(names, i);
        Py_ssize_t at = 0;
        while (wanted[at] != NULL && PyUnicode_CompareWithASCIIString(name, wanted[at]) != 0)
            at++;
        if (wanted[at] == NULL || values[at] != NULL) {
            PyErr_Format(PyExc_TypeError,
                         wanted[at] == NULL ? "%s() got an unexpected keyword argument '%U'"
                                            : "%s() got multiple values for argument '%U'",
                         call, name);
            return -1;
        }
        values[at] = args[count + i];
    }
    for (int i = 0; i < needed; i++)
        if (values[i] == NULL) {
            PyErr_Format(PyExc_TypeError, "%s() missing required argument: '%s'", call, wanted[i]);
            return -1;
        }
    return 0;
}

/* ---- event loops ---- */

/* clock.time(), asked each time: tests replace it. That of asyncio's loops is a frame around the present attribute
   `monotonic` of the module `time`, which is called without that frame. */
int
time_of(Core *core, PyObject *clock, double *now)
{
    PyObject *function = PyObject_GetAttr(clock, core->time);
    if (function != NULL && PyMethod_Check(function) && PyMethod_GET_FUNCTION(function) == core->loop_time) {
        PyObject *module = PyDict_GetItemWithError(PyFunction_GET_GLOBALS(core->loop_time), core->time);
        if (module != NULL && PyModule_CheckExact(module)) {
            PyObject *monotonic = PyDict_GetItemWithError(PyModule_GetDict(module), core->monotonic);
            if (monotonic != NULL)
                Py_SETREF(function, Py_NewRef(monotonic));
        }
    }
    PyObject *time = function == NULL || PyErr_Occurred() ? NULL : PyObject_CallNoArgs(function);
    Py_XDECREF(function);
    *now = time == NULL ? -1.0 : PyFloat_AsDouble(time);
    Py_XDECREF(time);
    return *now == -1.0 && PyErr_Occurred() ? -1 : 0;
}

int
is_running(Core *core, PyObject *loop)
{
#if PY_VERSION_HEX < 0x030C0000
    /* There, _get_running_loop() asks the system whether the process was forked: a quarter of an operation. A loop of
       asyncio's has the thread that it runs in, or None; others have no such attribute. */
    PyObject *thread = NULL;
    if (!core->forked) {
        Py_INCREF(loop);
        int found = _PyObject_LookupAttr(loop, core->_thread_id, &thread);
        Py_DECREF(loop);
        if (found < 0)
            return -1;
    }
    bool is_here = thread != NULL && PyLong_CheckExact(thread) && PyLong_AsUnsignedLongMask(thread) == PyThread_get_thread_ident();
    Py_XDECREF(thread);
    if (is_here)
        return 1;
#endif
    PyObject *running = PyObject_CallNoArgs(core->get_running_loop);
    Py_XDECREF(running); /* The thread holds it. */
    return running == NULL ? -1 : running == loop;
}

int
check_loop(Core *core, void *what, PyObject *loop, const char *call, const char *instead)
{
    if (IS_NONE(loop))
        return 0;
    Py_INCREF(loop);
    int is_here = is_running(core, loop);
    if (is_here == 0) {
        PyObject *done = PyObject_CallFunction(core->check_loop, "OOss", what, loop, call, instead);
        is_here = done == NULL ? -1 : 1;
        Py_XDECREF(done);
    }
    Py_DECREF(loop);
    return is_here < 0 ? -1 : 0;
}

/* ---- the module ---- */

static const char *const STATE_NAMES[STATES] = NAMES_OF_STATES, *const OUTCOME_NAMES[OUTCOMES] = NAMES_OF_OUTCOMES;

static int
intern(PyObject **place, const char *name)
{
    *place = PyUnicode_InternFromString(name);
    return *place == NULL ? -1 : 0;
}

static int
import(PyObject **place, const char *module, const char *name)
{
    PyObject *imported = PyImport_ImportModule(module);
    *place = imported == NULL ? NULL : PyObject_GetAttrString(imported, name);
    Py_XDECREF(imported);
    return *place == NULL ? -1 : 0;
}

static int
make_type(PyObject *module, PyTypeObject **place, PyType_Spec *spec, PyTypeObject *base)
{
    *place = (PyTypeObject *)PyType_FromModuleAndSpec(module, spec, (PyObject *)base);
    return *place == NULL ? -1 : PyModule_AddType(module, *place);
}

static int
core_exec(PyObject *module)
{
    Core *core = PyModule_GetState(module);
    PyObject *slice_seconds = NULL, *slice = NULL, *base_loop = NULL;
    if (import(&core->check_loop, "purgatory._loop.threads", "check_loop") < 0 ||
        import(&core->check_count, "purgatory._loop.arguments", "check_count") < 0 ||
        import(&core->seconds, "purgatory._loop.arguments", "seconds") < 0 ||
        import(&core->distinct_keys, "purgatory._loop.arguments", "distinct_keys") < 0 ||
        import(&core->refuse_task, "purgatory._loop.arguments", "refuse_task") < 0 ||
        import(&core->PurgatoryMisuse, "purgatory._loop.errors", "PurgatoryMisuse") < 0 ||
        import(&core->get_running_loop, "asyncio", "_get_running_loop") < 0 ||
        import(&core->running_loop, "purgatory._loop.threads", "running_loop") < 0 ||
        import(&base_loop, "asyncio", "BaseEventLoop") < 0 ||
        import(&slice, "purgatory._loop.slices", "SLICE") < 0 ||
        import(&slice_seconds, "purgatory._loop.slices", "SLICE_SECONDS") < 0)
        return -1;
    core->slice_seconds = PyFloat_AsDouble(slice_seconds);
    Py_DECREF(slice_seconds);
    core->slice = PyLong_AsSsize_t(slice);
    Py_DECREF(slice);
    core->loop_time = PyObject_GetAttrString(base_loop, "time");
    Py_DECREF(base_loop);
    if (core->loop_time == NULL)
        return -1;
    if (!PyFunction_Check(core->loop_time))
        Py_SETREF(core->loop_time, Py_NewRef(Py_None)); /* It was replaced, and is called as any other. */
    if (make_type(module, &core->TimerEntry, &timer_entry_spec, NULL) < 0 ||
        make_type(module, &core->Timer, &timer_spec, NULL) < 0 ||
        make_type(module, &core->Entry, &entry_spec, NULL) < 0 ||
        make_type(module, &core->Watchers, &watchers_spec, NULL) < 0 ||
        make_type(module, &core->WatcherLists, &watcher_lists_spec, NULL) < 0 ||
        make_type(module, &core->Owner, &owner_spec, NULL) < 0 ||
        make_type(module, &core->Operation, &operation_spec, core->TimerEntry) < 0 ||
        make_type(module, &core->Await, &await_spec, NULL) < 0 ||
        make_type(module, &core->Purgatory, &purgatory_spec, NULL) < 0)
        return -1;
    core->no_on_done = PyObject_GetAttrString((PyObject *)core->Operation, "on_done");
    core->no_on_undelivered = PyObject_GetAttrString((PyObject *)core->Operation, "on_undelivered");
    if (core->no_on_done == NULL || core->no_on_undelivered == NULL)
        return -1;
    for (int i = 0; i < STATES; i++)
        if (intern(&core->states[i], STATE_NAMES[i]) < 0)
            return -1;
    for (int i = 0; i < OUTCOMES; i++)
        if (intern(&core->outcomes[i], OUTCOME_NAMES[i]) < 0)
            return -1;
    return intern(&core->time, "time") | intern(&core->monotonic, "monotonic") | intern(&core->_timer_expire, "_timer_expire") |
           intern(&core->try_complete, "try_complete") | intern(&core->on_complete, "on_complete") |
           intern(&core->on_expiration, "on_expiration") | intern(&core->on_done, "on_done") |
           intern(&core->on_undelivered, "on_undelivered") | intern(&core->create_future, "create_future") | intern(&core->done, "done") |
           intern(&core->set_result, "set_result") | intern(&core->_thread_id, "_thread_id");
}

static int
core_traverse(PyObject *module, visitproc visit, void *arg)
{
    PyObject **objects = PyModule_GetState(module);
    for (size_t i = 0; i < OBJECTS_OF_CORE; i++)
        Py_VISIT(objects[i]);
    return 0;
}

/* Not before the module is freed: its types keep it, and their methods need what is in here. */
static void
core_free(void *module)
{
    PyObject **objects = PyModule_GetState(module);
    for (size_t i = 0; i < OBJECTS_OF_CORE; i++)
        Py_CLEAR(objects[i]);
}

static PyObject *
module_note_fork(PyObject *module, PyObject *unused)
{
    ((Core *)PyModule_GetState(module))->forked = true;
    Py_RETURN_NONE;
}

static PyMethodDef module_methods[] = {
    {"_note_fork", module_note_fork, METH_NOARGS, NULL},
    {"walk", walk, METH_VARARGS, NULL},
    {NULL},
};

static PyModuleDef_Slot core_slots[] = {
    {Py_mod_exec, core_exec},
#if PY_VERSION_HEX >= 0x030C0000
    {Py_mod_multiple_interpreters, Py_MOD_PER_INTERPRETER_GIL_SUPPORTED},
#endif
    {0, NULL},
};

PyModuleDef core_module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "purgatory._speedups.c",
    .m_doc = "The base classes of the core in C. Not for users: the classes of `purgatory` inherit from them.",
    .m_size = sizeof(Core),
    .m_methods = module_methods,
    .m_slots = core_slots,
    .m_traverse = core_traverse,
    .m_free = core_free,
};

PyMODINIT_FUNC
PyInit_c(void)
{
    return PyModuleDef_Init(&core_module);
}
