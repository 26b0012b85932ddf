// Whether operator new and delete leave the engine: they go through the process's malloc and free
// where these are another library's, so that a tracer sees each call, and a malloc that a program
// has itself serves its operators, too. The loader has settled that before any code of this library
// runs, and it never changes.
//
// An engine's fast paths do not ask. For an operator they read one word that an engine keeps
// besides for this (a key, a table, a pointer), in the place of the one that malloc and free read:
// the same, or where the operator leaves one that no call passes. So such a call costs a hit
// nothing, and in the slow path the operator is asked whether it leaves.
#pragma once

#include <concepts>
#include <cstddef>

namespace spanalloc {

/// Defined by a library that has operators. Elsewhere none leaves. Any thread, any time.
[[gnu::weak]] bool news_leave() noexcept;
[[gnu::weak]] bool deletes_leave() noexcept;

inline bool any_new_leaves() {
  return &news_leave != nullptr && news_leave();
}
inline bool any_delete_leaves() {
  return &deletes_leave != nullptr && deletes_leave();
}

/// The caller of a function of an engine, if it may be one that leaves. What is no operator says
/// nothing.
template <class Caller>
concept OperatorNew = requires(std::size_t n) {
  { Caller::leaves() } -> std::same_as<bool>;
  { Caller::allocate_elsewhere(n) } -> std::same_as<void*>;
};
template <class Caller>
concept OperatorDelete = requires(void* p) {
  { Caller::leaves() } -> std::same_as<bool>;
  { Caller::free_elsewhere(p) };
};

template <class Caller>
concept Operator = OperatorNew<Caller> || OperatorDelete<Caller>;

/// free and the like.
struct NoOperator {};

}  // namespace spanalloc
