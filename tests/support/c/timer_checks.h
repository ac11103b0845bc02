/* For tests: the invariants of a timer in C between two calls. Raises AssertionError. */

static int
broken(const char *rule)
{
    PyErr_SetString(PyExc_AssertionError, rule);
    return -1;
}

static int
bucket_check(Bucket *bucket)
{
    Py_ssize_t count = 0, owned = 0;
    TimerEntry *previous = NULL;
    for (TimerEntry *entry = bucket->first; entry != NULL; previous = entry, entry = entry->next, count++) {
        if (entry->bucket != bucket || entry->previous != previous)
            return broken("an entry of a list knows its list and its neighbours");
        owned += !entry->held;
    }
    return bucket->last == previous && bucket->count == count && bucket->owned == owned
               ? 0
               : broken("a list knows its end, its length and its references");
}

static int
due_check(Timer *self, Py_ssize_t at, Py_ssize_t *held)
{
    Due due = self->heap[at];
    Wheel *wheel = self->lowest;
    while (wheel != NULL && wheel != due.wheel)
        wheel = wheel->overflow;
    if (wheel == NULL || due.start % wheel->unit || due.start >= wheel->limit)
        return broken("the heap has starts of buckets of wheels of this timer");
    if (at > 0 && is_before(due, self->heap[(at - 1) / 2]))
        return broken("the heap is in order");
    Bucket *bucket = wheel->buckets[slot_of(wheel, due.start)];
    if (bucket == NULL || bucket->timer != self)
        return broken("a bucket in the heap is in its ring");
    if (bucket->first != NULL && !(self->armed <= (double)due.start))
        return broken("the clock is armed for the earliest bucket");
    for (TimerEntry *entry = bucket->first; entry != NULL; entry = entry->next)
        if (ceil(entry->deadline * self->rate) - 1 >= (double)(due.start + wheel->unit))
            return broken("no task is in a bucket that ends before its deadline");
    *held += bucket->count - bucket->owned;
    return bucket_check(bucket);
}

static PyObject *
timer_check(Timer *self, PyObject *unused)
{
    Py_ssize_t held = 0, buckets = 0;
    for (Py_ssize_t at = 0; at < self->heap_length; at++)
        if (due_check(self, at, &held) < 0)
            return NULL;
    for (Wheel *wheel = self->lowest; wheel != NULL; wheel = wheel->overflow)
        for (Py_ssize_t slot = 0; slot < wheel->size; slot++)
            buckets += wheel->buckets[slot] != NULL;
    if (buckets != self->heap_length && broken("a bucket in a ring is in the heap, once"))
        return NULL;
    if ((self->held != held || (self->holder == NULL) != (held == 0)) &&
        broken("a timer refers to an owner while it has entries that the owner holds"))
        return NULL;
    if (is_draining(self) && broken("no drain is in progress between two calls"))
        return NULL;
    Py_RETURN_NONE;
}
