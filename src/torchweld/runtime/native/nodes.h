// Kernels that stand in a recorded graph before and after all that was recorded, with parameters that
// are set for each replay: 0.2 us each, where a launch beside the graph takes 2.5.
#pragma once
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
