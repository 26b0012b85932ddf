// Reads files of the kernel's by system calls of our own, with small buffers on the stack: no
// function of libc's that another library may have replaced, and no memory.
#pragma once

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include <cstddef>

#include "base/compiler.hpp"
#include "os/system_call.hpp"

namespace spanalloc::os {

/// Longer paths count as none. (A container's container has some 400.)
inline constexpr std::size_t kMostPath = 1024;

class File {
 public:
  explicit File(const char* path)
      : fd_(system_call(SYS_openat, AT_FDCWD, argument(path), O_RDONLY | O_CLOEXEC)) {}
  ~File() {
    if (is_open()) system_call(SYS_close, fd_, 0, 0);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  bool is_open() const { return fd_ >= 0; }
  /// 0: the file's end, or an error.
  std::size_t read(char* to, std::size_t bytes) {
    for (;;) {
      const long n = system_call(SYS_read, fd_, argument(to), static_cast<long>(bytes));
      if (n != -EINTR) return n < 0 ? 0 : static_cast<std::size_t>(n);
    }
  }
  /// The next line, without its end; what does not fit is left out. False: there is none.
  template <std::size_t kSize>
  SPANALLOC_COLD bool next_line(char (&line)[kSize]) {
    std::size_t length = 0;
    for (bool any = false;; any = true) {
      if (at_ == end_) {
        at_ = 0;
        end_ = read(buffer_, sizeof buffer_);
        if (end_ == 0) return line[length] = '\0', any;
      }
      const char c = buffer_[at_++];
      if (c == '\n') return line[length] = '\0', true;
      if (length < kSize - 1) line[length++] = c;
    }
  }

 private:
  long fd_;
  std::size_t at_ = 0;
  std::size_t end_ = 0;
  char buffer_[512] = {};
};

class Path {
 public:
  /// What does not fit makes it none.
  SPANALLOC_COLD Path& add(const char* text) {
    const std::size_t more = strlen(text);
    if (more >= sizeof text_ - length_) {
      fits_ = false;
      return *this;
    }
    memcpy(text_ + length_, text, more + 1);
    length_ += more;
    return *this;
  }
  Path& cut(std::size_t length) {
    text_[length_ = length] = '\0';
    fits_ = true;
    return *this;
  }
  /// Takes the last folder off. False: there is none behind `floor`.
  bool leave(std::size_t floor) {
    std::size_t length = length_;
    while (length > floor && text_[length - 1] != '/') --length;
    if (length <= floor) return false;
    cut(length - 1);
    return true;
  }
  bool fits() const { return fits_; }
  std::size_t length() const { return length_; }
  const char* text() const { return text_; }

 private:
  char text_[kMostPath] = "";
  std::size_t length_ = 0;
  bool fits_ = true;
};

}  // namespace spanalloc::os
