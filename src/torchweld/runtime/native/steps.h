// Steps of a program (steps.py), and a whole call of them. Each is a function of C bound to a tuple
// of Python objects, its `self`.
#pragma once
#include <Python.h>

#include "launches.h"
#include "tensors.h"

static int64_t integer(PyObject* object) { return (int64_t)PyLong_AsUnsignedLongLongMask(object); }
static PyObject* item(PyObject* tuple, Py_ssize_t i) { return PyTuple_GET_ITEM(tuple, i); }

template <PyMethodDef* function>
static PyObject* bound(PyObject*, PyObject* tuple) {
  return PyCFunction_New(function, tuple);
}

// A new tensor, or null, into its slot, and its address into that of the bases.
static bool keep(PyObject* made, PyObject* slot, PyObject* const* args) {
  if (!made) return false;
  if (!PyObject_TypeCheck(made, tensor_type)) {
    Py_DECREF(made);
    PyErr_SetString(PyExc_TypeError, "a step has made no tensor");
    return false;
  }
  ((int64_t*)integer(args[2]))[integer(slot)] = View(made).data;
  return !PyList_SetItem(args[0], integer(slot), made);
}

// new_tensor(slot, a function that makes one)
static PyObject* new_tensor_step(PyObject* self, PyObject* const* args, Py_ssize_t) {
  if (!keep(PyObject_CallNoArgs(item(self, 1)), item(self, 0), args)) return nullptr;
  Py_RETURN_NONE;
}

// drop(slots)
static PyObject* drop_step(PyObject* self, PyObject* const* args, Py_ssize_t) {
  PyObject* slots = item(self, 0);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(slots); ++i) {
    Py_INCREF(Py_None);
    if (PyList_SetItem(args[0], integer(item(slots, i)), Py_None)) return nullptr;
  }
  Py_RETURN_NONE;
}

// walk(the walker of dispatch.py, rows, count)
static PyObject* walk_step(PyObject* self, PyObject* const* args, Py_ssize_t) {
  auto* walker = (void (*)(const int64_t*, int64_t, const int64_t*))integer(item(self, 0));
  int64_t rows = integer(item(self, 1)), count = integer(item(self, 2)), bases = integer(args[2]);
  Py_BEGIN_ALLOW_THREADS;
  walker((const int64_t*)rows, count, (const int64_t*)bases);
  Py_END_ALLOW_THREADS;
  Py_RETURN_NONE;
}

// launches(rows of launches.h, count, what gives the stream of a device, device, what goes on where a
// row is not launched: of the bases, their address, the stream and the row)
static PyObject* launches_step(PyObject* self, PyObject* const* args, Py_ssize_t) {
  PyObject* stream = PyObject_CallOneArg(item(self, 2), item(self, 3));
  if (!stream) return nullptr;
  auto *rows = (const int64_t*)integer(item(self, 0)), *bases = (const int64_t*)integer(args[2]);
  int64_t count = integer(item(self, 1)), reached;
  void* queue = (void*)integer(stream);
  Py_BEGIN_ALLOW_THREADS;
  reached = launch_rows(rows, 0, count, bases, queue);
  Py_END_ALLOW_THREADS;
  PyObject* done = Py_NewRef(Py_None);
  if (reached < count) {
    Py_DECREF(done);
    done = PyObject_CallFunction(item(self, 4), "OOOL", args[1], args[2], stream, (long long)reached);
  }
  Py_DECREF(stream);
  return done;
}

// call(function, arguments, positions, fetches of those, target, names): with the target, if that is
// a fetch, as the last of the keywords
static PyObject* call_step(PyObject* self, PyObject* const* args, Py_ssize_t) {
  PyObject *given = item(self, 1), *positions = item(self, 2), *fetches = item(self, 3);
  Py_ssize_t count = PyTuple_GET_SIZE(given), named = PyTuple_GET_SIZE(item(self, 5));
  std::vector<PyObject*> values(count + 1), fetched;
  for (Py_ssize_t i = 0; i < count; ++i) values[i] = item(given, i);
  auto fetch = [&](PyObject* from) {
    fetched.push_back(PyObject_CallOneArg(from, args[0]));
    return fetched.back();
  };
  bool all = true;
  for (Py_ssize_t i = 0; all && i < PyTuple_GET_SIZE(positions); ++i)
    all = (values[integer(item(positions, i))] = fetch(item(fetches, i)));
  all = all && (values[count] = fetch(item(self, 4)));
  PyObject* done = nullptr;
  if (all)
    done = PyObject_Vectorcall(item(self, 0), values.data(), count + 1 - named, item(self, 5));
  for (PyObject* object : fetched) Py_XDECREF(object);
  return done;
}

// check(slot, bytes after its address, a step for where the byte there is set)
static PyObject* check_step(PyObject* self, PyObject* const* args, Py_ssize_t) {
  int64_t address = ((int64_t*)integer(args[2]))[integer(item(self, 0))] + integer(item(self, 1));
  if (!*(const char*)address) Py_RETURN_NONE;
  return PyObject_Vectorcall(item(self, 2), args, 3, nullptr);
}

// window(slot, a function, shape, strides, elements after its first): of the tensor in the slot
static PyObject* window_of(PyObject* self, PyObject* tensors) {
  PyObject* tensor = PyList_GetItem(tensors, integer(item(self, 0)));
  if (!tensor) return nullptr;
  PyObject* args[] = {tensor, item(self, 2), item(self, 3), item(self, 4)};
  return PyObject_Vectorcall(item(self, 1), args, 4, nullptr);
}

static bool are_the_same(PyObject* list, PyObject* positions, PyObject* expected) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(positions); ++i) {
    PyObject* found = PyList_GetItem(list, integer(item(positions, i)));
    if (found != item(expected, i)) return false;
  }
  return true;
}

static Watched* watched_in(PyObject* capsule) {
  return (Watched*)PyCapsule_GetPointer(capsule, "watched");
}

static Expected* expected_in(PyObject* capsule) {
  return (Expected*)PyCapsule_GetPointer(capsule, "expected");
}

struct Owned {
  PyObject* object;
  explicit Owned(PyObject* made) : object(made) {}
  ~Owned() { Py_XDECREF(object); }
  Owned(const Owned&) = delete;
  operator PyObject*() const { return object; }
};

// Where the numbers of an array are, which keeps its size; null with an error set.
static int64_t* numbers_of(PyObject* array) {
  Py_buffer buffer;
  if (!array || PyObject_GetBuffer(array, &buffer, PyBUF_SIMPLE | PyBUF_WRITABLE)) return nullptr;
  PyBuffer_Release(&buffer);
  return (int64_t*)buffer.buf;
}

// The steps, then the outputs by their fetches; null where one fails.
static PyObject* taken(PyObject* steps, PyObject* outputs, PyObject* const* args) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(steps); ++i) {
    PyObject* done = PyObject_Vectorcall(item(steps, i), args, 3, nullptr);
    if (!done) return nullptr;
    Py_DECREF(done);
  }
  PyObject* results = PyList_New(PyTuple_GET_SIZE(outputs));
  for (Py_ssize_t i = 0; results && i < PyTuple_GET_SIZE(outputs); ++i) {
    PyObject* result = PyObject_CallOneArg(item(outputs, i), args[0]);
    if (!result) Py_CLEAR(results);
    else PyList_SET_ITEM(results, i, result);
  }
  return results;
}

// call_of(positions, tensors there, `watch` of these, `expect` or None, tensors by slot, bases, steps,
// fetches of outputs)
static PyObject* whole_call(PyObject* self, PyObject* given) {
  Watched* watched = watched_in(item(self, 2));
  if (!watched || !PyList_Check(given)) return nullptr;
  if (!are_the_same(given, item(self, 0), item(self, 1)) || !watched->unchanged())
    return PyErr_Occurred() ? nullptr : Py_NewRef(Py_None);
  Owned tensors(PyList_GetSlice(item(self, 4), 0, PyList_GET_SIZE(item(self, 4))));
  Owned bases(PyObject_CallMethod(item(self, 5), "__copy__", nullptr));
  int64_t* numbers = numbers_of(bases);
  if (!tensors || !numbers) return nullptr;
  PyObject* expected = item(self, 3);
  if (expected != Py_None && !expected_in(expected)->place(given, tensors, numbers)) Py_RETURN_NONE;
  if (PyList_SetSlice(given, 0, PyList_GET_SIZE(given), nullptr)) return nullptr;
  Owned address(PyLong_FromLongLong((int64_t)numbers));
  PyObject* args[] = {tensors, bases, address};
  return taken(item(self, 6), item(self, 7), args);
}

#define BOUND(name, function, kind)                                                     \
  static PyMethodDef name##_bound = {#name, (PyCFunction)(void (*)(void))function, kind, nullptr}
BOUND(new_tensor, new_tensor_step, METH_FASTCALL);
BOUND(drop, drop_step, METH_FASTCALL);
BOUND(walk, walk_step, METH_FASTCALL);
BOUND(launches, launches_step, METH_FASTCALL);
BOUND(call, call_step, METH_FASTCALL);
BOUND(check, check_step, METH_FASTCALL);
BOUND(window, window_of, METH_O);
BOUND(call_of, whole_call, METH_O);
