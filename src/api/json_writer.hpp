// Writes JSON piece by piece to a function of the caller's, from a buffer of its own: no memory is
// asked for, whatever the document's length.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/assert.hpp"
#include "base/bits.hpp"
#include "base/compiler.hpp"

namespace spanalloc {

/// Names and texts are those of this library, but for foreign_text(): printable ASCII without
/// quotes and backslashes. Each value within an object follows its name(). The outermost kLines
/// levels have a line for each value, what is deeper shares one. (Cold, all of it: nobody waits for
/// speed here, and inlined it would be several KiB of every library.)
class JsonWriter {
 public:
  using Write = void (*)(void* context, const char* text, std::size_t bytes);

  JsonWriter(Write write, void* context) : write_(write), context_(context) {}
  /// The document is complete.
  ~JsonWriter() {
    SPANALLOC_ASSERT(depth_ == 0);
    put('\n');
    flush();
  }
  JsonWriter(const JsonWriter&) = delete;
  JsonWriter& operator=(const JsonWriter&) = delete;

  /// '{' or '['
  SPANALLOC_COLD void begin(char bracket) {
    begin_value();
    put(bracket);
    ++depth_;
    is_first_ = true;
  }
  /// '}' or ']'
  SPANALLOC_COLD void end(char bracket) {
    SPANALLOC_ASSERT(depth_ != 0);
    --depth_;
    if (!is_first_ && depth_ < kLines) break_line();
    put(bracket);
    is_first_ = false;
  }
  SPANALLOC_COLD void name(const char* name) {
    begin_value();
    quote(name);
    put(": ", 2);
    has_name_ = true;
  }
  SPANALLOC_COLD void text(const char* text) {
    begin_value();
    quote(text);
  }
  /// Any bytes. The document stays ASCII: all other characters (UTF-8) are escaped. A byte that is
  /// part of none becomes U+FFFD.
  SPANALLOC_COLD void foreign_text(const char* text) {
    begin_value();
    put('"');
    while (*text != 0) put_escaped(next_character(text));
    put('"');
  }
  SPANALLOC_COLD void boolean(bool value) {
    begin_value();
    put(value ? "true" : "false", value ? 4 : 5);
  }
  SPANALLOC_COLD void number(std::size_t value) {
    begin_value();
    put_number(value, 10);
  }
  /// A text of hexadecimal digits that begins with 0x: such a number may be larger than a reader's
  /// numbers are exact.
  SPANALLOC_COLD void address(std::uintptr_t value) {
    begin_value();
    put("\"0x", 3);
    put_number(value, 16);
    put('"');
  }
  SPANALLOC_COLD void member(const char* its_name, std::size_t value) {
    name(its_name);
    number(value);
  }

 private:
  static constexpr unsigned kLines = 2;

  SPANALLOC_COLD void begin_value() {
    if (!has_name_ && depth_ != 0) {
      if (!is_first_) put(',');
      if (depth_ <= kLines) {
        break_line();
      } else if (!is_first_) {
        put(' ');
      }
    }
    has_name_ = false;
    is_first_ = false;
  }
  void break_line() {
    put('\n');
    for (unsigned i = 0; i < 2 * depth_; ++i) put(' ');
  }
  SPANALLOC_COLD void quote(const char* text) {
    put('"');
    put(text, std::strlen(text));
    put('"');
  }
  static constexpr std::uint32_t kNoCharacter = 0xFFFD;

  /// The character that begins there; `at` moves behind it. (The zero at the end is part of none.)
  SPANALLOC_COLD static std::uint32_t next_character(const char*& at) {
    const auto first = static_cast<unsigned char>(*at++);
    if (first < 0x80) return first;
    const auto length = static_cast<unsigned>(std::countl_one(first));
    if (length < 2 || length > 4) return kNoCharacter;
    std::uint32_t code = first & 0x7Fu >> length;
    for (unsigned i = 0; i + 1 < length; ++i) {
      if ((at[i] & 0xC0) != 0x80) return kNoCharacter;
      code = code << 6 | (static_cast<unsigned char>(at[i]) & 0x3Fu);
    }
    // Shorter forms, halves of pairs, and what is beyond the last one.
    constexpr std::uint32_t kLeast[] = {0x80, 0x800, 0x10000};
    if (code < kLeast[length - 2] || code >> 11 == 0xD800 >> 11 || code > 0x10FFFF)
      return kNoCharacter;
    at += length - 1;
    return code;
  }
  SPANALLOC_COLD void put_escaped(std::uint32_t code) {
    if (code >= ' ' && code < 0x7F) {
      if (code == '"' || code == '\\') put('\\');
      put(static_cast<char>(code));
    } else if (code < 0x10000) {
      put("\\u", 2);
      for (unsigned shift = 16; shift != 0;) put("0123456789abcdef"[code >> (shift -= 4) & 15]);
    } else {
      put_escaped(0xD800 - (0x10000 >> 10) + (code >> 10));
      put_escaped(0xDC00 + (code & 0x3FF));
    }
  }
  SPANALLOC_COLD void put_number(std::uint64_t value, unsigned base) {
    char digits[20];  // of 2^64 - 1
    std::size_t at = sizeof digits;
    do {
      digits[--at] = "0123456789abcdef"[value % base];
      value /= base;
    } while (value != 0);
    put(digits + at, sizeof digits - at);
  }
  void put(char c) { put(&c, 1); }
  SPANALLOC_COLD void put(const char* text, std::size_t bytes) {
    while (bytes != 0) {
      const std::size_t part = min_of(bytes, sizeof buffer_ - used_);
      std::memcpy(buffer_ + used_, text, part);
      used_ += part;
      text += part;
      bytes -= part;
      if (used_ == sizeof buffer_) flush();
    }
  }
  void flush() {
    if (used_ != 0) write_(context_, buffer_, used_);
    used_ = 0;
  }

  const Write write_;
  void* const context_;
  unsigned depth_ = 0;
  bool is_first_ = true;   // nothing stands yet in the innermost object or array
  bool has_name_ = false;  // a value follows
  std::size_t used_ = 0;
  char buffer_[512];
};

}  // namespace spanalloc
