#include "report.hpp"

#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <cstring>

#include "base/assert.hpp"

extern "C" char __executable_start;

namespace spanalloc::simulation {

Result* result = nullptr;
Coverage* coverage = nullptr;
bool logging = false;

namespace {
char places[kMostThreads + 1][160];
}

std::uintptr_t code_begin() {
  return reinterpret_cast<std::uintptr_t>(&__executable_start);
}

void write_log(const char* format, ...) {
  std::printf("%8llu  %2u  ", static_cast<unsigned long long>(scheduler.steps()), scheduler.self());
  std::va_list arguments;
  va_start(arguments, format);
  std::vprintf(format, arguments);
  va_end(arguments);
  std::putchar('\n');
}

void write_step(Step step, const void* site, const void* cell, std::uint64_t value) {
  static constexpr const char* kNames[] = {"load", "store", "update", "failed", "arrival"};
  // `run` replaces @ADDRESS by the function.
  if (site == nullptr) {
    write_log("    .. %s %p = %llx", kNames[static_cast<int>(step)], cell,
              static_cast<unsigned long long>(value));
  } else {
    write_log("    %s %p = %llx @%p", kNames[static_cast<int>(step)], cell,
              static_cast<unsigned long long>(value), site);
  }
}

void set_place(unsigned thread, const char* format, ...) {
  std::va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(places[thread], sizeof places[thread], format, arguments);
  va_end(arguments);
  SIM_LOG("%s", places[thread]);
}

void end_excused() {
  SIM_LOG("ended by a fault of the program's");
  std::fflush(stdout);
  _exit(0);
}

void end_if_excused() {
  if (scheduler.is_any_excused()) end_excused();
}

void fail(const char* format, ...) {
  if (scheduler.is_excused()) end_excused();
  std::va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(result->message, sizeof result->message, format, arguments);
  va_end(arguments);
  std::snprintf(result->place, sizeof result->place, "thread %u: %s", scheduler.self(),
                places[scheduler.self()]);
  result->failed = true;
  SIM_LOG("FAILED: %s", result->message);
  std::fflush(stdout);
  _exit(1);
}

}  // namespace spanalloc::simulation

namespace spanalloc {

void assertion_failed(const char* condition, const char* file, int line) {
  const char* const slash = std::strrchr(file, '/');
  simulation::fail("assertion failed: %s (%s:%d)", condition, slash == nullptr ? file : slash + 1,
                   line);
}

}  // namespace spanalloc
