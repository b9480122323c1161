// The functions of the CUDA driver that are called from here. They are looked up when the driver is
// opened, so that this builds without CUDA's headers; declarations are those of cuda.h.
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "library.h"

struct LaunchAttribute {
  int id;
  char unused[4];
  union {
    int on;
    char bytes[64];
  } value;
};
enum { kCooperative = 2, kStartsEarly = 6 };  // CU_LAUNCH_ATTRIBUTE_*

struct LaunchConfig {
  unsigned grid[3], block[3], shared_bytes;
  void* stream;
  LaunchAttribute* attributes;
  unsigned attribute_count;
};

struct alignas(128) TensorMap {
  uint64_t words[16];
};

struct KernelNode {  // CUDA_KERNEL_NODE_PARAMS_v2
  void* function;
  unsigned grid[3], block[3], shared_bytes;
  void** parameters;
  void *extra, *kernel, *context;
};

struct Driver {
  int (*launch)(const LaunchConfig*, void* function, void** parameters, void** extra);
  int (*launch_graph)(void* graph, void* stream);
  int (*copy)(uint64_t target, uint64_t source, size_t bytes, void* stream);
  int (*parameter)(void* function, size_t index, size_t* offset, size_t* bytes);
  int (*encode_map)(TensorMap*, int type, uint32_t rank, void* address, const uint64_t* shape,
                    const uint64_t* stride_bytes, const uint32_t* box, const uint32_t* steps,
                    int interleave, int swizzle, int l2_promotion, int fill);
  int (*move_map)(TensorMap*, void* address);
};

// Of recorded graphs. Drivers before CUDA 12.3 lack some.
struct GraphDriver {
  int (*nodes)(void* graph, void** nodes, size_t* count);
  int (*roots)(void* graph, void** nodes, size_t* count);
  int (*dependents)(void* node, void** nodes, void* edges, size_t* count);
  int (*add_kernel)(void** node, void* graph, void* const* after, size_t count, const KernelNode*);
  int (*remove)(void* node);
  int (*add_order)(void* graph, void* const* from, void* const* to, size_t count);
  int (*set_kernel)(void* recorded, void* node, const KernelNode*);
  int (*type)(void* node, int* type);
  int (*kernel)(void* node, KernelNode*);
};
enum { kIsKernel = 0 };  // CU_GRAPH_NODE_TYPE_KERNEL

static Driver driver;
static GraphDriver graphs;
static bool has_graphs;

// Whether the library at `path` is a driver that has them all.
static bool open_driver(const char* path) {
  const Symbol wanted[] = {
      {"cuLaunchKernelEx", (void**)&driver.launch},
      {"cuGraphLaunch", (void**)&driver.launch_graph},
      {"cuMemcpyDtoDAsync_v2", (void**)&driver.copy},
      {"cuFuncGetParamInfo", (void**)&driver.parameter},
      {"cuTensorMapEncodeTiled", (void**)&driver.encode_map},
      {"cuTensorMapReplaceAddress", (void**)&driver.move_map},
  };
  const Symbol of_graphs[] = {
      {"cuGraphGetNodes", (void**)&graphs.nodes},
      {"cuGraphGetRootNodes", (void**)&graphs.roots},
      {"cuGraphNodeGetDependentNodes_v2", (void**)&graphs.dependents},
      {"cuGraphAddKernelNode_v2", (void**)&graphs.add_kernel},
      {"cuGraphDestroyNode", (void**)&graphs.remove},
      {"cuGraphAddDependencies", (void**)&graphs.add_order},
      {"cuGraphExecKernelNodeSetParams_v2", (void**)&graphs.set_kernel},
      {"cuGraphNodeGetType", (void**)&graphs.type},
      {"cuGraphKernelNodeGetParams_v2", (void**)&graphs.kernel},
  };
  has_graphs = find_all(path, of_graphs);
  return find_all(path, wanted);
}
