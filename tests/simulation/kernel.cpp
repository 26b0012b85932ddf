#include "kernel.hpp"

#include <sys/mman.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <vector>

#include "base/bits.hpp"
#include "process.hpp"
#include "report.hpp"
#include "scheduler.hpp"

namespace spanalloc::simulation {

Kernel kernel;

namespace {

constexpr std::size_t kPage = 4096;
// Where mappings of the kernel's own choice go, as on Linux far above those whose place the library
// chooses, and below the process's real ones.
constexpr std::uintptr_t kLowest = std::uintptr_t{0x54} << 40;
constexpr std::uintptr_t kHighest = std::uintptr_t{0x7c} << 40;
constexpr std::size_t kApart = std::size_t{4} << 30;
// More pages than any engine remembers of other people's; so few that the real kernel, which gives
// a process 65,530 mappings, has enough for all.
constexpr unsigned kMostForeign = 256;

const char* name_of(Call call) {
  static constexpr const char* kNames[kCalls] = {"reserve", "open",    "open_at", "reserve_at",
                                                 "close",   "release", "map",     "unmap",
                                                 "remap",   "purge",   "renew",   "would_grant"};
  return kNames[static_cast<unsigned>(call)];
}

}  // namespace

void Kernel::begin(std::uint64_t seed) {
  random_ = test::Random(seed);
  low_ = kHighest;
  high_ = kLowest;
}

// --- What is refused -----------------------------------------------------------------------------

bool Kernel::refuses(Call call) {
  ++calls_;
  if (!scheduler.in_thread()) return false;
  scheduler.kernel_step();
  if ((plan_.refused_calls >> static_cast<unsigned>(call) & 1) == 0 || plan_.refusal_gap == 0)
    return false;
  if (burst_left_ == 0) {
    if (!random_.one_in(plan_.refusal_gap)) return false;
    burst_left_ = 1 + static_cast<std::uint32_t>(random_.below(plan_.burst));
  }
  --burst_left_;
  ++refusals_;
  SIM_LOG("  kernel refuses %s", name_of(call));
  return true;
}

bool Kernel::exceeds(std::size_t more_space, std::size_t more_open) {
  if (!scheduler.in_thread()) return false;
  const bool refused =
      (plan_.space_limit != 0 && more_space != 0 &&
       space_bytes_ + more_space > plan_.space_limit) ||
      (plan_.open_limit != 0 && more_open != 0 && open_bytes_ + more_open > plan_.open_limit) ||
      (plan_.mappings_limit != 0 && mappings_.size() >= plan_.mappings_limit);
  if (refused) {
    ++refusals_;
    SIM_LOG("  kernel: a limit is reached");
  }
  return refused;
}

// --- Mappings ------------------------------------------------------------------------------------

bool Kernel::is_free(std::uintptr_t start, std::uintptr_t end) const {
  const auto next = mappings_.upper_bound(start);
  if (next != mappings_.end() && next->first < end) return false;
  return next == mappings_.begin() || std::prev(next)->second.end <= start;
}

bool Kernel::is_ours(std::uintptr_t start, std::uintptr_t end, bool all_open) const {
  auto it = mappings_.upper_bound(start);
  if (it == mappings_.begin()) return false;
  for (--it; start < end; ++it) {
    if (it == mappings_.end() || it->first > start || it->second.end <= start) return false;
    if (it->second.foreign || (all_open && !it->second.open)) return false;
    start = it->second.end;
  }
  return true;
}

bool Kernel::has_foreign(std::uintptr_t start, std::uintptr_t end) const {
  for (auto it = mappings_.lower_bound(start); it != mappings_.end() && it->first < end; ++it) {
    if (it->second.foreign) return true;
  }
  return false;
}

// Of a range with something of ours in it.
bool Kernel::makes_a_hole(std::uintptr_t start, std::uintptr_t end) const {
  if (mappings_.upper_bound(start) == mappings_.begin()) return false;
  const auto it = std::prev(mappings_.upper_bound(start));
  return it->first < start && it->second.end > end;
}

void Kernel::split_at(std::uintptr_t at) {
  auto it = mappings_.upper_bound(at);
  if (it == mappings_.begin()) return;
  --it;
  if (it->first >= at || it->second.end <= at) return;
  Mapping rest = it->second;
  it->second.end = at;
  mappings_.emplace(at, rest);
}

void Kernel::join_around(std::uintptr_t start, std::uintptr_t end) {
  const auto same = [](const Mapping& a, const Mapping& b) {
    return a.open == b.open && a.foreign == b.foreign && a.locked == b.locked;
  };
  auto it = mappings_.lower_bound(start);
  if (it != mappings_.begin()) --it;
  while (it != mappings_.end() && it->first <= end) {
    const auto next = std::next(it);
    if (next == mappings_.end()) return;
    if (it->second.end == next->first && same(it->second, next->second)) {
      it->second.end = next->second.end;
      mappings_.erase(next);
    } else {
      it = next;
    }
  }
}

void Kernel::insert(std::uintptr_t start, std::uintptr_t end, bool open, bool foreign) {
  mappings_[start] = Mapping{end, open, foreign, plan_.locked};
  ++grants_;
  if (!foreign) {
    space_bytes_ += end - start;
    if (open) open_bytes_ += end - start;
  }
  join_around(start, end);
}

void Kernel::erase(std::uintptr_t start, std::uintptr_t end) {
  split_at(start);
  split_at(end);
  for (auto it = mappings_.lower_bound(start); it != mappings_.end() && it->first < end;) {
    const std::size_t bytes = it->second.end - it->first;
    if (!it->second.foreign) {
      space_bytes_ -= bytes;
      if (it->second.open) open_bytes_ -= bytes;
    }
    it = mappings_.erase(it);
  }
}

bool Kernel::really_map(std::uintptr_t start, std::size_t bytes, int rights) {
  void* const wanted = pointer_to(start);
  void* const got = mmap(wanted, bytes, rights,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
  if (got == MAP_FAILED && errno == ENOMEM) fail("simulation: the machine is out of memory");
  return got == wanted;
}

// Where there is no room in the direction of the placement any more. 0: nowhere.
std::uintptr_t Kernel::first_hole(std::size_t bytes, std::size_t alignment) const {
  std::uintptr_t place = kLowest;
  for (auto next = mappings_.lower_bound(kLowest);; ++next) {
    place = align_up(place, alignment);
    const std::uintptr_t end = next == mappings_.end() ? kHighest : next->first;
    if (place + bytes <= end) return place;
    if (next == mappings_.end()) return 0;
    place = next->second.end;
  }
}

std::uintptr_t Kernel::choose_place(std::size_t bytes, std::size_t alignment) {
  const bool up = plan_.placement == Placement::upward ||
                  (plan_.placement == Placement::scattered && random_.one_in(2));
  if (plan_.placement == Placement::reused && bytes <= released_bytes_ &&
      released_ % alignment == 0 && is_free(released_, released_ + bytes)) {
    return released_;
  }
  const std::size_t apart =
      plan_.placement == Placement::scattered ? kApart * (1 + random_.below(4)) : 0;
  for (;;) {
    std::uintptr_t place = 0;
    if (up) {
      place = align_up(high_ + apart, alignment);
      if (place + bytes > kHighest) return first_hole(bytes, alignment);
    } else {
      if (low_ < kLowest + bytes + apart + alignment) return first_hole(bytes, alignment);
      place = align_down(low_ - apart - bytes, alignment);
    }
    if (is_free(place, place + bytes)) {
      (up ? high_ : low_) = up ? place + bytes : place;
      return place;
    }
    // Behind what is in the way.
    auto in_the_way = mappings_.lower_bound(place + bytes);
    --in_the_way;
    if (up) {
      high_ = in_the_way->second.end;
    } else {
      low_ = in_the_way->first;
    }
  }
}

// Somebody else maps a page there, which can be read.
void Kernel::plant_foreign(std::uintptr_t at) {
  if (plan_.foreign == 0 || random_.below(256) >= plan_.foreign || foreign_ == kMostForeign ||
      !is_free(at, at + kPage) || !really_map(at, kPage, PROT_READ))
    return;
  ++foreign_;
  insert(at, at + kPage, false, true);
  SIM_LOG("  kernel: a foreign page at %zx", static_cast<std::size_t>(at));
}

void* Kernel::map_somewhere(std::size_t bytes, std::size_t alignment, bool open, Call call) {
  bytes = align_up(bytes, kPage);
  SIM_CHECK(bytes != 0, "%s of nothing", name_of(call));
  if (refuses(call) || exceeds(bytes, open ? bytes : 0)) return nullptr;
  if (bytes > std::size_t{1} << 46) return nullptr;
  const std::uintptr_t place = choose_place(bytes, alignment < kPage ? kPage : alignment);
  if (place == 0) ++refusals_;  // the addresses are used up: who wants some is refused
  if (place == 0 || !really_map(place, bytes, open ? PROT_READ | PROT_WRITE : PROT_NONE))
    return nullptr;
  insert(place, place + bytes, open, false);
  SIM_LOG("  kernel: %s(%zu) = %zx", name_of(call), bytes, static_cast<std::size_t>(place));
  plant_foreign(place + bytes);
  return pointer_to(place);
}

void* Kernel::reserve(std::size_t bytes, std::size_t alignment) {
  return map_somewhere(bytes, alignment, false, Call::reserve);
}
void* Kernel::map(std::size_t bytes, std::size_t alignment) {
  return map_somewhere(bytes, alignment, true, Call::map);
}

os::Placed Kernel::place_at(void* address, std::size_t bytes, bool open, Call call) {
  const std::uintptr_t start = address_of(address);
  SIM_CHECK(start % kPage == 0 && bytes % kPage == 0, "%s of no whole pages", name_of(call));
  if (refuses(call)) return os::Placed::kRefused;
  if (start == 0) {  // whether as much would be granted elsewhere
    return exceeds(bytes, open ? bytes : 0) ? os::Placed::kRefused : os::Placed::kTaken;
  }
  if (!is_free(start, start + bytes)) return os::Placed::kTaken;
  if (exceeds(bytes, open ? bytes : 0)) return os::Placed::kRefused;
  if (!really_map(start, bytes, open ? PROT_READ | PROT_WRITE : PROT_NONE))
    return os::Placed::kTaken;
  insert(start, start + bytes, open, false);
  SIM_LOG("  kernel: %s(%p, %zu)", name_of(call), address, bytes);
  plant_foreign(start + bytes);
  return os::Placed::kYes;
}

bool Kernel::open(void* address, std::size_t bytes) {
  const std::uintptr_t start = address_of(address);
  const bool refused = refuses(Call::open);
  SIM_CHECK(is_ours(start, start + bytes, false), "open(%p, %zu) of what is not reserved", address,
            bytes);
  if (refused || exceeds(0, bytes)) return false;
  if (mprotect(address, bytes, PROT_READ | PROT_WRITE) != 0)
    fail("simulation: mprotect(%p, %zu): error %d", address, bytes, errno);
  erase(start, start + bytes);
  insert(start, start + bytes, true, false);
  return true;
}

bool Kernel::close(void* address, std::size_t bytes) {
  const std::uintptr_t start = address_of(address);
  const bool refused = refuses(Call::close);
  // (So may it what keeps its addresses.)
  SIM_CHECK(is_ours(start, start + bytes, !process.is_child()),
            "close(%p, %zu) of what is not open", address, bytes);
  if (refused) return false;
  scheduler.drain_range_of_all(address, bytes);
  if (mmap(address, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
           0) != address)
    fail("simulation: mmap(%p, %zu): error %d", address, bytes, errno);
  erase(start, start + bytes);
  insert(start, start + bytes, false, false);
  return true;
}

bool Kernel::release(void* address, std::size_t bytes, Call call) {
  const std::uintptr_t start = address_of(address);
  bytes = align_up(bytes, kPage);
  const bool refused = refuses(call);
  // A fork's child may repeat what a vanished thread has done, or a part of it: munmap takes that,
  // as long as nobody else has mapped there.
  if (process.is_child() && is_free(start, start + bytes)) return true;
  SIM_CHECK(process.is_child() ? !has_foreign(start, start + bytes)
                               : is_ours(start, start + bytes, false),
            "%s(%p, %zu) of what is not mapped", name_of(call), address, bytes);
  // munmap is refused only where it makes two mappings of one.
  if (refused && makes_a_hole(start, start + bytes)) return false;
  scheduler.drain_range_of_all(address, bytes);
  munmap(address, bytes);
  erase(start, start + bytes);
  if (start >= kLowest) {
    released_ = start;
    released_bytes_ = bytes;
  }
  SIM_LOG("  kernel: %s(%p, %zu)", name_of(call), address, bytes);
  return true;
}

void* Kernel::remap(void* address, std::size_t old_bytes, std::size_t new_bytes) {
  const std::uintptr_t start = address_of(address);
  const bool refused = refuses(Call::remap);
  SIM_CHECK(is_ours(start, start + old_bytes, true), "remap(%p, %zu) of what is not open", address,
            old_bytes);
  if (refused) return nullptr;
  const std::size_t more = new_bytes > old_bytes ? new_bytes - old_bytes : 0;
  if (exceeds(more, more)) return nullptr;
  scheduler.drain_range_of_all(address, old_bytes);
  if (new_bytes <= old_bytes) {
    munmap(pointer_to(start + new_bytes), old_bytes - new_bytes);
    erase(start + new_bytes, start + old_bytes);
    return address;
  }
  const bool in_place = is_free(start + old_bytes, start + new_bytes) && random_.one_in(2);
  const std::uintptr_t place = in_place ? start : choose_place(new_bytes, kPage);
  if (place == 0) return nullptr;
  // (mremap wants one mapping of the kernel's own books, which the model's need not be.)
  void* const got = in_place ? mremap(address, old_bytes, new_bytes, 0)
                             : mremap(address, old_bytes, new_bytes, MREMAP_MAYMOVE | MREMAP_FIXED,
                                      pointer_to(place));
  if (got == MAP_FAILED) return nullptr;
  erase(start, start + old_bytes);
  insert(place, place + new_bytes, true, false);
  SIM_LOG("  kernel: remap(%p, %zu, %zu) = %zx", address, old_bytes, new_bytes,
          static_cast<std::size_t>(place));
  return pointer_to(place);
}

void Kernel::forget_pages(void* address, std::size_t bytes) {
  if (plan_.locked) return;
  scheduler.drain_range_of_all(address, bytes);
  madvise(address, bytes, MADV_DONTNEED);
}

bool Kernel::purge(void* address, std::size_t bytes, Call call) {
  const std::uintptr_t start = address_of(address);
  // A fork's child asks by this whether a page of a reservation is there still, which a vanished
  // thread was giving back (AddressRange::recover_in_child).
  if (process.is_child() && bytes == kPage && !is_ours(start, start + bytes, true)) {
    if (is_free(start, start + bytes)) return false;
    SIM_CHECK(is_ours(start, start + bytes, false), "%s(%p) of what is not ours", name_of(call),
              address);
    // (Of such pages only those that are locked are refused.)
    scheduler.kernel_step();
    return !plan_.locked;
  }
  const bool refused = refuses(call) || plan_.locked;
  SIM_CHECK(is_ours(start, start + bytes, true), "%s(%p, %zu) of what is not open", name_of(call),
            address, bytes);
  SIM_CHECK(start % kPage == 0, "%s of no whole pages", name_of(call));
  scheduler.drain_range_of_all(address, bytes);
  if (refused) {
    // Some pages may be gone all the same.
    if (bytes > kPage && random_.one_in(2)) madvise(address, kPage, MADV_DONTNEED);
    return false;
  }
  return madvise(address, bytes, MADV_DONTNEED) == 0;
}

bool Kernel::would_grant(std::size_t bytes) {
  return !refuses(Call::would_grant) && !exceeds(bytes, bytes) && bytes < std::size_t{1} << 40;
}

bool Kernel::can_be_read(const void* address) const {
  const std::uintptr_t at = address_of(address);
  const auto next = mappings_.upper_bound(at);
  if (next == mappings_.begin()) return false;
  const Mapping& mapping = std::prev(next)->second;
  return mapping.end > at && (mapping.open || mapping.foreign);
}

// What is not mapped is not locked.
bool Kernel::is_locked_at(const void* page) const {
  const std::uintptr_t at = address_of(page);
  return plan_.locked && !is_free(at, at + kPage);
}

std::size_t Kernel::resident(void* address, std::size_t bytes) const {
  std::vector<unsigned char> pages((bytes + kPage - 1) / kPage);
  if (mincore(address, bytes, pages.data()) != 0) return 0;
  std::size_t count = 0;
  for (const unsigned char page : pages) count += page & 1;
  return count;
}

std::size_t Kernel::present() const {
  std::size_t pages = 0;
  for (const auto& [start, mapping] : mappings_) {
    if (mapping.open) pages += resident(pointer_to(start), mapping.end - start);
  }
  return pages * kPage;
}

std::size_t Kernel::resident() const {
  std::FILE* const maps = std::fopen("/proc/self/smaps", "r");
  SIM_CHECK(maps != nullptr, "smaps: %s", std::strerror(errno));
  std::size_t kib = 0;
  bool is_ours = false;
  char line[512];
  while (std::fgets(line, sizeof line, maps) != nullptr) {
    std::uintptr_t start = 0;
    std::uintptr_t end = 0;
    std::size_t rss = 0;
    if (std::sscanf(line, "%zx-%zx ", &start, &end) == 2) {
      auto mapping = mappings_.upper_bound(start);
      if (mapping != mappings_.begin() && std::prev(mapping)->second.end > start) --mapping;
      // (What is closed, or foreign, may stand for the simulator's own.)
      while (mapping != mappings_.end() && mapping->first < end && !mapping->second.open) ++mapping;
      is_ours = mapping != mappings_.end() && mapping->first < end;
    } else if (is_ours && std::sscanf(line, "Rss: %zu kB", &rss) == 1) {
      kib += rss;
    }
  }
  std::fclose(maps);
  return kib * kKiB;
}

// --- The clock -----------------------------------------------------------------------------------

std::uint64_t Kernel::now_ms() {
  if (plan_.clock_gap != 0 && scheduler.in_thread() && random_.one_in(plan_.clock_gap)) {
    clock_ += 1 + random_.below(plan_.clock_jump);
    SIM_LOG("  clock: %llu", static_cast<unsigned long long>(clock_));
  }
  return clock_;
}

}  // namespace spanalloc::simulation
