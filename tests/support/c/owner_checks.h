/* For tests: the invariants of an owner in C and its watcher lists between two calls. Raises AssertionError. */

static PyObject *
owner_broken(const char *rule)
{
    PyErr_SetString(PyExc_AssertionError, rule);
    return NULL;
}

/* Whether a lookup of the key runs Python. It may raise or find another key, and then an empty list stays in the row. */
static bool
is_odd(Watchers *watchers)
{
    return !PyUnicode_CheckExact(watchers->key) && !PyLong_CheckExact(watchers->key);
}

static PyObject *
owner_check(Owner *self, PyObject *unused)
{
    Py_ssize_t count = 0, living = 0, watched = 0, living_watched = 0;
    for (Link *link = self->pending.newer; link != &self->pending; link = link->newer, count++) {
        Operation *operation = linked(link);
        if (!operation->base.held || operation->base.state != PENDING || operation->owner != self ||
            operation->entry == NULL || operation->entry->operation != operation || link->newer->older != link)
            return owner_broken("an owner holds pending operations of its own");
        living += operation->entry->lists;
    }
    if (count != self->num_delayed)
        return owner_broken("an owner holds as many operations as are pending");
    WatcherLists *lists = self->lists;
    Py_ssize_t keys = PyDict_GET_SIZE(lists->by_key), odd = 0;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(lists->lists); i++)
        odd += is_odd((Watchers *)PyList_GET_ITEM(lists->lists, i));
    if (lists->changing || keys > PyList_GET_SIZE(lists->lists) || keys < PyList_GET_SIZE(lists->lists) - odd)
        return owner_broken("each list has a key");
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(lists->lists); i++) {
        Watchers *watchers = (Watchers *)PyList_GET_ITEM(lists->lists, i);
        if (watchers->index != i || (PyList_GET_SIZE(watchers->entries) == 0 && !is_odd(watchers)))
            return owner_broken("a list knows its place, and is dropped when it is empty");
        for (Py_ssize_t j = 0; j < PyList_GET_SIZE(watchers->entries); j++) {
            bool is_alive = ((Entry *)PyList_GET_ITEM(watchers->entries, j))->operation != NULL;
            if (is_alive && j < watchers->head)
                return owner_broken("entries before the head are dead");
            living_watched += is_alive;
            watched++;
        }
    }
    if (living != living_watched || watched != lists->watched || watched - living != lists->dead)
        return owner_broken("entries living and dead are counted");
    if (self->depth != 0 || self->deferred != NULL)
        return owner_broken("no completion is put off between two calls");
    Py_RETURN_NONE;
}
