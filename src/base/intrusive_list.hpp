// A doubly linked list of elements that keep their neighbours themselves, so that any of them is
// linked and unlinked in constant time. Not synchronised: as its owner says.
//
// An element is a pointer, or a number whose record stands in a table; the zero value is none.
// Where an element keeps its neighbours is told by `links`: links.next(e) and links.previous(e)
// return what can be read and assigned. The list's head is a plain word, or an atomic one that
// others look at for a hint.
//
// Invariant: first() has no previous element, and next(previous(e)) == e ==
// previous(next(e)) where they are.
#pragma once

#include "base/assert.hpp"
#include "base/atomic.hpp"

namespace spanalloc {

/// Links of elements that are pointers: two members of the element.
template <class T, auto kNext, auto kPrevious>
struct MemberLinks {
  auto& next(T* element) const { return element->*kNext; }
  auto& previous(T* element) const { return element->*kPrevious; }
};

/// Zero-initialisable.
template <class Element, class Head = Plain<Element>>
class IntrusiveList {
 public:
  Element first() const {
    if constexpr (requires { head_.load_relaxed(); }) {
      return head_.load_relaxed();
    } else {
      return head_;
    }
  }
  bool is_empty() const { return first() == Element{}; }
  /// Nothing is linked; the elements' own links stay as they are.
  void forget() { set_first(Element{}); }

  template <class Links>
  void push_front(Element element, const Links& links) {
    const Element second = first();
    SPANALLOC_ASSERT(element != Element{} && element != second);
    links.previous(element) = Element{};
    links.next(element) = second;
    if (second != Element{}) links.previous(second) = element;
    set_first(element);
  }

  /// `before` is in this list.
  template <class Links>
  void insert_behind(Element before, Element element, const Links& links) {
    const Element next = links.next(before);
    links.previous(element) = before;
    links.next(element) = next;
    if (next != Element{}) links.previous(next) = element;
    links.next(before) = element;
  }

  /// `element` is in this list.
  template <class Links>
  void remove(Element element, const Links& links) {
    const Element next = links.next(element);
    const Element previous = links.previous(element);
    SPANALLOC_ASSERT(next == Element{} || links.previous(next) == element);
    SPANALLOC_ASSERT(previous == Element{} ? first() == element : links.next(previous) == element);
    if (next != Element{}) links.previous(next) = previous;
    if (previous != Element{}) {
      links.next(previous) = next;
    } else {
      set_first(next);
    }
  }

 private:
  void set_first(Element element) {
    if constexpr (requires { head_.store_relaxed(element); }) {
      head_.store_relaxed(element);
    } else {
      head_ = element;
    }
  }

  Head head_{};
};

}  // namespace spanalloc
