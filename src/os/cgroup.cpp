#include "os/cgroup.hpp"

#include <string.h>

#include "base/bits.hpp"
#include "base/compiler.hpp"
#include "os/kernel_file.hpp"

namespace spanalloc::os {

namespace {

constexpr std::uint64_t kNone = UINT64_MAX;

// Whether a word is in a list that commas part.
SPANALLOC_COLD bool has_word(const char* list, const char* word) {
  const std::size_t length = strlen(word);
  for (const char* at = list;; ++at) {
    if (strncmp(at, word, length) == 0 && (at[length] == ',' || at[length] == '\0')) return true;
    while (*at != ',' && *at != '\0') ++at;
    if (*at == '\0') return false;
  }
}

// Ends the field at `text` (by a character that follows fields there), and returns the next one.
SPANALLOC_COLD char* end_field(char* text, char end) {
  while (*text != end && *text != '\0') ++text;
  if (*text != '\0') *text++ = '\0';
  return text;
}

SPANALLOC_COLD std::uint64_t number_at(const char* text) {
  if (*text < '0' || *text > '9') return kNone;  // "max", or -1
  std::uint64_t value = 0;
  for (; *text >= '0' && *text <= '9'; ++text) {
    if (value > (UINT64_MAX - 9) / 10) return kNone;
    value = value * 10 + static_cast<std::uint64_t>(*text - '0');
  }
  return value;
}

// The group of the process's own that has a controller: its folder, and how long the path is to the
// topmost one that can be seen.
class Group {
 public:
  SPANALLOC_COLD Group(const char* controller, const char* root)
      : controller_(controller), root_(root) {
    find_place();
    if (has_place_) find_folder();
  }
  bool is_found() const { return is_found_ && folder_.fits(); }
  bool is_version_1() const { return version_ == 1; }
  bool is_topmost() const { return folder_.length() <= floor_; }
  /// On to the group around it. False: it is the topmost.
  bool leave() { return folder_.leave(floor_); }

  /// What the group's file begins with. False: there is none.
  SPANALLOC_COLD bool read(const char* name, char (&text)[64]) {
    File file(path_of(name));
    if (!file.is_open()) return false;
    text[file.read(text, sizeof text - 1)] = '\0';
    return true;
  }
  /// As a number; kNone: none.
  SPANALLOC_COLD std::uint64_t number(const char* name) {
    char text[64] = {};
    return read(name, text) ? number_at(text) : kNone;
  }
  /// What stands behind a word in the group's file; 0: it does not.
  SPANALLOC_COLD std::uint64_t number_behind(const char* name, const char* word) {
    File file(path_of(name));
    const std::size_t length = strlen(word);
    char line[128] = {};
    while (file.is_open() && file.next_line(line)) {
      if (strncmp(line, word, length) == 0 && line[length] == ' ')
        return number_at(line + length + 1);
    }
    return 0;
  }

 private:
  const char* path_of(const char* name) {
    file_ = folder_;
    file_.add("/").add(name);
    return file_.fits() ? file_.text() : "";
  }

  // As /proc/self/cgroup has it: lines of "number:controllers:path", of version 2 "0::path".
  SPANALLOC_COLD void find_place() {
    File file(file_.cut(0).add(root_).add("/proc/self/cgroup").text());
    char line[kMostPath] = {};
    while (file.is_open() && version_ != 1 && file.next_line(line)) {
      char* const controllers = end_field(line, ':');
      char* const path = end_field(controllers, ':');
      const bool is_version_2 = strcmp(line, "0") == 0 && *controllers == '\0';
      if (*path != '/' || !(is_version_2 || has_word(controllers, controller_))) continue;
      version_ = is_version_2 ? 2 : 1;
      has_place_ = true;
      memcpy(place_, path, strlen(path) + 1);
    }
  }

  // Where that is in the file system: the place counts from the hierarchy's root, and a mount may
  // show a part of it. In a container that part may be what the process is in, while the place is
  // told as the host sees it: then the topmost group is the one to ask.
  SPANALLOC_COLD void find_folder() {
    File file(file_.cut(0).add(root_).add("/proc/self/mountinfo").text());
    char line[kMostPath] = {};
    while (file.is_open() && file.next_line(line)) {
      // number, parent, device, root, mount point, options..., "-", type, source, options
      char* field = line;
      for (unsigned i = 0; i < 3; ++i) field = end_field(field, ' ');
      char* const shown = field;
      char* const mounted = end_field(shown, ' ');
      char* rest = end_field(mounted, ' ');
      while (*rest != '\0' && strncmp(rest, "- ", 2) != 0) rest = end_field(rest, ' ');
      if (*rest == '\0') continue;
      char* const type = rest + 2;
      char* const options = end_field(end_field(type, ' '), ' ');
      if (strcmp(type, version_ == 1 ? "cgroup" : "cgroup2") != 0 ||
          (version_ == 1 && !has_word(options, controller_))) {
        continue;
      }
      const char* const below = below_of(shown);
      if (is_found_ && below == nullptr) continue;
      folder_.cut(0).add(root_).add(mounted);
      floor_ = folder_.length();
      if (below != nullptr && strcmp(below, "/") != 0) folder_.add(below);
      is_found_ = true;
      if (below != nullptr) return;
    }
  }
  // The place as it is below a folder of the hierarchy; nullptr: it is elsewhere.
  const char* below_of(const char* folder) const {
    if (strncmp(place_, "/..", 3) == 0) return nullptr;
    const std::size_t length = strcmp(folder, "/") == 0 ? 0 : strlen(folder);
    const bool is_below =
        strncmp(place_, folder, length) == 0 && (place_[length] == '/' || place_[length] == '\0');
    return is_below ? place_ + length : nullptr;
  }

  const char* const controller_;
  const char* const root_;
  unsigned version_ = 2;
  bool has_place_ = false;
  bool is_found_ = false;
  std::size_t floor_ = 0;
  char place_[kMostPath] = "";
  Path folder_;
  Path file_;
};

// A group's limit that is none is told as "max", or as the largest number of pages.
constexpr std::uint64_t kMostLimit = std::uint64_t{1} << 60;

}  // namespace

SPANALLOC_COLD bool read_memory_group(MemoryGroup& out, const char* root) {
  Group group("memory", root);
  if (!group.is_found()) return false;
  const bool first = group.is_version_1();
  // The root of version 2 has no limit, nor files that tell it.
  bool is_told = !first && group.is_topmost();
  MemoryGroup nearest;
  const auto consider = [&](std::uint64_t limit) {
    if (limit >= kMostLimit) return;
    const std::uint64_t all = group.number(first ? "memory.usage_in_bytes" : "memory.current");
    const std::uint64_t unused =
        group.number_behind("memory.stat", first ? "total_inactive_file" : "inactive_file");
    MemoryGroup here;
    here.limit = limit;
    if (all != kNone) here.used = all - min_of(unused, all);
    // Which one comes first to the margin that it is to keep.
    const auto distance = [](const MemoryGroup& of) {
      return static_cast<std::int64_t>(of.room() - of.margin());
    };
    if (nearest.limit == SIZE_MAX || distance(here) < distance(nearest)) nearest = here;
  };
  if (first) {
    // Counts groups that cannot be seen from here, too.
    const std::uint64_t lowest = group.number_behind("memory.stat", "hierarchical_memory_limit");
    if (lowest != 0) consider(lowest);
  }
  do {
    std::uint64_t limit = kNone;
    char text[64] = {};
    const char* const limits[] = {first ? "memory.limit_in_bytes" : "memory.max", "memory.high"};
    for (const char* name : limits) {
      if (!group.read(name, text)) continue;
      is_told = true;
      limit = min_of(limit, number_at(text));
    }
    consider(limit);
  } while (group.leave());
  if (is_told) out = nearest;
  return is_told;
}

SPANALLOC_COLD unsigned cpu_quota(const char* root) {
  Group group("cpu", root);
  if (!group.is_found()) return 0;
  std::uint64_t least = 0;
  do {
    char text[64] = {};
    std::uint64_t quota = kNone;
    std::uint64_t period = kNone;
    if (group.is_version_1()) {
      quota = group.number("cpu.cfs_quota_us");
      period = group.number("cpu.cfs_period_us");
    } else if (group.read("cpu.max", text)) {
      char* const behind = end_field(text, ' ');
      quota = number_at(text);
      period = number_at(behind);
    }
    if (quota == kNone || period == kNone || period == 0) continue;
    const std::uint64_t cpus = max_of(quota / period + (quota % period != 0), 1);
    least = least == 0 ? cpus : min_of(least, cpus);
  } while (group.leave());
  return static_cast<unsigned>(min_of(least, UINT32_MAX));
}

}  // namespace spanalloc::os
