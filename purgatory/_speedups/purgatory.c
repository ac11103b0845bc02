/* Watcher lists, the owner of operations, the passes over a list, and the purgatory: watchers.py, _owner.py, _passes.py
   and purgatory.py. */

#include "core.h"

#define IS_NONE(object) ((object) == NULL || (object) == Py_None)
#define DROPPED (-2)
#define FEW 8 /* Keys whose hashes are compared with each other. */

/* ---- attributes that are relied upon: they have an object of the right type, and are not deleted ---- */

static PyObject *
get_kept(PyObject *self, void *offset)
{
    PyObject *value = *(PyObject **)((char *)self + (size_t)offset);
    return Py_NewRef(value == NULL ? Py_None : value);
}

static int
set_kept(PyObject *self, PyObject *value, void *offset)
{
    if (value == NULL) {
        PyErr_SetString(PyExc_AttributeError, "this attribute is not to be deleted");
        return -1;
    }
    Py_XSETREF(*(PyObject **)((char *)self + (size_t)offset), Py_NewRef(value));
    return 0;
}

static int
set_list(PyObject *self, PyObject *value, void *offset)
{
    if (value == NULL || PyList_CheckExact(value))
        return set_kept(self, value, offset);
    PyErr_SetString(PyExc_TypeError, "this attribute must be a list");
    return -1;
}

static int
set_dict(PyObject *self, PyObject *value, void *offset)
{
    if (value == NULL || PyDict_CheckExact(value))
        return set_kept(self, value, offset);
    PyErr_SetString(PyExc_TypeError, "this attribute must be a dict");
    return -1;
}

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
    Py_CLEAR(self->entries);
    return 0;
}

static void
watchers_dealloc(Watchers *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    watchers_clear(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyGetSetDef watchers_getset[] = {
    {"key", get_kept, set_kept, NULL, (void *)offsetof(Watchers, key)},
    {"entries", get_kept, set_list, NULL, (void *)offsetof(Watchers, entries)},
    {NULL},
};

static PyMemberDef watchers_members[] = {
    {"head", T_PYSSIZET, offsetof(Watchers, head), 0},
    {"index", T_PYSSIZET, offsetof(Watchers, index), 0},
    {NULL},
};

static PyType_Slot watchers_slots[] = {
    {Py_tp_traverse, watchers_traverse},
    {Py_tp_clear, watchers_clear},
    {Py_tp_dealloc, watchers_dealloc},
    {Py_tp_getset, watchers_getset},
    {Py_tp_members, watchers_members},
    {0, NULL},
};

PyType_Spec watchers_spec = {
    .name = "purgatory._speedups.c.Watchers",
    .basicsize = sizeof(Watchers),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = watchers_slots,
};

/* The operation of an entry that is alive. A compaction in slices puts empty lists in the place of dead entries. */
static Operation *
operation_of(Core *core, PyObject *entry)
{
    return Py_TYPE(entry) == core->Entry ? ((Entry *)entry)->operation : NULL;
}

static bool
is_alive(Core *core, PyObject *entry)
{
    return operation_of(core, entry) != NULL || (PyList_Check(entry) && PyList_GET_SIZE(entry) > 0);
}

static Watchers *
new_watchers(Core *core, PyObject *key, PyObject *entry)
{
    PyTypeObject *type = (PyTypeObject *)core->WatchersClass;
    PyObject *entries = PyList_New(1);
    if (entries == NULL)
        return NULL;
    PyList_SET_ITEM(entries, 0, Py_NewRef(entry));
    Watchers *watchers = (Watchers *)type->tp_alloc(type, 0);
    if (watchers == NULL) {
        Py_DECREF(entries);
        return NULL;
    }
    watchers->key = Py_NewRef(key);
    watchers->entries = entries;
    watchers->index = -1;
    if (Py_TYPE(entry) == core->Entry) { /* Entries refer to nothing: neither is in a cycle, unless the key is in one. */
        PyObject_GC_UnTrack(entries);
        if (!PyObject_GC_IsTracked(key))
            PyObject_GC_UnTrack(watchers);
    }
    return watchers;
}

/* Watch one key. */
static int
watch_key(Core *core, WatcherLists *self, PyObject *by_key, PyObject *entry, PyObject *key)
{
    for (;;) {
        PyObject *found = PyDict_GetItemWithError(by_key, key);
        if (found != NULL)
            return PyList_Append(((Watchers *)found)->entries, entry);
        if (PyErr_Occurred())
            return -1;
        Watchers *watchers = new_watchers(core, key, entry);
        if (watchers == NULL)
            return -1;
        PyObject *there = PyDict_SetDefault(by_key, key, (PyObject *)watchers);
        if (there != NULL && PyErr_Occurred()) { /* CPython 3.13 counts an insertion for which there was no memory. */
            ((PyDictObject *)by_key)->ma_used--;
            there = NULL;
        }
        if (there != (PyObject *)watchers) { /* An error, or the key's own methods have watched it. */
            Py_DECREF(watchers);
            if (there == NULL)
                return -1;
            continue;
        }
        if (PyList_Append(self->register_, (PyObject *)watchers) < 0) {
            PyObject *type, *value, *traceback;
            PyErr_Fetch(&type, &value, &traceback);
            if (PyDict_DelItem(by_key, key) < 0)
                PyErr_Clear();
            PyErr_Restore(type, value, traceback);
            Py_DECREF(watchers);
            return -1;
        }
        watchers->index = self->size++;
        if (PyList_GET_SIZE(watchers->entries) == 0) { /* Finished and compacted already. */
            PyObject *dropped = PyObject_CallMethod((PyObject *)self, "_drop", "O", watchers);
            if (dropped == NULL && PyErr_ExceptionMatches(PyExc_Exception))
                PyErr_Clear(); /* The key cannot be looked up: the next purge tries again. */
            Py_XDECREF(dropped);
        }
        Py_DECREF(watchers);
        return PyErr_Occurred() ? -1 : 0;
    }
}

/* WatcherLists.watch: put `entry` at the end of the list of each key. On error, `missing` lists have no entry for it. */
int
watch(Core *core, WatcherLists *self, Entry *entry, PyObject *keys, Py_ssize_t *missing)
{
    PyObject *by_key = Py_NewRef(self->by_key);
    Py_ssize_t count = PyTuple_GET_SIZE(keys);
    int failed = 0;
    for (Py_ssize_t i = 0; i < count && !failed; i++) {
        failed = watch_key(core, self, by_key, (PyObject *)entry, PyTuple_GET_ITEM(keys, i)) < 0;
        *missing = count - i;
    }
    Py_DECREF(by_key);
    return failed ? -1 : 0;
}

static PyObject *
lists_watch(WatcherLists *self, PyObject *const *args, Py_ssize_t count)
{
    Py_ssize_t missing = 0;
    if (count != 2 || !PyTuple_Check(args[1]))
        return PyErr_Format(PyExc_TypeError, "watch() takes an entry and a tuple of keys");
    if (watch(CORE_OF(self), self, (Entry *)args[0], args[1], &missing) == 0)
        Py_RETURN_NONE;
    Handled now;
    handle(&now);
    PyObject *result = Py_BuildValue("On", now.exception, missing);
    handled(&now);
    return result;
}

/* WatcherLists._drop: remove an empty list and its key. */
static int
drop(Core *core, WatcherLists *self, Watchers *watchers)
{
    PyObject *register_ = self->register_;
    Py_ssize_t index = watchers->index, end = PyList_GET_SIZE(register_) - 1;
    if (index < 0 || index > end || PyList_GET_ITEM(register_, index) != (PyObject *)watchers)
        return 0;
    PyObject *last = Py_NewRef(PyList_GET_ITEM(register_, end));
    if (PyList_SetSlice(register_, end, end + 1, NULL) < 0) {
        Py_DECREF(last);
        return -1;
    }
    if (index < end) {
        ((Watchers *)last)->index = index;
        PyList_SetItem(register_, index, last);
    }
    else
        Py_DECREF(last);
    watchers->index = -1;
    self->size = end;
    PyObject *by_key = Py_NewRef(self->by_key), *key = Py_NewRef(watchers->key);
    PyObject *done = PyObject_CallMethodObjArgs(by_key, core->pop, key, Py_None, NULL);
    Py_DECREF(key);
    if (done == NULL) {
        Handled error;
        handle(&error);
        done = PyObject_CallMethod((PyObject *)self, "_add_to_register", "O", watchers);
        if (done != NULL) {
            raise_again(Py_NewRef(error.exception));
            Py_CLEAR(done);
        }
        handled(&error);
    }
    else {
        if (PyList_GET_SIZE(watchers->entries) > 0)
            Py_SETREF(done, PyObject_CallMethod((PyObject *)self, "_revive", "OO", by_key, watchers));
        else
            watchers->index = DROPPED;
    }
    Py_DECREF(by_key);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

/* WatcherLists.compact: remove the dead entries of a list. */
static int
compact(Core *core, WatcherLists *self, Watchers *watchers)
{
    Py_ssize_t length;
    while ((length = PyList_GET_SIZE(watchers->entries)) > 0) {
        PyObject *entries = Py_NewRef(watchers->entries);
        Py_ssize_t living = 0, at = 0;
        for (Py_ssize_t i = 0; i < length; i++)
            living += is_alive(core, PyList_GET_ITEM(entries, i));
        PyObject *alive = living == length ? NULL : PyList_New(living); /* It may collect garbage. */
        if (alive == NULL) {
            Py_DECREF(entries);
            return living == length ? 0 : -1;
        }
        PyObject_GC_UnTrack(alive);
        if (watchers->entries != entries || PyList_GET_SIZE(entries) != length)
            at = -1; /* It has changed meanwhile. */
        for (Py_ssize_t i = 0; 0 <= at && i < length; i++)
            if (is_alive(core, PyList_GET_ITEM(entries, i)))
                PyList_SET_ITEM(alive, at++, Py_NewRef(PyList_GET_ITEM(entries, i)));
        if (at == living) {
            if (self->watched > self->peak)
                self->peak = self->watched;
            watchers->head = 0;
            self->watched -= length - living;
            self->dead -= length - living;
            self->purged += length - living;
            Py_SETREF(watchers->entries, Py_NewRef(alive));
        }
        Py_DECREF(alive);
        Py_DECREF(entries);
        if (at == living)
            break;
    }
    return PyList_GET_SIZE(watchers->entries) == 0 ? drop(core, self, watchers) : 0;
}

static PyObject *
lists_compact(WatcherLists *self, PyObject *watchers)
{
    Core *core = CORE_OF(self);
    if (!PyObject_TypeCheck(watchers, core->Watchers))
        return PyErr_Format(PyExc_TypeError, "compact() takes the list of a key");
    if (compact(core, self, (Watchers *)watchers) < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *
lists_find(WatcherLists *self, PyObject *key)
{
    PyObject *by_key = Py_NewRef(self->by_key);
    PyObject *found = Py_XNewRef(PyDict_GetItemWithError(by_key, key));
    Py_DECREF(by_key);
    return found != NULL || PyErr_Occurred() ? found : Py_NewRef(Py_None);
}

static int
lists_traverse(WatcherLists *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->by_key);
    Py_VISIT(self->register_);
    Py_VISIT(self->revived);
    return 0;
}

static int
lists_clear(WatcherLists *self)
{
    Py_CLEAR(self->by_key);
    Py_CLEAR(self->register_);
    Py_CLEAR(self->revived);
    return 0;
}

static void
lists_dealloc(WatcherLists *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    lists_clear(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMethodDef lists_methods[] = {
    {"watch", (PyCFunction)(void (*)(void))lists_watch, METH_FASTCALL, NULL},
    {"find", (PyCFunction)lists_find, METH_O, NULL},
    {"compact", (PyCFunction)lists_compact, METH_O, NULL},
    {NULL},
};

static PyGetSetDef lists_getset[] = {
    {"_by_key", get_kept, set_dict, NULL, (void *)offsetof(WatcherLists, by_key)},
    {"_register", get_kept, set_list, NULL, (void *)offsetof(WatcherLists, register_)},
    {"revived", get_kept, set_list, NULL, (void *)offsetof(WatcherLists, revived)},
    {NULL},
};

static PyMemberDef lists_members[] = {
    {"_size", T_PYSSIZET, offsetof(WatcherLists, size), 0},
    {"watched", T_PYSSIZET, offsetof(WatcherLists, watched), 0},
    {"dead", T_PYSSIZET, offsetof(WatcherLists, dead), 0},
    {"clears", T_PYSSIZET, offsetof(WatcherLists, clears), 0},
    {"peak", T_PYSSIZET, offsetof(WatcherLists, peak), 0},
    {"purged", T_PYSSIZET, offsetof(WatcherLists, purged), 0},
    {NULL},
};

static PyType_Slot watcher_lists_slots[] = {
    {Py_tp_traverse, lists_traverse},
    {Py_tp_clear, lists_clear},
    {Py_tp_dealloc, lists_dealloc},
    {Py_tp_methods, lists_methods},
    {Py_tp_getset, lists_getset},
    {Py_tp_members, lists_members},
    {0, NULL},
};

PyType_Spec watcher_lists_spec = {
    .name = "purgatory._speedups.c.WatcherLists",
    .basicsize = sizeof(WatcherLists),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = watcher_lists_slots,
};

/* ---- the owner ---- */

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
    Py_VISIT(self->time);
    Py_VISIT(self->loop);
    Py_VISIT(self->thread);
    Py_VISIT(self->listeners);
    Py_VISIT(self->awaited);
    Py_VISIT(self->max_pending);
    Py_VISIT(self->deferred);
    Py_VISIT(self->purge_handle);
    Py_VISIT(self->lists);
    for (Link *link = self->pending.newer; link != NULL && link != &self->pending; link = link->newer)
        Py_VISIT(linked(link));
    return 0;
}

static int
owner_clear(Owner *self)
{
    while (self->pending.newer != NULL && self->pending.newer != &self->pending)
        release(linked(self->pending.newer));
    Py_CLEAR(self->time);
    Py_CLEAR(self->loop);
    Py_CLEAR(self->thread);
    Py_CLEAR(self->listeners);
    Py_CLEAR(self->awaited);
    Py_CLEAR(self->max_pending);
    Py_CLEAR(self->deferred);
    Py_CLEAR(self->purge_handle);
    return 0;
}

static void
owner_dealloc(Owner *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    owner_clear(self);
    Py_CLEAR(self->timer);
    Py_CLEAR(self->lists);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyObject *
owner_get_timer(Owner *self, void *closure)
{
    return Py_NewRef(self->timer == NULL ? Py_None : (PyObject *)self->timer);
}

static int
owner_set_timer(Owner *self, PyObject *value, void *closure)
{
    Core *core = CORE_OF(self);
    if (value == NULL || !PyObject_TypeCheck(value, core->WheelTimer)) {
        PyErr_SetString(PyExc_TypeError, "timer must be a WheelTimer");
        return -1;
    }
    self->core = core;
    if (self->pending.newer == NULL)
        self->pending = (Link){&self->pending, &self->pending};
    Py_XSETREF(self->timer, (WheelTimer *)Py_NewRef(value));
    return 0;
}

static PyObject *
owner_get_lists(Owner *self, void *closure)
{
    return Py_NewRef(self->lists == NULL ? Py_None : (PyObject *)self->lists);
}

static int
owner_set_lists(Owner *self, PyObject *value, void *closure)
{
    if (value == NULL || !PyObject_TypeCheck(value, CORE_OF(self)->WatcherLists)) {
        PyErr_SetString(PyExc_TypeError, "lists must be WatcherLists");
        return -1;
    }
    Py_XSETREF(self->lists, (WatcherLists *)Py_NewRef(value));
    return 0;
}

/* For tests: the operations that are held are the pending ones of this owner. */
static PyObject *
owner_check(Owner *self, PyObject *unused)
{
    Py_ssize_t count = 0;
    for (Link *link = self->pending.newer; link != &self->pending; link = link->newer, count++) {
        Operation *operation = linked(link);
        if (!operation->base.held || operation->state != PENDING || operation->owner != self || operation->entry == NULL ||
            operation->entry->operation != operation || link->newer->older != link) {
            PyErr_SetString(PyExc_AssertionError, "an owner holds pending operations of its own");
            return NULL;
        }
    }
    if (count != self->num_delayed) {
        PyErr_SetString(PyExc_AssertionError, "an owner holds as many operations as are pending");
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyMethodDef owner_methods[] = {
    {"_check", (PyCFunction)owner_check, METH_NOARGS, NULL},
    {NULL},
};

static PyGetSetDef owner_getset[] = {
    {"timer", (getter)owner_get_timer, (setter)owner_set_timer, NULL, NULL},
    {"lists", (getter)owner_get_lists, (setter)owner_set_lists, NULL, NULL},
    {"time", get_kept, set_kept, NULL, (void *)offsetof(Owner, time)},
    {"deferred", get_kept, set_kept, NULL, (void *)offsetof(Owner, deferred)},
    {NULL},
};

#define COUNT(name) {#name, T_PYSSIZET, offsetof(Owner, name), 0}

static PyMemberDef owner_members[] = {
    {"live", T_BOOL, offsetof(Owner, live), 0},
    {"closed", T_BOOL, offsetof(Owner, closed), 0},
    {"_purging", T_BOOL, offsetof(Owner, purging), 0},
    {"loop", T_OBJECT, offsetof(Owner, loop), 0},
    {"thread", T_OBJECT, offsetof(Owner, thread), 0},
    {"listeners", T_OBJECT, offsetof(Owner, listeners), 0},
    {"awaited", T_OBJECT, offsetof(Owner, awaited), 0},
    {"max_pending", T_OBJECT, offsetof(Owner, max_pending), 0},
    {"_purge_handle", T_OBJECT, offsetof(Owner, purge_handle), 0},
    COUNT(purge_interval),
    COUNT(fast_path_limit),
    COUNT(depth),
    COUNT(num_delayed),
    COUNT(peak_delayed),
    COUNT(completed_at_once),
    COUNT(satisfied),
    COUNT(missed),
    COUNT(expired),
    COUNT(closed_operations),
    COUNT(cancelled),
    COUNT(failed),
    COUNT(purges),
    COUNT(scanned),
    {NULL},
};

static PyType_Slot owner_slots[] = {
    {Py_tp_traverse, owner_traverse},
    {Py_tp_clear, owner_clear},
    {Py_tp_dealloc, owner_dealloc},
    {Py_tp_methods, owner_methods},
    {Py_tp_getset, owner_getset},
    {Py_tp_members, owner_members},
    {0, NULL},
};

PyType_Spec owner_spec = {
    .name = "purgatory._speedups.c.Owner",
    .basicsize = sizeof(Owner),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = owner_slots,
};

/* ---- passes ---- */

/* try_each: how many operations of `entries` completed; -1 if a request to exit leaves, after the others were tried. */
static Py_ssize_t
try_entries(Core *core, Owner *owner, PyObject *entries)
{
    Py_ssize_t completed = 0;
    PyObject *leaving = NULL;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(entries); i++) {
        Entry *entry = (Entry *)PyList_GET_ITEM(entries, i);
        Operation *operation = operation_of(core, (PyObject *)entry);
        if (operation == NULL)
            continue;
        Py_INCREF(entry);
        Py_INCREF(operation);
        int claimed = try_operation(core, operation, owner);
        if (claimed < 0) {
            claimed = 0;
            Handled now;
            handle(&now);
            if (is_exit(now.exception)) {
                keep_first(&leaving, now.exception);
                handled(&now);
            }
            else { /* The clock does not call back. */
                raise_again(Py_NewRef(now.exception));
                handled(&now);
                Py_XDECREF(leaving);
                Py_DECREF(operation);
                Py_DECREF(entry);
                return -1;
            }
        }
        if (entry->operation == NULL && (claimed || operation->state == COMPLETING || operation->state == COMPLETED))
            completed++; /* It may have completed, and not have said so. */
        Py_DECREF(operation);
        Py_DECREF(entry);
    }
    return raise_kept(leaving) < 0 ? -1 : completed;
}

PyObject *
try_each(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    Core *core = PyModule_GetState(module);
    if (count != 2 || !PyObject_TypeCheck(args[0], core->Owner))
        return PyErr_Format(PyExc_TypeError, "try_each() takes an owner and entries");
    PyObject *entries = PySequence_List(args[1]);
    if (entries == NULL)
        return NULL;
    Py_ssize_t completed = try_entries(core, (Owner *)args[0], entries);
    Py_DECREF(entries);
    return completed < 0 ? NULL : PyLong_FromSsize_t(completed);
}

/* Owner.compact */
static int
compact_list(Core *core, Owner *owner, Watchers *watchers)
{
    PyObject *done = Py_NewRef(Py_None);
    if (compact(core, owner->lists, watchers) < 0) {
        if (!PyErr_ExceptionMatches(PyExc_Exception))
            Py_CLEAR(done);
        else {
            Handled now;
            handle(&now);
            Py_SETREF(done, PyObject_CallMethod((PyObject *)owner, "_report_key", "O", now.exception));
            handled(&now);
        }
    }
    if (done != NULL && PyList_GET_SIZE(owner->lists->revived) > 0)
        Py_SETREF(done, PyObject_CallMethod((PyObject *)owner, "retry_revived", NULL));
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

/* try_all: try the operations of a list in one go, and compact it. */
static PyObject *
try_list(Core *core, Owner *owner, Watchers *watchers)
{
    PyObject *entries = PyList_New(0); /* A collection may replace the list. */
    if (entries == NULL || PyList_SetSlice(entries, 0, 0, watchers->entries) < 0) {
        Py_XDECREF(entries);
        return NULL;
    }
    Py_INCREF(watchers);
    Py_ssize_t completed = try_entries(core, owner, entries);
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(entries); i++)
        if (operation_of(core, PyList_GET_ITEM(entries, i)) == NULL) {
            if (compact_list(core, owner, watchers) < 0) {
                Py_CLEAR(type);
                Py_CLEAR(value);
                Py_CLEAR(traceback);
                PyErr_Fetch(&type, &value, &traceback);
                completed = -1;
            }
            break;
        }
    Py_DECREF(watchers);
    Py_DECREF(entries);
    PyErr_Restore(type, value, traceback);
    return completed < 0 ? NULL : PyLong_FromSsize_t(completed);
}

PyObject *
try_all(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    Core *core = PyModule_GetState(module);
    if (count != 2 || !PyObject_TypeCheck(args[0], core->Owner) || !PyObject_TypeCheck(args[1], core->Watchers))
        return PyErr_Format(PyExc_TypeError, "try_all() takes an owner and the list of a key");
    return try_list(core, (Owner *)args[0], (Watchers *)args[1]);
}

/* ---- the purgatory ---- */

static int
purgatory_traverse(Purgatory *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->owner);
    Py_VISIT(self->name);
    Py_VISIT(self->queue);
    return 0;
}

static int
purgatory_clear(Purgatory *self)
{
    Py_CLEAR(self->owner);
    Py_CLEAR(self->name);
    Py_CLEAR(self->queue);
    return 0;
}

static void
purgatory_dealloc(Purgatory *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    if (self->weakrefs != NULL)
        PyObject_ClearWeakRefs((PyObject *)self);
    purgatory_clear(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static int
no_owner(Purgatory *self)
{
    if (self->owner != NULL)
        return 0;
    PyErr_SetString(PyExc_AttributeError, "_owner");
    return 1;
}

/* The keys as a tuple, each once. */
static PyObject *
distinct_keys(PyObject *keys)
{
    if (PyTuple_CheckExact(keys))
        Py_INCREF(keys);
    else if (PyUnicode_Check(keys) || PyBytes_Check(keys))
        return PyErr_Format(PyExc_TypeError, "keys must be an iterable of keys, not the %s %R", Py_TYPE(keys)->tp_name, keys);
    else if ((keys = PySequence_Tuple(keys)) == NULL)
        return NULL;
    Py_ssize_t count = PyTuple_GET_SIZE(keys);
    if (count == 0) {
        Py_DECREF(keys);
        PyErr_SetString(PyExc_ValueError, "an operation needs at least one key to be watched on");
        return NULL;
    }
    Py_hash_t hashes[FEW];
    bool distinct_hashes = count <= FEW; /* And so are the keys then. A dict costs more. */
    for (Py_ssize_t i = 0; i < count && distinct_hashes; i++) {
        hashes[i] = PyObject_Hash(PyTuple_GET_ITEM(keys, i));
        if (hashes[i] == -1) {
            Py_DECREF(keys);
            return NULL;
        }
        for (Py_ssize_t j = 0; j < i; j++)
            distinct_hashes &= hashes[j] != hashes[i];
    }
    if (distinct_hashes)
        return keys;
    PyObject *distinct = PyDict_New();
    for (Py_ssize_t i = 0; i < count && distinct != NULL; i++)
        if (PyDict_SetItem(distinct, PyTuple_GET_ITEM(keys, i), Py_None) < 0)
            Py_CLEAR(distinct);
    if (distinct == NULL)
        Py_CLEAR(keys);
    else if (PyDict_GET_SIZE(distinct) < count)
        Py_SETREF(keys, PySequence_Tuple(distinct));
    Py_XDECREF(distinct);
    return keys;
}

/* Whether the owner's loop is the one that runs in this thread; -1 on error. */
int
is_loop_running(Core *core, Owner *owner)
{
#if PY_VERSION_HEX < 0x030C0000
    /* There, get_running_loop() asks the system whether the process was forked: a quarter of an operation. A loop of
       asyncio's has the thread that it runs in, or None. */
    if (!IS_NONE(owner->loop)) {
        PyObject *thread = PyObject_GetAttr(owner->loop, core->_thread_id);
        bool is_here = thread != NULL && PyLong_CheckExact(thread) &&
                       PyLong_AsUnsignedLong(thread) == PyThread_get_thread_ident();
        Py_XDECREF(thread);
        if (is_here)
            return 1;
        if (PyErr_Occurred()) {
            if (!PyErr_ExceptionMatches(PyExc_Exception))
                return -1;
            PyErr_Clear(); /* Another kind of loop. */
        }
    }
#endif
    PyObject *running = PyObject_CallNoArgs(core->get_running_loop);
    Py_XDECREF(running);
    if (running != NULL)
        return running == owner->loop;
    if (!PyErr_ExceptionMatches(PyExc_RuntimeError))
        return -1;
    PyErr_Clear();
    return 0;
}

static int
check_running_loop(Core *core, Purgatory *self, Owner *owner)
{
    int is_running = owner->live ? is_loop_running(core, owner) : 1;
    if (is_running)
        return is_running < 0 ? -1 : 0;
    PyObject *bound = PyObject_CallMethod((PyObject *)owner, "bind", "O", self);
    Py_XDECREF(bound);
    return bound == NULL ? -1 : 0;
}

/* The operation waits from now on, unless it is done, or refused. */
static PyObject *
register_operation(Core *core, Purgatory *self, Owner *owner, Operation *operation, PyObject *keys, double timeout)
{
    Py_ssize_t count = PyTuple_GET_SIZE(keys);
    PyObject *now = PyObject_CallNoArgs(owner->time);
    if (now == NULL)
        return NULL;
    double deadline = PyFloat_AsDouble(now) + timeout;
    Py_DECREF(now);
    Entry *entry = PyErr_Occurred() ? NULL : entry_of(core, operation);
    if (entry == NULL)
        return NULL;
    Py_ssize_t most = PY_SSIZE_T_MAX;
    if (!IS_NONE(owner->max_pending))
        most = PyLong_AsSsize_t(owner->max_pending);
    /* The operation is counted as pending and all of its entries as living, or it is done. */
    if (operation->state != PENDING) {
        entry->operation = NULL;
        Py_DECREF(entry);
        Py_RETURN_NONE;
    }
    if (owner->closed || owner->num_delayed >= most) {
        entry->operation = NULL;
        Py_DECREF(entry);
        return PyObject_CallMethod((PyObject *)self, "_reject", "O", operation);
    }
    WatcherLists *lists = owner->lists;
    operation->base.deadline = deadline;
    operation->entry = (Entry *)Py_NewRef(entry);
    operation->keys = (int)count;
    lists->watched += count;
    owner->num_delayed++;
    if (owner->num_delayed > owner->peak_delayed)
        owner->peak_delayed = owner->num_delayed;
    Py_ssize_t clears = lists->clears, missing = 0;
    hold(owner, operation);
    PyObject *result = NULL;
    if (watch(core, lists, entry, keys, &missing) < 0) {
        Handled error;
        handle(&error);
        result = PyObject_CallMethod((PyObject *)self, "_withdraw", "Odnn", operation, timeout, missing, clears);
        Py_XDECREF(result);
        if (result != NULL)
            raise_again(Py_NewRef(error.exception));
        handled(&error);
        Py_DECREF(entry);
        return NULL;
    }
    if (PyList_GET_SIZE(lists->revived) > 0) {
        PyObject *done = PyObject_CallMethod((PyObject *)owner, "retry_revived", NULL);
        if (done == NULL)
            goto failed;
        Py_DECREF(done);
    }
    if (entry->operation != NULL && try_operation(core, operation, owner) < 0)
        goto failed;
    if (entry->operation != NULL && operation->base.deadline < Py_HUGE_VAL) {
        if (timer_place(core, owner->timer, &operation->base, operation->base.deadline, NULL) < 0) {
            /* The clock does not call back: its loop is closed, perhaps. */
            Handled error;
            handle(&error);
            PyObject *cancelled = PyObject_CallMethod((PyObject *)operation, "cancel", NULL);
            Py_XDECREF(cancelled);
            if (cancelled != NULL)
                raise_again(Py_NewRef(error.exception));
            handled(&error);
            goto failed;
        }
        if (entry->operation == NULL) /* Finished meanwhile, by a finalizer for one. */
            entry_leave(&operation->base);
    }
    if (owner->closed) { /* Meanwhile, and the closing may not have met this one. */
        PyObject *done = PyObject_CallMethod((PyObject *)self, "_close_late", "O", operation);
        if (done == NULL)
            goto failed;
        Py_DECREF(done);
    }
    result = Py_NewRef(Py_None);
failed:
    Py_DECREF(entry);
    return result;
}

static PyObject *
purgatory_watch_keys(Core *core, Purgatory *self, Owner *owner, Operation *operation, PyObject *keys)
{
    Py_ssize_t count = PyTuple_GET_SIZE(keys);
    if (count > INT_MAX)
        return PyErr_Format(PyExc_OverflowError, "an operation is watched on at most %d keys", INT_MAX);
    if (operation->owner != NULL || operation->state != PENDING)
        return PyObject_CallMethod((PyObject *)self, "_refuse", "O", operation);
    operation->owner = (Owner *)Py_NewRef(owner);
    double timeout = operation->base.deadline;
    if (!IS_NONE(owner->listeners)) {
        PyObject *done = PyObject_CallMethod((PyObject *)self, "_arrive", "OOd", operation, keys, timeout);
        if (done == NULL)
            return NULL;
        Py_DECREF(done);
    }
    if (try_operation(core, operation, owner) < 0)
        return NULL;
    if (operation->state != PENDING)
        Py_RETURN_NONE;
    owner = (Owner *)Py_NewRef(self->owner); /* Which may be closed by now. */
    PyObject *done = register_operation(core, self, owner, operation, keys, timeout);
    Py_DECREF(owner);
    return done;
}

static PyObject *
watch_held(Purgatory *self, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    static const char *const wanted[] = {"operation", "keys", NULL};
    PyObject *values[2];
    if (take_arguments("try_complete_else_watch", wanted, 2, args, count, args + count, names, values) < 0)
        return NULL;
    PyObject *operation = values[0], *keys = values[1];
    if (no_owner(self))
        return NULL;
    Owner *owner = self->owner;
    Core *core = owner->core;
    if (owner->closed)
        return PyObject_CallMethod((PyObject *)self, "_refuse_closed", NULL);
    if (check_running_loop(core, self, owner) < 0)
        return NULL;
    keys = distinct_keys(keys);
    if (keys == NULL)
        return NULL;
    PyObject *done;
    if (!is_operation(core, operation) || ((Operation *)operation)->state == NEW)
        done = PyObject_CallMethod((PyObject *)self, "_refuse", "O", operation);
    else {
        Py_INCREF(operation);
        done = purgatory_watch_keys(core, self, owner, (Operation *)operation, keys);
        if (done == NULL)
            Py_DECREF(operation);
    }
    Py_DECREF(keys);
    if (done == NULL)
        return NULL;
    Py_DECREF(done);
    return operation;
}

static PyObject *
check_held(Purgatory *self, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    if (no_owner(self))
        return NULL;
    Owner *owner = self->owner;
    static const char *const wanted[] = {"key", "limit", NULL};
    PyObject *values[2];
    if (take_arguments("check_and_complete", wanted, 1, args, count, args + count, names, values) < 0)
        return NULL;
    PyObject *key = values[0], *limit = values[1];
    if (!IS_NONE(owner->thread)) {
        PyObject *checked = PyObject_CallMethod((PyObject *)owner, "check_thread", "ss", "check_and_complete(key)",
                                                "check_and_complete_threadsafe()");
        if (checked == NULL)
            return NULL;
        Py_DECREF(checked);
    }
    if (!IS_NONE(limit))
        return PyObject_CallMethod((PyObject *)self, "_check_limited", "OO", key, limit);
    PyObject *by_key = Py_NewRef(owner->lists->by_key);
    PyObject *found = Py_XNewRef(PyDict_GetItemWithError(by_key, key));
    Py_DECREF(by_key);
    if (found == NULL)
        return PyErr_Occurred() ? NULL : PyLong_FromLong(0);
    PyObject *completed = try_list(owner->core, owner, (Watchers *)found);
    Py_DECREF(found);
    return completed;
}

static PyObject *
purgatory_watch(Purgatory *self, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    PyObject *owner = Py_XNewRef(self->owner), *done = watch_held(self, args, count, names);
    Py_XDECREF(owner);
    return done;
}

static PyObject *
purgatory_check(Purgatory *self, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    PyObject *owner = Py_XNewRef(self->owner), *done = check_held(self, args, count, names);
    Py_XDECREF(owner);
    return done;
}

static PyObject *
purgatory_get_owner(Purgatory *self, void *closure)
{
    return no_owner(self) ? NULL : Py_NewRef(self->owner);
}

static int
purgatory_set_owner(Purgatory *self, PyObject *value, void *closure)
{
    if (value == NULL || !PyObject_TypeCheck(value, CORE_OF(self)->Owner) || ((Owner *)value)->core == NULL) {
        PyErr_SetString(PyExc_TypeError, "_owner must be an Owner");
        return -1;
    }
    Py_XSETREF(self->owner, (Owner *)Py_NewRef(value));
    return 0;
}

static PyMethodDef purgatory_methods[] = {
    {"try_complete_else_watch", (PyCFunction)(void (*)(void))purgatory_watch, METH_FASTCALL | METH_KEYWORDS, DOC_DelayedOperationPurgatory_try_complete_else_watch},
    {"check_and_complete", (PyCFunction)(void (*)(void))purgatory_check, METH_FASTCALL | METH_KEYWORDS, DOC_DelayedOperationPurgatory_check_and_complete},
    {NULL},
};

static PyGetSetDef purgatory_getset[] = {
    {"_owner", (getter)purgatory_get_owner, (setter)purgatory_set_owner, NULL, NULL},
    {NULL},
};

static PyMemberDef purgatory_members[] = {
    {"__weaklistoffset__", T_PYSSIZET, offsetof(Purgatory, weakrefs), READONLY},
    {"_name", T_OBJECT_EX, offsetof(Purgatory, name), 0},
    {"_queue", T_OBJECT_EX, offsetof(Purgatory, queue), 0},
    {NULL},
};

static PyType_Slot purgatory_slots[] = {
    {Py_tp_traverse, purgatory_traverse},
    {Py_tp_clear, purgatory_clear},
    {Py_tp_dealloc, purgatory_dealloc},
    {Py_tp_methods, purgatory_methods},
    {Py_tp_getset, purgatory_getset},
    {Py_tp_members, purgatory_members},
    {0, NULL},
};

PyType_Spec purgatory_spec = {
    .name = "purgatory._speedups.c.Purgatory",
    .basicsize = sizeof(Purgatory),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = purgatory_slots,
};
