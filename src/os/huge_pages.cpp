#include "os/huge_pages.hpp"

#include <string.h>

#include "base/compiler.hpp"
#include "os/kernel_file.hpp"

namespace spanalloc::os {

namespace {

// The word that is chosen stands in brackets.
SPANALLOC_COLD bool has_choice(const char* line, const char* word) {
  const std::size_t length = strlen(word);
  for (; *line != '\0'; ++line) {
    if (strncmp(line, word, length) == 0) return true;
  }
  return false;
}

}  // namespace

SPANALLOC_COLD bool makes_huge_pages_unasked(const char* root) {
  Path path;
  File file(path.add(root).add("/sys/kernel/mm/transparent_hugepage/enabled").text());
  char line[128];  // always [madvise] never
  if (!path.fits() || !file.is_open() || !file.next_line(line)) return true;
  return !has_choice(line, "[madvise]") && !has_choice(line, "[never]");
}

}  // namespace spanalloc::os
