// Kernels of a GPU, many in one call. A launch is a row of 64-bit integers:
//   function, grid x, y, z, threads of a block, bytes of shared memory, flags, parameters, and for
//   each parameter three: kind, and
//     kNumber     its bits, 0
//     kPointer    base, byte offset: the address bases[base] + offset
//     otherwise   the same, under a TMA descriptor; the kind is the address of one to copy
#pragma once
#include "driver.h"

enum { kNumber = 0, kPointer = 1 };
enum { kEarly = 1, kTogether = 2 };  // flags
enum { kMostParameters = 256, kMostMaps = 8 };
enum { kHeader = 8, kParameter = 3 };

static inline const int64_t* next_row(const int64_t* row) {
  return row + kHeader + kParameter * row[7];
}

static int attributes_of(int64_t flags, LaunchAttribute* attributes) {
  int count = 0;
  if (flags & kEarly) attributes[count++] = {kStartsEarly, {}, {1}};
  if (flags & kTogether) attributes[count++] = {kCooperative, {}, {1}};
  return count;
}

// The parameters of a row's kernel.
struct Parameters {
  int64_t values[kMostParameters];
  TensorMap maps[kMostMaps];
  void* places[kMostParameters];

  // False where an address is no multiple of 16 bytes (the kernel was compiled for those that are).
  bool fill(const int64_t* row, const int64_t* bases) {
    int map = 0;
    const int64_t* given = row + kHeader;
    for (int64_t i = 0; i < row[7]; ++i, given += kParameter) {
      places[i] = &values[i];
      if (given[0] == kNumber) {
        values[i] = given[1];
        continue;
      }
      values[i] = bases[given[1]] + given[2];
      if (values[i] & 15) return false;
      if (given[0] == kPointer) continue;
      maps[map] = *(const TensorMap*)given[0];
      if (driver.move_map(&maps[map], (void*)values[i])) return false;
      places[i] = &maps[map++];
    }
    return true;
  }
};

// False, with nothing launched, where the parameters cannot be filled in, the driver refuses, or the
// row has no function.
static bool launch_row(const int64_t* row, const int64_t* bases, void* stream) {
  Parameters parameters;
  if (!row[0] || !parameters.fill(row, bases)) return false;
  LaunchAttribute attributes[2];
  unsigned count = attributes_of(row[6], attributes);
  LaunchConfig config = {{(unsigned)row[1], (unsigned)row[2], (unsigned)row[3]},
                         {(unsigned)row[4], 1, 1}, (unsigned)row[5], stream, attributes, count};
  return driver.launch(&config, (void*)row[0], parameters.places, nullptr) == 0;
}

// Launches rows from number `first` on; the number of the one that could not be, or `count`.
static int64_t launch_rows(const int64_t* row, int64_t first, int64_t count, const int64_t* bases,
                           void* stream) {
  for (int64_t i = 0; i < first; ++i) row = next_row(row);
  for (; first < count && launch_row(row, bases, stream); ++first) row = next_row(row);
  return first;
}
