// SPANALLOC_STATS_AT_EXIT: a library writes its statistics when the process ends (exit, or main's
// return; not after _exit or a signal). Included once per library, after spanalloc::LibraryEngine
// is declared.
#pragma once

#include <spanalloc/spanalloc.h>
#include <stdio.h>
#include <string.h>

#include <cstddef>

#include "api/statistics_json.hpp"
#include "base/bits.hpp"
#include "base/compiler.hpp"
#include "os/os.hpp"

namespace spanalloc {

/// Where to, and the program's name, copied when the library starts, because a program may write
/// over its environment and its arguments. Empty: nowhere.
static char statistics_place[4096];
static char statistics_program[256];

SPANALLOC_COLD static void note_statistics_place() {
  if (!os::option_text("STATS_AT_EXIT", statistics_place, sizeof statistics_place))
    statistics_place[0] = '\0';
  else
    snprintf(statistics_program, sizeof statistics_program, "%s", os::program_name());
}

/// The place with %p replaced by the process's number, %n by the program's name, and %% by %.
/// False: it does not fit.
SPANALLOC_COLD static bool expand_statistics_place(char* out, std::size_t size) {
  char number[16];
  snprintf(number, sizeof number, "%d", os::process_id());
  std::size_t length = 0;
  for (const char* c = statistics_place; *c != '\0'; ++c) {
    const char* text = c;
    std::size_t bytes = 1;
    if (c[0] == '%' && (c[1] == 'p' || c[1] == 'n' || c[1] == '%')) {
      ++c;
      text = *c == 'p' ? number : *c == 'n' ? statistics_program : "%";
      bytes = strlen(text);
    }
    if (bytes >= size - length) return false;
    memcpy(out + length, text, bytes);
    length += bytes;
  }
  out[length] = '\0';
  return true;
}

struct StatisticsFile {
  int file = -1;
  bool good = false;

  static void write(void* self, const char* text, std::size_t bytes) {
    auto* to = static_cast<StatisticsFile*>(self);
    to->good = to->good && os::write_text(to->file, text, bytes);
  }
};

/// On standard error, in one line; of a long name the beginning.
SPANALLOC_COLD static void tell_no_statistics(const char* path, const char* why) {
  char line[320];
  const int length = snprintf(line, sizeof line,
                              "spanalloc: cannot write statistics to %.200s: %.60s\n", path, why);
  if (length > 0) os::write_text(2, line, static_cast<std::size_t>(length));
}

// As late as a library can: what other destructors of this priority and above free is free.
[[gnu::destructor(101), gnu::cold]] static void write_statistics_at_exit() {
  if (statistics_place[0] == '\0') return;
  char path[sizeof statistics_place];
  StatisticsFile to;
  const bool to_error =
      strcmp(statistics_place, "-") == 0 || strcmp(statistics_place, "stderr") == 0;
  // Nothing that becomes of the writing changes how the process ends.
  os::ignore_write_signals();
  if (to_error) {
    to.file = 2;
  } else if (!expand_statistics_place(path, sizeof path)) {
    return tell_no_statistics(statistics_place, "its name is too long");
  } else if (to.file = os::make_file(path); to.file < 0) {
    return tell_no_statistics(path, strerrordesc_np(-to.file));
  }
  to.good = true;
  StatisticsJson<LibraryEngine>::write(&StatisticsFile::write, &to, SP_STATS_KERNEL);
  if (!to_error && !os::close_file(to.file)) to.good = false;
  if (to.good) return;
  tell_no_statistics(to_error ? statistics_place : path, "not all of it could be written");
}

}  // namespace spanalloc
