// What a call of a program does between Python and the driver. native.py says what each function is
// for; arguments are trusted.
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <algorithm>

#include "nodes.h"
#include "steps.h"
#include "tensors.h"

// -- what is as it was --

static PyObject* holds(PyObject*, PyObject* const* args, Py_ssize_t) {
  PyObject *places = args[0], *lengths = args[1];
  for (Py_ssize_t i = 0; i + 2 < PyTuple_GET_SIZE(places); i += 3) {
    PyObject* found = PyDict_GetItemWithError(PyTuple_GET_ITEM(places, i),
                                              PyTuple_GET_ITEM(places, i + 1));
    if ((found ? found : Py_None) != PyTuple_GET_ITEM(places, i + 2)) {
      if (PyErr_Occurred()) return nullptr;
      Py_RETURN_FALSE;
    }
  }
  for (Py_ssize_t i = 0; i + 1 < PyTuple_GET_SIZE(lengths); i += 2)
    if (PyDict_GET_SIZE(PyTuple_GET_ITEM(lengths, i)) != integer(PyTuple_GET_ITEM(lengths, i + 1)))
      Py_RETURN_FALSE;
  Py_RETURN_TRUE;
}

static PyObject* are(PyObject*, PyObject* const* args, Py_ssize_t) {
  bool same = are_the_same(args[0], args[1], args[2]);
  return PyErr_Occurred() ? nullptr : PyBool_FromLong(same);
}

static PyObject* watch(PyObject*, PyObject* tensors) {
  return PyCapsule_New(new Watched(tensors), "watched",
                       [](PyObject* capsule) { delete watched_in(capsule); });
}

static PyObject* unchanged(PyObject*, PyObject* capsule) {
  Watched* watched = watched_in(capsule);
  return watched ? PyBool_FromLong(watched->unchanged()) : nullptr;
}

// -- where inputs are --

// expect(positions, slots, tensors laid out as the inputs will be): tuples
static PyObject* expect(PyObject*, PyObject* const* args, Py_ssize_t) {
  auto* expected = new Expected{PyTuple_GET_SIZE(args[0]), {}};
  for (Py_ssize_t i = 0; i < expected->count; ++i) {
    expected->words.push_back(integer(PyTuple_GET_ITEM(args[0], i)));
    expected->words.push_back(integer(PyTuple_GET_ITEM(args[1], i)));
    View(PyTuple_GET_ITEM(args[2], i)).append_to(expected->words);
  }
  return PyCapsule_New(expected, "expected",
                       [](PyObject* capsule) { delete expected_in(capsule); });
}

static PyObject* place(PyObject*, PyObject* const* args, Py_ssize_t) {
  Expected* expected = expected_in(args[0]);
  if (!expected) return nullptr;
  return PyBool_FromLong(expected->place(args[1], args[2], (int64_t*)integer(args[3])));
}

// -- what is handed out --

static PyObject* hand_out(PyObject*, PyObject* tensors) {
  Count* count = new Count(new std::atomic<int64_t>(0));
  PyObject* counted = PyCapsule_New(count, "handed out", [](PyObject* capsule) {
    delete (Count*)PyCapsule_GetPointer(capsule, "handed out");
  });
  PyObject* made = PyList_New(0);
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(tensors); ++i) {
    PyObject* loan = Loan::of(PyList_GET_ITEM(tensors, i), *count);
    if (!loan) {
      Py_DECREF(made), Py_DECREF(counted);
      return nullptr;
    }
    PyList_Append(made, loan);
    Py_DECREF(loan);
  }
  return Py_BuildValue("NN", made, counted);
}

static PyObject* in_use(PyObject*, PyObject* counted) {
  Count* count = (Count*)PyCapsule_GetPointer(counted, "handed out");
  return count ? PyBool_FromLong(**count > 0) : nullptr;
}

// -- launches --

static PyObject* launch(PyObject*, PyObject* const* args, Py_ssize_t) {
  int64_t rows = integer(args[0]), first = integer(args[1]), count = integer(args[2]);
  int64_t bases = integer(args[3]), stream = integer(args[4]), reached;
  Py_BEGIN_ALLOW_THREADS;
  reached = launch_rows((const int64_t*)rows, first, count, (const int64_t*)bases, (void*)stream);
  Py_END_ALLOW_THREADS;
  return PyLong_FromLongLong(reached);
}

static PyObject* parameter_bytes(PyObject*, PyObject* function) {
  PyObject* found = PyList_New(0);
  size_t offset, bytes;
  for (size_t i = 0; !driver.parameter((void*)integer(function), i, &offset, &bytes); ++i) {
    PyObject* number = PyLong_FromSize_t(bytes);
    PyList_Append(found, number);
    Py_DECREF(number);
  }
  return found;
}

// encode(where, type, swizzle, fill, shape, strides in bytes, box): innermost dimension first
static PyObject* encode(PyObject*, PyObject* const* args, Py_ssize_t) {
  uint64_t shape[5], strides[5];
  uint32_t box[5], steps[5] = {1, 1, 1, 1, 1};
  Py_ssize_t rank = PyTuple_GET_SIZE(args[4]);
  if (rank > 5) Py_RETURN_FALSE;
  for (Py_ssize_t i = 0; i < rank; ++i) {
    shape[i] = integer(PyTuple_GET_ITEM(args[4], i));
    box[i] = (uint32_t)integer(PyTuple_GET_ITEM(args[6], i));
    if (i + 1 < rank) strides[i] = integer(PyTuple_GET_ITEM(args[5], i));
  }
  enum { kNoInterleave = 0, kPromote128 = 2 };
  void* anywhere = (void*)(uintptr_t)(1 << 20);  // it is moved at each launch
  int refused = driver.encode_map((TensorMap*)integer(args[0]), (int)integer(args[1]),
                                  (uint32_t)rank, anywhere, shape, strides, box, steps,
                                  kNoInterleave, (int)integer(args[2]), kPromote128,
                                  (int)integer(args[3]));
  return PyBool_FromLong(!refused);
}

// -- graphs --

// Copies of a replay: the launch that makes them all, if there is one, and the node that it is, if it
// is in the graph.
struct Side {
  const int64_t* row;
  void* node;
};

// The addresses of targets and sources by turns, and the bytes of each pair.
struct Copies {
  Side by;
  std::vector<int64_t> addresses, bytes;

  // False where a pair of tensors is not laid out alike. Those in one list alone are not copied.
  bool fill(PyObject* targets, PyObject* sources) {
    Py_ssize_t count = std::min(PyList_GET_SIZE(targets), PyList_GET_SIZE(sources));
    for (Py_ssize_t i = 0; i < count; ++i) {
      Tensor target, source;
      if (exchange->borrow(PyList_GET_ITEM(targets, i), &target)) return false;
      if (exchange->borrow(PyList_GET_ITEM(sources, i), &source)) return false;
      if (!target.like(source)) return false;
      addresses.insert(addresses.end(), {(int64_t)target.data, (int64_t)source.data});
      bytes.push_back(span_bytes(source));
    }
    return true;
  }

  // Whether the graph, if it makes them, knows where.
  bool set(void* graph) const {
    return !by.node || set_node(graph, by.node, by.row, addresses.data());
  }

  // Whether the driver took them, if the graph does not make them.
  bool start(void* stream) const {
    if (by.node || (by.row && launch_row(by.row, addresses.data(), stream))) return true;
    for (size_t i = 0; i < bytes.size(); ++i)
      if (bytes[i] && driver.copy(addresses[2 * i], addresses[2 * i + 1], bytes[i], stream))
        return false;
    return true;
  }
};

// join(graph, row before, row after): the nodes that they became, 0 for none
static PyObject* join(PyObject*, PyObject* const* args, Py_ssize_t) {
  Ends ends;
  if (has_graphs)
    ends = add_ends((void*)integer(args[0]), (const int64_t*)integer(args[1]),
                    (const int64_t*)integer(args[2]));
  return Py_BuildValue("LL", (long long)ends.first, (long long)ends.last);
}

// Recorded kernels that read and write where a caller has it. `bases`: addresses by slot, most of
// them as they were recorded; `slots`: of inputs, then of outputs; `words`: layouts of the inputs.
struct Moved {
  std::vector<Side> kernels;
  std::vector<int64_t> bases, slots, words;

  // Takes the tensors of both lists that are not copied; false where one is not as expected.
  bool place(PyObject* sources, Py_ssize_t first, PyObject* results, Py_ssize_t first_result) {
    const int64_t *next = words.data(), *slot = slots.data();
    for (Py_ssize_t i = first; i < PyList_GET_SIZE(sources); ++i) {
      View given(PyList_GET_ITEM(sources, i));
      if (!given.take(next)) return false;
      bases[*slot++] = given.data;
    }
    for (Py_ssize_t i = first_result; i < PyList_GET_SIZE(results); ++i)
      bases[*slot++] = View(PyList_GET_ITEM(results, i)).data;
    return true;
  }

  bool set(void* graph) const {
    for (const Side& kernel : kernels)
      if (!set_node(graph, kernel.node, kernel.row, bases.data())) return false;
    return true;
  }
};

struct Replay {
  void* graph;
  PyObject *buffers, *made;
  Side before, after;
  Moved moved = {};

  Replay(void* graph, PyObject* buffers, PyObject* made, Side before, Side after)
      : graph(graph), buffers(buffers), made(made), before(before), after(after) {
    Py_INCREF(buffers), Py_INCREF(made);
  }
  ~Replay() { Py_DECREF(buffers), Py_DECREF(made); }
};

static Replay* replay_in(PyObject* capsule) {
  return (Replay*)PyCapsule_GetPointer(capsule, "replay");
}

// recorded(graph, buffers, row, node, made, row, node)
static PyObject* recorded(PyObject*, PyObject* const* args, Py_ssize_t) {
  auto side = [&](int first) {
    return Side{(const int64_t*)integer(args[first]), (void*)integer(args[first + 1])};
  };
  auto* made = new Replay((void*)integer(args[0]), args[1], args[4], side(2), side(5));
  return PyCapsule_New(made, "replay", [](PyObject* capsule) { delete replay_in(capsule); });
}

// find(graph, (rows, count, rows, count, ...), bases): the address and the node of each row, by
// turns; 0 for the node of what is not found
static PyObject* find(PyObject*, PyObject* const* args, Py_ssize_t) {
  PyObject* found = PyList_New(0);
  if (!has_graphs) return found;
  RecordedKernels kernels((void*)integer(args[0]));
  for (Py_ssize_t i = 0; i + 1 < PyTuple_GET_SIZE(args[1]); i += 2) {
    auto* row = (const int64_t*)integer(PyTuple_GET_ITEM(args[1], i));
    int64_t count = integer(PyTuple_GET_ITEM(args[1], i + 1));
    for (; count; --count, row = next_row(row)) {
      void* node = kernels.take(row, (const int64_t*)integer(args[2]));
      for (int64_t word : {(int64_t)row, (int64_t)node}) {
        PyObject* number = PyLong_FromLongLong(word);
        PyList_Append(found, number);
        Py_DECREF(number);
      }
    }
  }
  return found;
}

static std::vector<int64_t> integers(PyObject* tuple) {
  std::vector<int64_t> found;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); ++i)
    found.push_back(integer(PyTuple_GET_ITEM(tuple, i)));
  return found;
}

// move(recorded, (row, node, row, node, ...), addresses by slot, slots, tensors laid out as inputs)
static PyObject* move(PyObject*, PyObject* const* args, Py_ssize_t) {
  Replay* graph = replay_in(args[0]);
  if (!graph) return nullptr;
  Moved moved{{}, integers(args[2]), integers(args[3]), {}};
  auto kernels = integers(args[1]);
  for (size_t i = 0; i + 1 < kernels.size(); i += 2)
    moved.kernels.push_back({(const int64_t*)kernels[i], (void*)kernels[i + 1]});
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(args[4]); ++i)
    View(PyTuple_GET_ITEM(args[4], i)).append_to(moved.words);
  if (!moved.set(graph->graph)) Py_RETURN_FALSE;
  graph->moved = std::move(moved);
  Py_RETURN_TRUE;
}

static PyObject* replay(PyObject*, PyObject* const* args, Py_ssize_t) {
  Replay* graph = replay_in(args[0]);
  if (!graph) return nullptr;
  void* stream = (void*)integer(args[1]);
  Copies before{graph->before, {}, {}}, after{graph->after, {}, {}};
  Moved& moved = graph->moved;
  if (!before.fill(graph->buffers, args[2]) || !after.fill(args[3], graph->made) ||
      !moved.place(args[2], PyList_GET_SIZE(graph->buffers), args[3],
                   PyList_GET_SIZE(graph->made))) {
    PyErr_Clear();
    Py_RETURN_FALSE;
  }
  bool started;
  Py_BEGIN_ALLOW_THREADS;
  started = before.set(graph->graph) && after.set(graph->graph) && moved.set(graph->graph) &&
            before.start(stream) && !driver.launch_graph(graph->graph, stream) && after.start(stream);
  Py_END_ALLOW_THREADS;
  return PyBool_FromLong(started);
}

// -- where it all comes from --

static PyObject* use_driver(PyObject*, PyObject* path) {
  return PyBool_FromLong(open_driver(PyUnicode_AsUTF8(path)));
}

// use_torch(path of its library, the exchange table of its tensors, a tensor, a handle of it)
static PyObject* use_torch(PyObject*, PyObject* const* args, Py_ssize_t) {
  bool opened = open_exchange(args[1]) && open_torch(PyUnicode_AsUTF8(args[0])) &&
                find_tensor(args[2], PyCapsule_GetPointer(args[3], nullptr));
  PyErr_Clear();
  return PyBool_FromLong(opened);
}

#define FAST(name) {#name, (PyCFunction)(void (*)(void))name, METH_FASTCALL, nullptr}
#define BIND(name) {#name, bound<&name##_bound>, METH_VARARGS, nullptr}
#define ONE(name) {#name, name, METH_O, nullptr}
static PyMethodDef methods[] = {
    FAST(holds),     FAST(are),       ONE(watch),      ONE(unchanged),
    FAST(expect),    FAST(place),     ONE(hand_out),   ONE(in_use),
    FAST(launch),    FAST(join),      FAST(recorded),  FAST(replay),
    FAST(encode),    ONE(use_driver), FAST(use_torch), ONE(parameter_bytes),
    FAST(find),      FAST(move),
    BIND(new_tensor), BIND(drop),     BIND(walk),      BIND(call),
    BIND(launches),  BIND(check),     BIND(window),    BIND(call_of),
    {}};
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "torchweld_native", nullptr, -1, methods,
                                 nullptr, nullptr, nullptr, nullptr};

PyMODINIT_FUNC PyInit_torchweld_native() { return PyModule_Create(&definition); }
