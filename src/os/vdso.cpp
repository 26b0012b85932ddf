#include "os/vdso.hpp"

#include <elf.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/bits.hpp"
#include "os/auxiliary.hpp"

namespace spanalloc::os {

namespace {

// Addresses in the object, from its dynamic section.
struct Tables {
  const Elf64_Sym* symbols = nullptr;
  const char* names = nullptr;
  const std::uint32_t* hash = nullptr;      // of the System V ABI: newer kernels have none,
  const std::uint32_t* gnu_hash = nullptr;  // older ones not this
};

// A symbol table does not tell its own length. A hash table does: the old one
// has as many chain entries;
std::size_t symbols_by_hash(const std::uint32_t* hash) {
  return hash[1];
}
// of the new one the last chain's end is the last symbol.
std::size_t symbols_by_gnu_hash(const std::uint32_t* hash) {
  const std::uint32_t buckets = hash[0];
  const std::uint32_t first_hashed = hash[1];
  const std::uint32_t bloom_words = hash[2];
  const std::uint32_t* bucket = hash + 4 + bloom_words * 2;
  const std::uint32_t* chain = bucket + buckets;
  std::uint32_t last = 0;
  for (std::uint32_t b = 0; b < buckets; ++b) last = last < bucket[b] ? bucket[b] : last;
  if (last < first_hashed) return first_hashed;
  while ((chain[last - first_hashed] & 1) == 0) ++last;
  return last + 1;
}

}  // namespace

const void* function_in(const void* image, const char* name) {
  const auto* header = static_cast<const Elf64_Ehdr*>(image);
  if (header == nullptr || memcmp(header->e_ident, ELFMAG, SELFMAG) != 0 ||
      header->e_ident[EI_CLASS] != ELFCLASS64) {
    return nullptr;
  }
  const std::uintptr_t base = address_of(image);
  const auto* segment = pointer_to<const Elf64_Phdr>(base + header->e_phoff);
  const Elf64_Dyn* dynamic = nullptr;
  std::uintptr_t shift = 0;  // from the object's own addresses to where they are here
  bool loaded = false;
  for (unsigned i = 0; i < header->e_phnum; ++i) {
    if (segment[i].p_type == PT_LOAD && !loaded) {
      shift = base + segment[i].p_offset - segment[i].p_vaddr;
      loaded = true;
    }
    if (segment[i].p_type == PT_DYNAMIC)
      dynamic = pointer_to<const Elf64_Dyn>(base + segment[i].p_offset);
  }
  if (!loaded || dynamic == nullptr) return nullptr;
  Tables tables;
  for (; dynamic->d_tag != DT_NULL; ++dynamic) {
    const std::uintptr_t at = shift + dynamic->d_un.d_ptr;
    if (dynamic->d_tag == DT_SYMTAB) tables.symbols = pointer_to<const Elf64_Sym>(at);
    if (dynamic->d_tag == DT_STRTAB) tables.names = pointer_to<const char>(at);
    if (dynamic->d_tag == DT_HASH) tables.hash = pointer_to<const std::uint32_t>(at);
    if (dynamic->d_tag == DT_GNU_HASH) tables.gnu_hash = pointer_to<const std::uint32_t>(at);
  }
  if (tables.symbols == nullptr || tables.names == nullptr) return nullptr;
  std::size_t count = 0;
  if (tables.hash != nullptr) {
    count = symbols_by_hash(tables.hash);
  } else if (tables.gnu_hash != nullptr) {
    count = symbols_by_gnu_hash(tables.gnu_hash);
  }
  // There are a dozen, and each is looked for once: no need to hash.
  for (std::size_t i = 0; i < count; ++i) {
    const Elf64_Sym& symbol = tables.symbols[i];
    const bool is_function =
        ELF64_ST_TYPE(symbol.st_info) == STT_FUNC && symbol.st_shndx != SHN_UNDEF;
    if (is_function && strcmp(tables.names + symbol.st_name, name) == 0) {
      return pointer_to<const void>(shift + symbol.st_value);
    }
  }
  return nullptr;
}

const void* vdso_function(const char* name) {
  return function_in(pointer_to<const void>(auxiliary(Auxiliary::kVdso)), name);
}

}  // namespace spanalloc::os
