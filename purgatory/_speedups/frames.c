/* walk of `_frames.py`. */

#include "core.h"

PyObject *
walk(PyObject *module, PyObject *args)
{
    PyObject *start, *end, *known;
    if (!PyArg_ParseTuple(args, "O!OO!:walk", &PyFrame_Type, &start, &end, &PyDict_Type, &known))
        return NULL;
    unsigned long long chain = 0;
    PyFrameObject *frame = (PyFrameObject *)Py_NewRef(start);
    while (frame != NULL) {
        PyObject *code = (PyObject *)PyFrame_GetCode(frame);
        Py_DECREF(code); /* Its frame has a reference. */
        if (code == end) {
            Py_DECREF(frame);
            return PyLong_FromUnsignedLongLong(chain);
        }
        unsigned long long place = (unsigned long long)(uintptr_t)code << 16 ^ (unsigned int)PyFrame_GetLasti(frame);
        PyObject *key = PyLong_FromUnsignedLongLong(place);
        PyObject *is_harmless = key == NULL ? NULL : PyDict_GetItemWithError(known, key);
        Py_XDECREF(key);
        if (is_harmless != Py_True) {
            if (is_harmless != NULL || !PyErr_Occurred())
                return (PyObject *)frame;
            Py_DECREF(frame);
            return NULL;
        }
        chain = (chain ^ place) * 0x9e3779b97f4a7c15ULL;
        Py_SETREF(frame, PyFrame_GetBack(frame));
    }
    Py_RETURN_NONE;
}
