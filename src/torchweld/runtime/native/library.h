// Functions of a shared library, by their names.
#pragma once
#include <dlfcn.h>

struct Symbol {
  const char* name;
  void** place;
};

// Whether there is a library at `path` that has them all.
template <int count>
static bool find_all(const char* path, const Symbol (&wanted)[count]) {
  void* library = dlopen(path, RTLD_LAZY | RTLD_LOCAL);
  if (!library) return false;
  for (auto& symbol : wanted)
    if (!(*symbol.place = dlsym(library, symbol.name))) return false;
  return true;
}
