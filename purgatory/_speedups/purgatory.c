/* Watcher lists, the owner of operations, and the purgatory: of `_core/watchers.py`, `owner.py` and `purgatory.py`. */

#include "core.h"

#define FEW 8 /* Keys whose lists are found on the stack, and whose hashes are compared with each other. */

/* ---- watcher lists ---- */

static int
watchers_traverse(Watchers *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->key);
    Py_VISIT(self->entries);
    return 0;
}

static int
watchers_clear(Watchers *self)
{
    Py_CLEAR(self->key);
    return 0;
}

static void
watchers_dealloc(Watchers *self)
{
    PyObject_GC_UnTrack(self);
    Py_CLEAR(self->key);
    Py_CLEAR(self->entries);
    free_object(self);
}

static PyMemberDef watchers_members[] = {
    {"key", T_OBJECT, offsetof(Watchers, key), READONLY},
    {"entries", T_OBJECT, offsetof(Watchers, entries), READONLY},
    {"head", T_PYSSIZET, offsetof(Watchers, head), 0},
    {NULL},
};

static PyType_Slot watchers_slots[] = {
    {Py_tp_doc, "The watcher list of one key."},
    {Py_tp_traverse, watchers_traverse},
    {Py_tp_clear, watchers_clear},
    {Py_tp_dealloc, watchers_dealloc},
    {Py_tp_members, watchers_members},
    {0, NULL},
};

PyType_Spec watchers_spec = {
    .name = "purgatory._speedups.c.Watchers",
    .basicsize = sizeof(Watchers),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = watchers_slots,
};

static Watchers *
new_watchers(Core *core, PyObject *key, Py_ssize_t index)
{
    PyObject *entries = PyList_New(0);
    Watchers *watchers = entries == NULL ? NULL : (Watchers *)core->Watchers->tp_alloc(core->Watchers, 0);
    if (watchers == NULL) {
        Py_XDECREF(entries);
        return NULL;
    }
    watchers->key = Py_NewRef(key);
    watchers->entries = entries;
    watchers->index = index;
    PyObject_GC_UnTrack(entries); /* Entries refer to nothing: neither is in a cycle, unless the key is in one. */
    if (!PyObject_GC_IsTracked(key))
        PyObject_GC_UnTrack(watchers);
    return watchers;
}

int
refuse_change(Core *core, WatcherLists *self)
{
    if (!self->changing)
        return 0;
    PyErr_SetString(core->PurgatoryMisuse, "a key's __hash__ or __eq__ must not call the purgatory that looks it up");
    return -1;
}

/* A list and its key are in the dict and in the row, or in neither. A new reference. */
static Watchers *
add_list(Core *core, WatcherLists *self, PyObject *key)
{
    Watchers *watchers = new_watchers(core, key, PyList_GET_SIZE(self->lists));
    if (watchers == NULL)
        return NULL;
    if (PyList_Append(self->lists, (PyObject *)watchers) < 0) {
        Py_DECREF(watchers);
        return NULL;
    }
    if (PyDict_SetItem(self->by_key, key, (PyObject *)watchers) < 0) {
        Handled error;
        handle(&error);
        PyList_SetSlice(self->lists, watchers->index, watchers->index + 1, NULL); /* It is the last one. */
        raise_handled(&error);
        Py_CLEAR(watchers);
    }
    return watchers;
}

/* Out of the row first, where memory may be missing, and out of the dict last, where the key may raise. */
static int
drop_if_empty(WatcherLists *self, Watchers *watchers)
{
    if (PyList_GET_SIZE(watchers->entries) > 0)
        return 0;
    Py_INCREF(watchers);
    self->changing = true;
    bool is_listed = PyDict_GetItemWithError(self->by_key, watchers->key) == (PyObject *)watchers; /* Else dropped before. */
    int failed = PyErr_Occurred() ? -1 : 0;
    Py_ssize_t end = PyList_GET_SIZE(self->lists) - 1;
    if (is_listed) {
        Watchers *last = (Watchers *)Py_NewRef(PyList_GET_ITEM(self->lists, end));
        failed = PyList_SetSlice(self->lists, end, end + 1, NULL);
        if (!failed && last != watchers) {
            last->index = watchers->index;
            failed = PyList_SetItem(self->lists, watchers->index, Py_NewRef(last));
        }
        Py_DECREF(last);
        if (!failed && PyDict_DelItem(self->by_key, watchers->key) < 0) {
            Handled error;
            handle(&error);
            watchers->index = end;
            if (PyList_Append(self->lists, (PyObject *)watchers) < 0)
                PyErr_Clear();
            raise_handled(&error);
            failed = -1;
        }
    }
    self->changing = false;
    Py_DECREF(watchers);
    return failed;
}

/* WatcherLists.watch: first find or make the list of each key, then append without a call of Python. */
static int
watch(Core *core, WatcherLists *self, Entry *entry, PyObject *keys)
{
    Py_ssize_t count = PyTuple_GET_SIZE(keys), found = 0;
    Watchers *few[FEW], **lists = count <= FEW ? few : PyMem_Malloc((size_t)count * sizeof(Watchers *));
    if (lists == NULL) {
        PyErr_NoMemory();
        return -1;
    }
#if PY_VERSION_HEX < 0x030C0000
    int collects = PyGC_Disable(); /* It would run at the allocation of a list, and finalizers in the middle of the change. */
#endif
    self->changing = true;
    for (; found < count; found++) {
        PyObject *key = PyTuple_GET_ITEM(keys, found);
        Watchers *listed = (Watchers *)Py_XNewRef(PyDict_GetItemWithError(self->by_key, key));
        if (listed == NULL && !PyErr_Occurred())
            listed = add_list(core, self, key);
        if (listed == NULL)
            break;
        lists[found] = listed; /* Its reference is ours: keys that were different may be equal now. */
    }
    self->changing = false;
#if PY_VERSION_HEX < 0x030C0000
    if (collects)
        PyGC_Enable();
#endif
    Py_ssize_t appended = 0;
    while (found == count && appended < count && PyList_Append(lists[appended]->entries, (PyObject *)entry) == 0)
        appended++;
    int failed = appended < count ? -1 : 0;
    if (failed) {
        Handled error;
        handle(&error);
        while (appended > 0) {
            PyObject *entries = lists[--appended]->entries;
            PyList_SetSlice(entries, PyList_GET_SIZE(entries) - 1, PyList_GET_SIZE(entries), NULL);
        }
        for (Py_ssize_t i = 0; i < found; i++)
            if (drop_if_empty(self, lists[i]) < 0)
                PyErr_Clear(); /* Of the key, whose list stays empty. */
        raise_handled(&error);
    }
    else
        self->watched += count;
    while (found > 0)
        Py_DECREF(lists[--found]);
    if (lists != few)
        PyMem_Free(lists);
    return failed;
}

/* WatcherLists.replace */
static int
replace(WatcherLists *self, Watchers *watchers, PyObject *alive)
{
    Py_ssize_t removed = PyList_GET_SIZE(watchers->entries) - PyList_GET_SIZE(alive);
    if (self->watched > self->peak)
        self->peak = self->watched;
    self->watched -= removed;
    self->dead -= removed;
    self->purged += removed;
    watchers->head = 0;
    if (PyObject_GC_IsTracked(alive))
        PyObject_GC_UnTrack(alive);
    Py_SETREF(watchers->entries, Py_NewRef(alive)); /* Frees entries, which run nothing. */
    return drop_if_empty(self, watchers);
}

/* WatcherLists.compact: remove the dead entries of a list. */
static int
compact(WatcherLists *self, Watchers *watchers)
{
    Py_ssize_t length = PyList_GET_SIZE(watchers->entries), living = 0;
    for (Py_ssize_t i = 0; i < length; i++)
        living += ((Entry *)PyList_GET_ITEM(watchers->entries, i))->operation != NULL;
    if (living == length && length > 0)
        return 0;
    PyObject *alive = PyList_New(0); /* The collector may run here, and not below. */
    if (alive == NULL)
        return -1;
    PyObject *entries = watchers->entries;
    int failed = 0;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(entries) && !failed; i++)
        if (((Entry *)PyList_GET_ITEM(entries, i))->operation != NULL)
            failed = PyList_Append(alive, PyList_GET_ITEM(entries, i));
    if (!failed)
        failed = replace(self, watchers, alive);
    Py_DECREF(alive);
    return failed;
}

static int
as_watchers(Core *core, PyObject *object)
{
    if (PyObject_TypeCheck(object, core->Watchers))
        return 0;
    PyErr_SetString(PyExc_TypeError, "the list of a key is needed");
    return -1;
}

static PyObject *
lists_compact(WatcherLists *self, PyObject *watchers)
{
    Core *core = CORE_OF(self);
    if (as_watchers(core, watchers) < 0 || refuse_change(core, self) < 0 || compact(self, (Watchers *)watchers) < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *
lists_replace(WatcherLists *self, PyObject *args)
{
    Core *core = CORE_OF(self);
    PyObject *watchers, *alive;
    if (!PyArg_ParseTuple(args, "OO!:replace", &watchers, &PyList_Type, &alive) || as_watchers(core, watchers) < 0 ||
        refuse_change(core, self) < 0 || replace(self, (Watchers *)watchers, alive) < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *
lists_find(WatcherLists *self, PyObject *key)
{
    PyObject *found = PyDict_GetItemWithError(self->by_key, key);
    return found != NULL || !PyErr_Occurred() ? Py_NewRef(found == NULL ? Py_None : found) : NULL;
}

static PyObject *
lists_keys(WatcherLists *self, PyObject *unused)
{
    return PyDict_Keys(self->by_key);
}

static Py_ssize_t
lists_length(WatcherLists *self)
{
    return PyList_GET_SIZE(self->lists);
}

static PyObject *
lists_at(WatcherLists *self, PyObject *index)
{
    return PyObject_GetItem(self->lists, index);
}

static int
lists_traverse(WatcherLists *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->by_key);
    Py_VISIT(self->lists);
    return 0;
}

static void
lists_dealloc(WatcherLists *self)
{
    PyObject_GC_UnTrack(self);
    Py_CLEAR(self->by_key);
    Py_CLEAR(self->lists);
    free_object(self);
}

static PyMethodDef lists_methods[] = {
    {"at", (PyCFunction)lists_at, METH_O, NULL},
    {"find", (PyCFunction)lists_find, METH_O, NULL},
    {"keys", (PyCFunction)lists_keys, METH_NOARGS, NULL},
    {"compact", (PyCFunction)lists_compact, METH_O, NULL},
    {"replace", (PyCFunction)lists_replace, METH_VARARGS, NULL},
    {NULL},
};

static PyMemberDef lists_members[] = {
    {"watched", T_PYSSIZET, offsetof(WatcherLists, watched), READONLY},
    {"dead", T_PYSSIZET, offsetof(WatcherLists, dead), READONLY},
    {"peak", T_PYSSIZET, offsetof(WatcherLists, peak), READONLY},
    {"purged", T_PYSSIZET, offsetof(WatcherLists, purged), READONLY},
    {NULL},
};

static PyType_Slot watcher_lists_slots[] = {
    {Py_tp_doc, "The watcher lists of one purgatory by key, and the counts of their entries."},
    {Py_tp_traverse, lists_traverse},
    {Py_tp_dealloc, lists_dealloc},
    {Py_tp_methods, lists_methods},
    {Py_tp_members, lists_members},
    {Py_sq_length, lists_length},
    {0, NULL},
};

PyType_Spec watcher_lists_spec = {
    .name = "purgatory._speedups.c.WatcherLists",
    .basicsize = sizeof(WatcherLists),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = watcher_lists_slots,
};

static WatcherLists *
new_lists(Core *core)
{
    WatcherLists *lists = (WatcherLists *)core->WatcherLists->tp_alloc(core->WatcherLists, 0);
    if (lists != NULL && ((lists->by_key = PyDict_New()) == NULL || (lists->lists = PyList_New(0)) == NULL))
        Py_CLEAR(lists);
    return lists;
}

/* ---- the owner ---- */

static PyObject *
owner_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    Owner *self = (Owner *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->core = CORE_OF(self);
    self->pending = (Link){&self->pending, &self->pending};
    self->lists = new_lists(self->core);
    if (self->lists == NULL)
        Py_CLEAR(self);
    return (PyObject *)self;
}

static int
owner_init(Owner *self, PyObject *args, PyObject *kwargs)
{
    PyObject *timer;
    int live;
    Py_ssize_t purge_interval, max_pending;
    if (!PyArg_ParseTuple(args, "O!pnn:__init__", self->core->Timer, &timer, &live, &purge_interval, &max_pending))
        return -1;
    Py_XSETREF(self->timer, (Timer *)Py_NewRef(timer));
    self->live = (char)live;
    self->purge_interval = purge_interval;
    self->max_pending = max_pending;
    return 0;
}

static Operation *
linked(Link *link)
{
    return (Operation *)((char *)link - offsetof(Operation, link));
}

static int
owner_traverse(Owner *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->timer);
    Py_VISIT(self->lists);
    Py_VISIT(self->loop);
    Py_VISIT(self->listeners);
    Py_VISIT(self->deferred);
    for (Link *link = self->pending.newer; link != NULL && link != &self->pending; link = link->newer)
        Py_VISIT(linked(link));
    return 0;
}

static int
owner_clear(Owner *self)
{
    while (self->pending.newer != &self->pending) {
        Operation *operation = linked(self->pending.newer);
        operation->entry->operation = NULL; /* It has no reference, and what frees the operation may look. */
        release(operation);
    }
    Py_CLEAR(self->loop);
    Py_CLEAR(self->listeners);
    Py_CLEAR(self->deferred);
    return 0;
}

static void
owner_dealloc(Owner *self)
{
    PyObject_GC_UnTrack(self);
    owner_clear(self);
    Py_CLEAR(self->timer);
    Py_CLEAR(self->lists);
    free_object(self);
}

/* Owner.compact */
static int
compact_list(Owner *owner, Watchers *watchers)
{
    if (owner->lists->changing || compact(owner->lists, watchers) == 0)
        return 0; /* In the first case it is compacted by the next check, or by a purge. */
    if (!PyErr_ExceptionMatches(PyExc_Exception))
        return -1;
    Handled now;
    handle(&now);
    PyObject *done = PyObject_CallMethod((PyObject *)owner, "report_key", "O", now.exception);
    handled(&now);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

/* OwnerBase.try_each: try the operations from the index `at` on, until `limit` of them have completed, or one does so
   after `seconds`. An exception that leaves one ends it early, and is set. */
static int
try_entries(Core *core, PyObject *entries, Py_ssize_t *at, Py_ssize_t end, Py_ssize_t limit, double seconds,
            Py_ssize_t *completed)
{
    double ends = seconds < Py_HUGE_VAL ? seconds_now() + seconds : seconds;
    int failed = 0;
    while (!failed && *at < end && *at < PyList_GET_SIZE(entries) && *completed < limit) {
        PyObject *entry = PyList_GET_ITEM(entries, (*at)++);
        if (Py_TYPE(entry) != core->Entry || ((Entry *)entry)->operation == NULL)
            continue;
        Operation *operation = (Operation *)Py_NewRef(((Entry *)entry)->operation);
        failed = try_operation(core, operation) < 0;
        *completed += outcome_of(operation) == SATISFIED_O;
        if (ends < Py_HUGE_VAL && is_done(operation) && seconds_now() >= ends)
            limit = *completed;
        Py_DECREF(operation);
    }
    return failed ? -1 : 0;
}

static PyObject *
owner_try_each(Owner *self, PyObject *args)
{
    PyObject *entries, *exit_request = Py_NewRef(Py_None);
    Py_ssize_t at, end, limit, completed = 0;
    double seconds;
    if (!PyArg_ParseTuple(args, "O!nnnd:try_each", &PyList_Type, &entries, &at, &end, &limit, &seconds))
        return NULL;
    Py_INCREF(entries);
    if (try_entries(self->core, entries, &at, end, limit, seconds, &completed) < 0) {
        Handled now;
        handle(&now);
        Py_SETREF(exit_request, Py_NewRef(now.exception));
        handled(&now);
    }
    Py_DECREF(entries);
    return Py_BuildValue("nnN", at, completed, exit_request);
}

/* skip_dead of `watchers.py`: note the dead at the front; whether to compact the list now. */
static bool
skip_dead(Core *core, Watchers *watchers, PyObject *entries)
{
    Py_ssize_t head = watchers->head, length = PyList_GET_SIZE(entries);
    if (watchers->entries != entries)
        return false;
    while (head < length && ((Entry *)PyList_GET_ITEM(entries, head))->operation == NULL)
        head++;
    watchers->head = head;
    return length <= core->slice && 2 * head >= length;
}

/* The rest of PurgatoryBase.check_and_complete: how many have completed; -1 if an exception leaves. What it has not tried
   is requested again. */
static Py_ssize_t
check_list(Core *core, Purgatory *self, Owner *owner, Watchers *watchers, PyObject *key, Py_ssize_t limit)
{
    PyObject *entries = Py_NewRef(watchers->entries), *raised = NULL;
    Py_ssize_t at = watchers->head, end = PyList_GET_SIZE(entries), completed = 0;
    if (try_entries(core, entries, &at, end, limit, Py_HUGE_VAL, &completed) < 0)
        keep(&raised);
    if ((at >= end || skip_dead(core, watchers, entries)) && compact_list(owner, watchers) < 0)
        keep(&raised);
    Py_DECREF(entries);
    if (raised == NULL)
        return completed;
    if (at < end && completed < limit) {
        PyObject *left = limit == PY_SSIZE_T_MAX ? Py_NewRef(Py_None) : PyLong_FromSsize_t(limit - completed);
        PyObject *done = left == NULL ? NULL
                                      : PyObject_CallMethod((PyObject *)self, "check_and_complete_soon", "ON", key, left);
        if (done == NULL)
            keep(&raised);
        Py_XDECREF(done);
    }
    return raise_kept(raised);
}

static PyObject *
owner_compact(Owner *self, PyObject *watchers)
{
    if (as_watchers(self->core, watchers) < 0 || compact_list(self, (Watchers *)watchers) < 0)
        return NULL;
    Py_RETURN_NONE;
}

static int
ask_time(Core *core, Owner *owner, double *now)
{
    if (owner->timer == NULL) {
        PyErr_SetString(PyExc_AttributeError, "timer");
        return -1;
    }
    PyObject *clock = clock_of(owner->timer);
    int failed = clock == NULL ? -1 : time_of(core, clock, now);
    Py_XDECREF(clock);
    return failed;
}

static PyObject *
owner_time(Owner *self, PyObject *unused)
{
    double now;
    return ask_time(self->core, self, &now) < 0 ? NULL : PyFloat_FromDouble(now);
}

/* OwnerBase.keyless: a list of the pending operations without keys. */
static PyObject *
owner_keyless(Owner *self, PyObject *unused)
{
    PyObject *operations = PyList_New(0); /* The collector may run here, and not below. */
    for (Link *link = self->pending.newer; operations != NULL && link != &self->pending; link = link->newer)
        if (linked(link)->entry->lists == 0 && PyList_Append(operations, (PyObject *)linked(link)) < 0)
            Py_CLEAR(operations);
    return operations;
}

static PyObject *
owner_is_purge_due(Owner *self, PyObject *unused)
{
    return PyBool_FromLong(is_purge_due(self));
}

static PyObject *
owner_get_finished(Owner *self, void *closure)
{
    PyObject *finished = PyDict_New();
    for (int i = 0; i < OUTCOMES && finished != NULL; i++) {
        PyObject *count = PyLong_FromSsize_t(self->finished[i]);
        if (count == NULL || PyDict_SetItem(finished, self->core->outcomes[i], count) < 0)
            Py_CLEAR(finished);
        Py_XDECREF(count);
    }
    return finished;
}

#ifdef PURGATORY_CHECKS
#include "owner_checks.h"
#endif

static PyMethodDef owner_methods[] = {
    {"try_each", (PyCFunction)owner_try_each, METH_VARARGS, NULL},
    {"compact", (PyCFunction)owner_compact, METH_O, NULL},
    {"is_purge_due", (PyCFunction)owner_is_purge_due, METH_NOARGS, NULL},
    {"keyless", (PyCFunction)owner_keyless, METH_NOARGS, NULL},
    {"time", (PyCFunction)owner_time, METH_NOARGS, NULL},
#ifdef PURGATORY_CHECKS
    {"_check", (PyCFunction)owner_check, METH_NOARGS, NULL},
#endif
    {NULL},
};

static PyGetSetDef owner_getset[] = {
    {"finished", (getter)owner_get_finished, NULL, NULL, NULL},
    {NULL},
};

static PyMemberDef owner_members[] = {
    {"timer", T_OBJECT, offsetof(Owner, timer), READONLY},
    {"lists", T_OBJECT, offsetof(Owner, lists), READONLY},
    {"loop", T_OBJECT, offsetof(Owner, loop), 0},
    {"listeners", T_OBJECT, offsetof(Owner, listeners), 0},
    {"live", T_BOOL, offsetof(Owner, live), READONLY},
    {"closed", T_BOOL, offsetof(Owner, closed), 0},
    {"purging", T_BOOL, offsetof(Owner, purging), 0},
    {"purge_interval", T_PYSSIZET, offsetof(Owner, purge_interval), 0},
    {"max_pending", T_PYSSIZET, offsetof(Owner, max_pending), READONLY},
    {"num_delayed", T_PYSSIZET, offsetof(Owner, num_delayed), READONLY},
    {"peak_delayed", T_PYSSIZET, offsetof(Owner, peak_delayed), READONLY},
    {"missed", T_PYSSIZET, offsetof(Owner, missed), READONLY},
    {NULL},
};

static PyType_Slot owner_slots[] = {
    {Py_tp_doc, "OwnerBase(timer, live, purge_interval, max_pending)\n--\n\nWhat the operations of a purgatory know of it."},
    {Py_tp_new, owner_new},
    {Py_tp_init, owner_init},
    {Py_tp_traverse, owner_traverse},
    {Py_tp_clear, owner_clear},
    {Py_tp_dealloc, owner_dealloc},
    {Py_tp_methods, owner_methods},
    {Py_tp_getset, owner_getset},
    {Py_tp_members, owner_members},
    {0, NULL},
};

PyType_Spec owner_spec = {
    .name = "purgatory._speedups.c.OwnerBase",
    .basicsize = sizeof(Owner),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = owner_slots,
};

/* ---- the purgatory ---- */

static int
purgatory_init(Purgatory *self, PyObject *args, PyObject *kwargs)
{
    PyObject *owner;
    if (!PyArg_ParseTuple(args, "O!:__init__", CORE_OF(self)->Owner, &owner))
        return -1;
    Py_XSETREF(self->owner, (Owner *)Py_NewRef(owner));
    return 0;
}

static int
purgatory_traverse(Purgatory *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->owner);
    return 0;
}

static int
purgatory_clear(Purgatory *self)
{
    Py_CLEAR(self->owner);
    return 0;
}

static void
purgatory_dealloc(Purgatory *self)
{
    PyObject_GC_UnTrack(self);
    purgatory_clear(self);
    free_object(self);
}

/* The keys as a tuple, each once. A few with different hashes are distinct. All else goes to Python, with its errors. */
static PyObject *
distinct_keys(Core *core, PyObject *keys)
{
    PyObject *tuple = PyTuple_CheckExact(keys) || PyList_CheckExact(keys) ? PySequence_Tuple(keys) : NULL;
    if (tuple == NULL)
        return PyErr_Occurred() ? NULL : PyObject_CallOneArg(core->distinct_keys, keys);
    Py_ssize_t count = PyTuple_GET_SIZE(tuple);
    Py_hash_t hashes[FEW];
    bool distinct = count <= FEW;
    for (Py_ssize_t i = 0; i < count && distinct; i++) {
        hashes[i] = PyObject_Hash(PyTuple_GET_ITEM(tuple, i));
        if (hashes[i] == -1) { /* Its error is told in Python. */
            if (!PyErr_ExceptionMatches(PyExc_TypeError)) {
                Py_DECREF(tuple);
                return NULL;
            }
            PyErr_Clear();
            distinct = false;
        }
        for (Py_ssize_t j = 0; j < i; j++)
            distinct &= hashes[j] != hashes[i];
    }
    if (!distinct)
        Py_SETREF(tuple, PyObject_CallOneArg(core->distinct_keys, tuple));
    return tuple;
}

/* A method that raises. */
static int
refuse(Purgatory *self, const char *method, PyObject *operation)
{
    PyObject *refused = PyObject_CallMethod((PyObject *)self, method, "(O)", operation);
    if (refused != NULL)
        PyErr_Format(PyExc_SystemError, "%s() has not raised", method);
    Py_XDECREF(refused);
    return -1;
}

/* PurgatoryBase._watch: let the operation, which the first try has not completed, wait. */
static int
watch_operation(Core *core, Purgatory *self, Owner *owner, Operation *operation, PyObject *keys)
{
    double deadline = operation->timeout;
    if (deadline < Py_HUGE_VAL) {
        double now;
        if (ask_time(core, owner, &now) < 0)
            return -1;
        deadline += now;
    }
    if (operation->base.state != ARRIVING)
        return 0;
    if (owner->closed || owner->num_delayed >= owner->max_pending ||
        (PyTuple_GET_SIZE(keys) == 0 && !(deadline < Py_HUGE_VAL)))
        return refuse(self, "_refuse", (PyObject *)operation);
    Entry *entry = entry_of(core, operation, PyTuple_GET_SIZE(keys));
    if (entry == NULL || refuse_change(core, owner->lists) < 0 || watch(core, owner->lists, entry, keys) < 0) {
        if (entry != NULL)
            entry->operation = NULL;
        Py_XDECREF(entry);
        return -1;
    }
    Py_XSETREF(operation->entry, entry);
    operation->base.deadline = deadline;
    owner->num_delayed++;
    if (owner->num_delayed > owner->peak_delayed)
        owner->peak_delayed = owner->num_delayed;
    take_step(operation, WATCH);
    hold(owner, operation);
    if (try_operation(core, operation) < 0)
        return -1;
    if (operation->base.state != PENDING || operation->base.bucket != NULL || operation->base.deadline >= Py_HUGE_VAL)
        return 0;
    int failed = timer_place(owner->timer, &operation->base, operation->base.deadline, true);
    if (!failed && operation->base.state != PENDING)
        entry_leave(&operation->base); /* The clock has completed it. */
    return failed;
}

static int
hand_over(Core *core, Purgatory *self, Owner *owner, Operation *operation, PyObject *keys)
{
    PyObject *listeners = IS_NONE(owner->listeners) ? NULL : Py_NewRef(owner->listeners);
    double now = 0.0;
    int failed = listeners == NULL ? 0 : ask_time(core, owner, &now);
    if (!failed)
        failed = refuse_change(core, owner->lists);
    bool is_taken = !failed && take_step(operation, HAND_OVER);
    if (!failed && !is_taken)
        failed = refuse(self, "_refuse_new", (PyObject *)operation);
    if (is_taken) {
        Py_XSETREF(operation->owner, (Owner *)Py_NewRef(owner));
        if (listeners != NULL) {
            PyObject *done = PyObject_CallMethod(listeners, "arrive", "OOd", operation, keys, now);
            failed = done == NULL ? -1 : 0;
            Py_XDECREF(done);
        }
    }
    Py_XDECREF(listeners);
    if (!is_taken)
        return -1; /* It was refused before anything has changed. */
    if (!failed)
        failed = try_operation(core, operation) < 0 ? -1 : 0;
    if (!failed && operation->base.state == ARRIVING)
        failed = watch_operation(core, self, owner, operation, keys);
    if (!failed || outcome_of(operation) != NONE)
        return failed;
    PyObject *raised = NULL;
    keep(&raised);
    PyObject *cancelled = PyObject_CallMethod((PyObject *)operation, "cancel", NULL);
    if (cancelled == NULL) /* Its exception counts. */
        Py_CLEAR(raised);
    Py_XDECREF(cancelled);
    return cancelled == NULL ? -1 : raise_kept(raised);
}

static PyObject *
purgatory_watch(Purgatory *self, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    static const char *const wanted[] = {"operation", "keys", NULL};
    PyObject *values[2];
    if (take_arguments("try_complete_else_watch", wanted, 2, args, count, names, values) < 0)
        return NULL;
    Owner *owner = self->owner;
    if (owner == NULL) {
        PyErr_SetString(PyExc_AttributeError, "_owner");
        return NULL;
    }
    Core *core = owner->core;
    Py_INCREF(owner);
    PyObject *operation = Py_NewRef(values[0]), *keys = NULL;
    int failed = owner->closed ? refuse(self, "_refuse", Py_None) : 0;
    if (!failed && owner->live) {
        int is_here = IS_NONE(owner->loop) ? 0 : is_running(core, owner->loop);
        if (is_here == 0) {
            PyObject *bound = PyObject_CallMethod((PyObject *)owner, "bind", "O", self);
            is_here = bound == NULL ? -1 : 1;
            Py_XDECREF(bound);
        }
        failed = is_here < 0 ? -1 : 0;
    }
    if (!failed)
        failed = (keys = distinct_keys(core, values[1])) == NULL ? -1 : 0;
    if (!failed) {
        bool is_operation = PyObject_TypeCheck(operation, core->Operation) && ((Operation *)operation)->base.state != UNMADE;
        failed = is_operation ? hand_over(core, self, owner, (Operation *)operation, keys)
                              : refuse(self, "_refuse_new", operation);
    }
    Py_XDECREF(keys);
    Py_DECREF(owner);
    if (failed)
        Py_CLEAR(operation);
    return operation;
}

static int
as_limit(Core *core, PyObject *value, Py_ssize_t *limit)
{
    if (PyLong_Check(value)) {
        int sign;
        long long number = PyLong_AsLongLongAndOverflow(value, &sign);
        if (sign > 0 || (!sign && number > 0)) {
            *limit = sign > 0 || number >= PY_SSIZE_T_MAX ? PY_SSIZE_T_MAX - 1 : (Py_ssize_t)number;
            return 0;
        }
    }
    PyObject *refused = PyObject_CallFunction(core->check_count, "sOi", "limit", value, 1); /* It raises. */
    Py_XDECREF(refused);
    return -1;
}

static PyObject *
purgatory_check(Purgatory *self, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    static const char *const wanted[] = {"key", "limit", NULL};
    PyObject *values[2];
    if (take_arguments("check_and_complete", wanted, 1, args, count, names, values) < 0)
        return NULL;
    Owner *owner = self->owner;
    if (owner == NULL) {
        PyErr_SetString(PyExc_AttributeError, "_owner");
        return NULL;
    }
    Core *core = owner->core;
    Py_INCREF(owner);
    Py_ssize_t limit = PY_SSIZE_T_MAX, completed = -1;
    int failed = check_loop(core, self, owner->loop, "check_and_complete(key)", "check_and_complete_threadsafe()") < 0 ||
                 refuse_change(core, owner->lists) < 0 || (!IS_NONE(values[1]) && as_limit(core, values[1], &limit) < 0);
    if (!failed) {
        PyObject *found = Py_XNewRef(PyDict_GetItemWithError(owner->lists->by_key, values[0]));
        if (found != NULL)
            completed = check_list(core, self, owner, (Watchers *)found, values[0], limit);
        else if (!PyErr_Occurred())
            completed = 0;
        Py_XDECREF(found);
    }
    Py_DECREF(owner);
    return completed < 0 ? NULL : PyLong_FromSsize_t(completed);
}

static PyMethodDef purgatory_methods[] = {
    {"try_complete_else_watch", (PyCFunction)(void (*)(void))purgatory_watch, METH_FASTCALL | METH_KEYWORDS,
     DOC_PurgatoryBase_try_complete_else_watch},
    {"check_and_complete", (PyCFunction)(void (*)(void))purgatory_check, METH_FASTCALL | METH_KEYWORDS,
     DOC_PurgatoryBase_check_and_complete},
    {NULL},
};

static PyMemberDef purgatory_members[] = {
    {"_owner", T_OBJECT_EX, offsetof(Purgatory, owner), READONLY},
    {NULL},
};

static PyType_Slot purgatory_slots[] = {
    {Py_tp_doc, "PurgatoryBase(owner)\n--\n\nA purgatory: the hand-over of operations, and the check of a key."},
    {Py_tp_init, purgatory_init},
    {Py_tp_traverse, purgatory_traverse},
    {Py_tp_clear, purgatory_clear},
    {Py_tp_dealloc, purgatory_dealloc},
    {Py_tp_methods, purgatory_methods},
    {Py_tp_members, purgatory_members},
    {0, NULL},
};

PyType_Spec purgatory_spec = {
    .name = "purgatory._speedups.c.PurgatoryBase",
    .basicsize = sizeof(Purgatory),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = purgatory_slots,
};
