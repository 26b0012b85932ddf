// The environment: how much is to be tested; and a variable, set for as long as the object lives.
#pragma once

#include <cstdlib>
#include <optional>
#include <string>

namespace spanalloc::test {

/// Whether everything is to be tried (scripts/test --full), however long it takes.
inline bool is_full() {
  return std::getenv("SPANALLOC_TEST_FULL") != nullptr;
}

class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) {
    if (const char* before = std::getenv(name)) before_ = before;
    set(value);
  }
  ~Variable() { before_ ? set(before_->c_str()) : static_cast<void>(unsetenv(name_)); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;
  void set(const char* value) { setenv(name_, value, 1); }

 private:
  const char* name_;
  std::optional<std::string> before_;
};

}  // namespace spanalloc::test
