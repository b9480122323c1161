// Kernels of a recorded graph whose parameters are set for each replay: those that stand before and
// after all that was recorded, and recorded ones that read or write what is elsewhere at each call.
// 0.2 us each, where a launch beside the graph takes 2.5.
#pragma once
#include <string.h>
#include <vector>

#include "launches.h"

static KernelNode kernel_node(const int64_t* row, Parameters& parameters) {
  return {(void*)row[0], {(unsigned)row[1], (unsigned)row[2], (unsigned)row[3]},
          {(unsigned)row[4], 1, 1}, (unsigned)row[5], parameters.places, nullptr, nullptr, nullptr};
}

// The kernel of `row` as a node; null if the driver refuses, or there is none. No address is known
// yet: each is set before a replay.
static void* add_node(void* graph, const int64_t* row, const std::vector<void*>& after) {
  Parameters parameters;
  std::vector<int64_t> nowhere(2 * kMostParameters);
  void* node = nullptr;
  if (!row || !row[0] || !parameters.fill(row, nowhere.data())) return nullptr;
  KernelNode kernel = kernel_node(row, parameters);
  return graphs.add_kernel(&node, graph, after.data(), after.size(), &kernel) ? nullptr : node;
}

static bool set_node(void* recorded, void* node, const int64_t* row, const int64_t* bases) {
  Parameters parameters;
  if (!parameters.fill(row, bases)) return false;
  KernelNode kernel = kernel_node(row, parameters);
  return !graphs.set_kernel(recorded, node, &kernel);
}

template <class List>
static std::vector<void*> listed(List list, void* graph) {
  size_t count = 0;
  if (list(graph, nullptr, &count)) return {};
  std::vector<void*> found(count);
  if (count) list(graph, found.data(), &count);
  return found;
}

// Those that nothing waits for.
static std::vector<void*> last_nodes(void* graph) {
  std::vector<void*> last;
  for (void* node : listed(graphs.nodes, graph)) {
    size_t count = 0;
    if (!graphs.dependents(node, nullptr, nullptr, &count) && !count) last.push_back(node);
  }
  return last;
}

struct Ends {
  void *first = nullptr, *last = nullptr;
};

// Adds the kernels of two rows to a graph, before it is instantiated.
static Ends add_ends(void* graph, const int64_t* before, const int64_t* after) {
  Ends ends;
  auto roots = listed(graphs.roots, graph), leaves = last_nodes(graph);
  if (roots.empty() || leaves.empty()) return ends;
  ends.first = add_node(graph, before, {});
  std::vector<void*> from(roots.size(), ends.first);
  if (ends.first && graphs.add_order(graph, from.data(), roots.data(), roots.size())) {
    graphs.remove(ends.first);
    ends.first = nullptr;
  }
  ends.last = add_node(graph, after, leaves);
  return ends;
}

// Whether a recorded kernel is the launch of `row`, parameter by parameter.
static bool is_launch(const KernelNode& kernel, const int64_t* row, const int64_t* bases) {
  Parameters parameters;
  if (!row[0] || kernel.function != (void*)row[0] || !kernel.parameters) return false;
  for (int i = 0; i < 3; ++i) if (kernel.grid[i] != (unsigned)row[1 + i]) return false;
  if (!parameters.fill(row, bases)) return false;
  size_t offset, bytes;
  for (int64_t i = 0; i < row[7]; ++i) {
    if (driver.parameter((void*)row[0], i, &offset, &bytes)) return false;
    if (memcmp(kernel.parameters[i], parameters.places[i], bytes)) return false;
  }
  return true;
}

// The kernels of a graph, to be found by their launches. None is found twice.
struct RecordedKernels {
  std::vector<void*> nodes;
  std::vector<KernelNode> kernels;

  explicit RecordedKernels(void* graph) {
    for (void* node : listed(graphs.nodes, graph)) {
      int type;
      KernelNode kernel = {};
      if (graphs.type(node, &type) || type != kIsKernel || graphs.kernel(node, &kernel)) continue;
      nodes.push_back(node), kernels.push_back(kernel);
    }
  }

  // Null if there is none.
  void* take(const int64_t* row, const int64_t* bases) {
    for (size_t i = 0; i < nodes.size(); ++i) {
      if (!nodes[i] || !is_launch(kernels[i], row, bases)) continue;
      void* found = nodes[i];
      nodes[i] = nullptr;
      return found;
    }
    return nullptr;
  }
};
