// A shared object made by hand, as the loader would have left it in memory: one function, and the
// tables that it is found by. For who reads the kernel's (src/os/vdso.hpp), and for who wants
// another one in its place.
#pragma once

#include <elf.h>
#include <string.h>

#include <cstddef>
#include <cstdint>

namespace spanalloc::test {

enum class Hash { kOld, kGnu, kBoth, kNone };

class SharedObject {
 public:
  /// Zero-initialised, it is no object yet. `own_address`: where it says that it is to be loaded.
  void make(const char* name, const void* function, Hash hash = Hash::kBoth,
            std::uintptr_t own_address = 0) {
    const auto place = [&](const void* p) { return own_address + (at(p) - at(this)); };
    memset(this, 0, sizeof *this);
    memcpy(header_.e_ident, ELFMAG, SELFMAG);
    header_.e_ident[EI_CLASS] = ELFCLASS64;
    header_.e_phoff = at(segments_) - at(this);
    header_.e_phnum = 2;
    segments_[0] = {.p_type = PT_LOAD,
                    .p_flags = PF_R | PF_X,
                    .p_offset = 0,
                    .p_vaddr = own_address,
                    .p_paddr = 0,
                    .p_filesz = sizeof *this,
                    .p_memsz = sizeof *this,
                    .p_align = 1};
    segments_[1] = {.p_type = PT_DYNAMIC,
                    .p_flags = PF_R,
                    .p_offset = at(dynamic_) - at(this),
                    .p_vaddr = place(dynamic_),
                    .p_paddr = 0,
                    .p_filesz = sizeof dynamic_,
                    .p_memsz = sizeof dynamic_,
                    .p_align = 8};
    std::size_t tags = 0;
    const auto tag = [&](Elf64_Sxword which, std::uintptr_t value) {
      dynamic_[tags].d_tag = which;
      dynamic_[tags++].d_un.d_ptr = value;
    };
    tag(DT_STRTAB, place(names_));
    tag(DT_SYMTAB, place(symbols_));
    if (hash == Hash::kOld || hash == Hash::kBoth) tag(DT_HASH, place(hash_));
    if (hash == Hash::kGnu || hash == Hash::kBoth) tag(DT_GNU_HASH, place(gnu_hash_));
    tag(DT_NULL, 0);
    // Of the same name: one that is not defined here, and one that is no function.
    strncpy(names_ + 1, name, sizeof names_ - 2);
    symbols_[1] = {.st_name = 1,
                   .st_info = ELF64_ST_INFO(STB_GLOBAL, STT_FUNC),
                   .st_other = 0,
                   .st_shndx = SHN_UNDEF,
                   .st_value = own_address + 8,
                   .st_size = 0};
    symbols_[2] = {.st_name = 1,
                   .st_info = ELF64_ST_INFO(STB_GLOBAL, STT_OBJECT),
                   .st_other = 0,
                   .st_shndx = 1,
                   .st_value = own_address + 8,
                   .st_size = 0};
    symbols_[3] = {.st_name = 1,
                   .st_info = ELF64_ST_INFO(STB_GLOBAL, STT_FUNC),
                   .st_other = 0,
                   .st_shndx = 1,
                   .st_value = own_address + (at(function) - at(this)),
                   .st_size = 1};
    // One bucket with the chain 1, 2, 3; the new table's buckets: none, and symbols 2 and 3.
    const std::uint32_t old_table[] = {1, kSymbols, 1, 0, 2, 3, 0};
    const std::uint32_t new_table[] = {2, 2, 1, 0, 0, 0, 0, 2, 2, 3};
    memcpy(hash_, old_table, sizeof old_table);
    memcpy(gnu_hash_, new_table, sizeof new_table);
  }
  const void* address() const { return &header_; }

 private:
  static constexpr std::uint32_t kSymbols = 4;
  static std::uintptr_t at(const void* p) { return reinterpret_cast<std::uintptr_t>(p); }

  Elf64_Ehdr header_;
  Elf64_Phdr segments_[2];
  Elf64_Dyn dynamic_[5];
  Elf64_Sym symbols_[kSymbols];
  std::uint32_t hash_[7];
  std::uint32_t gnu_hash_[10];
  char names_[40];
};

}  // namespace spanalloc::test
