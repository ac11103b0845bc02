/* The module `purgatory._core.c`: the types, and what they need of the Python core. */

#include "core.h"

/* provide(name=object, ...): the classes and functions of the Python core that are called here. */
static PyObject *
provide(PyObject *module, PyObject *args, PyObject *kwargs)
{
    Core *core = PyModule_GetState(module);
    struct {
        const char *name;
        PyObject **place;
    } places[] = {
        {"check_loop", &core->check_loop},
        {"seconds", &core->seconds},
        {"get_running_loop", &core->get_running_loop},
        {"TimerHandle", &core->TimerHandleClass},
        {"Watchers", &core->WatchersClass},
        {"shown_wheels", &core->shown_wheels},
    };
    PyObject *name, *value;
    Py_ssize_t at = 0;
    while (kwargs != NULL && PyDict_Next(kwargs, &at, &name, &value)) {
        if (PyUnicode_CompareWithASCIIString(name, "states") == 0) {
            for (Py_ssize_t i = 0; i < STATES - PENDING; i++)
                Py_XSETREF(core->states[PENDING + i], Py_NewRef(PyTuple_GET_ITEM(value, i)));
            continue;
        }
        if (PyUnicode_CompareWithASCIIString(name, "nesting") == 0) {
            core->nesting = PyLong_AsSsize_t(value);
            continue;
        }
        if (PyUnicode_CompareWithASCIIString(name, "slice_seconds") == 0) {
            core->slice_seconds = PyFloat_AsDouble(value);
            continue;
        }
        for (size_t i = 0; i < Py_ARRAY_LENGTH(places); i++)
            if (PyUnicode_CompareWithASCIIString(name, places[i].name) == 0)
                Py_XSETREF(*places[i].place, Py_NewRef(value));
    }
    if (PyErr_Occurred())
        return NULL;
    Py_RETURN_NONE;
}

int
take_arguments(const char *call, const char *const *wanted, int needed, PyObject *const *args, Py_ssize_t count,
               PyObject *const *named, PyObject *names, PyObject **values)
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
        values[at] = named[i];
    }
    for (int i = 0; i < needed; i++)
        if (values[i] == NULL) {
            PyErr_Format(PyExc_TypeError, "%s() missing required argument: '%s'", call, wanted[i]);
            return -1;
        }
    return 0;
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
    if (make_type(module, &core->TimerEntry, &timer_entry_spec, NULL) < 0 ||
        make_type(module, &core->TimerHandle, &timer_handle_spec, core->TimerEntry) < 0 ||
        make_type(module, &core->WheelTimer, &wheel_timer_spec, NULL) < 0 ||
        make_type(module, &core->Entry, &entry_spec, NULL) < 0 ||
        make_type(module, &core->Watchers, &watchers_spec, NULL) < 0 ||
        make_type(module, &core->WatcherLists, &watcher_lists_spec, NULL) < 0 ||
        make_type(module, &core->Owner, &owner_spec, NULL) < 0 ||
        make_type(module, &core->Operation, &operation_spec, core->TimerEntry) < 0 ||
        make_type(module, &core->Await, &await_spec, NULL) < 0 ||
        make_type(module, &core->Purgatory, &purgatory_spec, NULL) < 0)
        return -1;
    struct {
        const char *name;
        PyObject **place;
    } names[] = {
        {"time", &core->time},
        {"is_running", &core->is_running},
        {"left", &core->left},
        {"bounded", &core->bounded},
        {"_report_task", &core->_report_task},
        {"_timer_expire", &core->_timer_expire},
        {"try_complete", &core->try_complete},
        {"on_complete", &core->on_complete},
        {"on_expiration", &core->on_expiration},
        {"create_future", &core->create_future},
        {"done", &core->done},
        {"set_result", &core->set_result},
        {"pop", &core->pop},
        {"_thread_id", &core->_thread_id},
    };
    for (size_t i = 0; i < Py_ARRAY_LENGTH(names); i++)
        if ((*names[i].place = PyUnicode_InternFromString(names[i].name)) == NULL)
            return -1;
    return 0;
}

static int
core_traverse(PyObject *module, visitproc visit, void *arg)
{
    Core *core = PyModule_GetState(module);
    PyTypeObject *types[] = {core->TimerEntry,   core->TimerHandle, core->WheelTimer, core->Entry, core->Watchers,
                             core->WatcherLists, core->Owner,       core->Operation,  core->Await, core->Purgatory};
    for (size_t i = 0; i < Py_ARRAY_LENGTH(types); i++)
        Py_VISIT(types[i]);
    for (int i = 0; i < STATES; i++)
        Py_VISIT(core->states[i]);
    Py_VISIT(core->check_loop);
    Py_VISIT(core->seconds);
    Py_VISIT(core->get_running_loop);
    Py_VISIT(core->TimerHandleClass);
    Py_VISIT(core->WatchersClass);
    Py_VISIT(core->shown_wheels);
    return 0;
}

static int
core_clear(PyObject *module)
{
    Core *core = PyModule_GetState(module);
    PyTypeObject **types[] = {&core->TimerEntry, &core->TimerHandle,  &core->WheelTimer, &core->Entry,
                              &core->Watchers,   &core->WatcherLists, &core->Owner,      &core->Operation,
                              &core->Await,      &core->Purgatory};
    for (size_t i = 0; i < Py_ARRAY_LENGTH(types); i++)
        Py_CLEAR(*types[i]);
    for (int i = 0; i < STATES; i++)
        Py_CLEAR(core->states[i]);
    Py_CLEAR(core->check_loop);
    Py_CLEAR(core->seconds);
    Py_CLEAR(core->get_running_loop);
    Py_CLEAR(core->TimerHandleClass);
    Py_CLEAR(core->WatchersClass);
    Py_CLEAR(core->shown_wheels);
    return 0;
}

static void
core_free(void *module)
{
    core_clear(module);
    Core *core = PyModule_GetState(module);
    PyObject **names[] = {&core->time,         &core->is_running,    &core->left,         &core->bounded,
                          &core->_report_task, &core->_timer_expire, &core->try_complete, &core->on_complete,
                          &core->on_expiration, &core->create_future, &core->done,         &core->set_result,
                          &core->pop,          &core->_thread_id};
    for (size_t i = 0; i < Py_ARRAY_LENGTH(names); i++)
        Py_CLEAR(*names[i]);
}

static PyMethodDef core_methods[] = {
    {"provide", (PyCFunction)(void (*)(void))provide, METH_VARARGS | METH_KEYWORDS, NULL},
    {"try_each", (PyCFunction)(void (*)(void))try_each, METH_FASTCALL, NULL},
    {"try_all", (PyCFunction)(void (*)(void))try_all, METH_FASTCALL, NULL},
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
    .m_doc = "The core in C. Not for users: the classes of `purgatory` are made of its types.",
    .m_size = sizeof(Core),
    .m_methods = core_methods,
    .m_slots = core_slots,
    .m_traverse = core_traverse,
    .m_clear = core_clear,
    .m_free = core_free,
};

PyMODINIT_FUNC
PyInit_c(void)
{
    return PyModuleDef_Init(&core_module);
}
