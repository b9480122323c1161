// Two looks at tensors that cost some nanoseconds: DLPack's exchange table of torch.Tensor for those
// that come with a call, torch's stable C interface for those that stay (5 times faster).
#pragma once
#include <Python.h>
#include <stdint.h>
#include <string.h>
#include <atomic>
#include <memory>
#include <vector>

#include "library.h"

struct Tensor {  // DLTensor
  void* data;
  int32_t device_type, device;
  int32_t rank;
  uint32_t dtype;  // code, bits and lanes
  int64_t* shape;
  int64_t* strides;  // in elements
  uint64_t byte_offset;

  int64_t item_bytes() const { return ((dtype >> 8) & 255) / 8; }
  bool like(const Tensor& other) const {
    size_t bytes = rank * sizeof(int64_t);
    return rank == other.rank && dtype == other.dtype && device == other.device &&
           device_type == other.device_type && !memcmp(shape, other.shape, bytes) &&
           !memcmp(strides, other.strides, bytes);
  }
};

struct OwnedTensor {  // DLManagedTensorVersioned
  uint32_t major, minor;
  void* owner;
  void (*release)(OwnedTensor*);
  uint64_t flags;
  Tensor tensor;
};

struct ExchangeTable {  // DLPackExchangeAPI
  uint32_t major, minor;
  void *previous, *allocate;
  int (*own)(void* object, OwnedTensor** tensor);
  int (*to_object)(OwnedTensor* tensor, void** object);  // which takes the tensor
  int (*borrow)(void* object, Tensor* tensor);
  void* current_stream;
};

static const ExchangeTable* exchange;

static bool open_exchange(PyObject* capsule) {
  exchange = (const ExchangeTable*)PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
  return exchange && exchange->major == 1 && exchange->borrow;
}

// From a tensor's first element to its last.
static int64_t span_bytes(const Tensor& t) {
  int64_t last = 0;
  for (int i = 0; i < t.rank; ++i) {
    if (t.shape[i] == 0) return 0;
    last += (t.shape[i] - 1) * t.strides[i];
  }
  return (last + 1) * t.item_bytes();
}

struct Torch {
  int (*data)(void* tensor, void** data);
  int (*dtype)(void* tensor, int32_t* dtype);
  int (*rank)(void* tensor, int64_t* rank);
  int (*shape)(void* tensor, int64_t** shape);
  int (*strides)(void* tensor, int64_t** strides);
  int (*forget)(void* tensor);
};

static Torch torch;
static Py_ssize_t tensor_at;  // where a Python tensor holds the one of C++
static PyTypeObject* tensor_type;

// Whether the library at `path` is a torch that has them all.
static bool open_torch(const char* path) {
  const Symbol wanted[] = {
      {"aoti_torch_get_data_ptr", (void**)&torch.data},
      {"aoti_torch_get_dtype", (void**)&torch.dtype},
      {"aoti_torch_get_dim", (void**)&torch.rank},
      {"aoti_torch_get_sizes", (void**)&torch.shape},
      {"aoti_torch_get_strides", (void**)&torch.strides},
      {"aoti_torch_delete_tensor_object", (void**)&torch.forget},
  };
  return find_all(path, wanted);
}

// Finds `tensor_at` by an example: a tensor, and a handle that torch made of it, deleted here. A C++
// tensor is one pointer; the Python object holds the same.
static bool find_tensor(PyObject* tensor, void* handle) {
  void* wanted = *(void**)handle;
  torch.forget(handle);
  tensor_type = Py_TYPE(tensor);
  for (tensor_at = sizeof(PyObject); tensor_at < Py_TYPE(tensor)->tp_basicsize; tensor_at += 8)
    if (*(void**)((char*)tensor + tensor_at) == wanted) return true;
  return false;
}

// Where a tensor is and how it is laid out.
struct View {
  int64_t data = 0, rank = 0, *shape = nullptr, *strides = nullptr;
  int32_t dtype = 0;
  bool known;  // a sparse tensor has no strides

  explicit View(PyObject* object) {
    void *tensor = (char*)object + tensor_at, *address = nullptr;
    known = !torch.data(tensor, &address) && !torch.dtype(tensor, &dtype) &&
            !torch.shape(tensor, &shape) && !torch.strides(tensor, &strides) &&
            !torch.rank(tensor, &rank);
    data = (int64_t)address;
  }

  // The layout: dtype, rank, shape, strides.
  void append_to(std::vector<int64_t>& words) const {
    words.insert(words.end(), {dtype, rank});
    words.insert(words.end(), shape, shape + rank);
    words.insert(words.end(), strides, strides + rank);
  }

  // Whether it is the layout at `words`, which then are those behind it.
  bool take(const int64_t*& words) const {
    if (!known || words[0] != dtype || words[1] != rank) return false;
    size_t bytes = rank * sizeof(int64_t);
    if (memcmp(words + 2, shape, bytes) || memcmp(words + 2 + rank, strides, bytes)) return false;
    words += 2 + 2 * rank;
    return true;
  }
};

// Tensors, and what a kernel depends on besides their values, as it was.
struct Watched {
  PyObject* tensors;  // a tuple
  std::vector<int64_t> words;

  explicit Watched(PyObject* given) : tensors(given) {
    Py_INCREF(tensors);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tensors); ++i) {
      View now(PyTuple_GET_ITEM(tensors, i));
      words.push_back(now.data);
      now.append_to(words);
    }
  }

  ~Watched() { Py_DECREF(tensors); }

  bool unchanged() const {
    const int64_t* then = words.data();
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tensors); ++i) {
      View now(PyTuple_GET_ITEM(tensors, i));
      if (*then++ != now.data || !now.take(then)) return false;
    }
    return true;
  }
};

// Inputs of a program: where each stands among the arguments, the slot that is for it, and its
// layout.
struct Expected {
  Py_ssize_t count;
  std::vector<int64_t> words;

  // Tensors among `args` into `tensors`, their addresses into `bases`; false where one is not as
  // expected.
  bool place(PyObject* args, PyObject* tensors, int64_t* bases) const {
    const int64_t* next = words.data();
    for (Py_ssize_t i = 0; i < count; ++i) {
      int64_t position = *next++, slot = *next++;
      PyObject* object = PyList_GET_ITEM(args, position);
      if (!PyObject_TypeCheck(object, tensor_type)) return false;
      View given(object);
      if (!given.take(next)) return false;
      Py_INCREF(object);
      PyList_SetItem(tensors, slot, object);
      bases[slot] = given.data;
    }
    return true;
  }
};

// Tensors over the memory of others, counted for as long as their storages live.
using Count = std::shared_ptr<std::atomic<int64_t>>;

struct Loan {
  OwnedTensor lent;
  OwnedTensor* lender;
  Count count;

  // A new tensor object like `object`; null, with an error set, if torch refuses.
  static PyObject* of(PyObject* object, const Count& count) {
    OwnedTensor* lender = nullptr;
    if (exchange->own(object, &lender)) return nullptr;
    Loan* loan = new Loan{*lender, lender, count};
    loan->lent.owner = loan;
    loan->lent.release = [](OwnedTensor* lent) { ((Loan*)lent->owner)->end(); };
    ++*count;
    void* made = nullptr;
    if (exchange->to_object(&loan->lent, &made)) return nullptr;
    return (PyObject*)made;
  }

  void end() {
    lender->release(lender);
    --*count;
    delete this;
  }
};
