#include "base/intrusive_list.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "seed_report.hpp"

namespace spanalloc {
namespace {

struct Node {
  Node* next = nullptr;
  Node* previous = nullptr;
};
constexpr MemberLinks<Node, &Node::next, &Node::previous> kMemberLinks;

// Both ways along the list.
template <class List, class Links, class Element>
void expect_elements(const List& list, const Links& links, const std::vector<Element>& expected) {
  EXPECT_EQ(list.is_empty(), expected.empty());
  Element previous{};
  Element at = list.first();
  for (const Element& element : expected) {
    ASSERT_EQ(at, element);
    EXPECT_EQ(links.previous(at), previous);
    previous = at;
    at = links.next(at);
  }
  EXPECT_EQ(at, Element{});
}

TEST(IntrusiveList, LinksAtTheFrontAndUnlinksAnywhere) {
  IntrusiveList<Node*> list;
  std::vector<Node> nodes(20);
  std::vector<Node*> linked;
  std::mt19937 random(test::seed_of(1));
  for (int i = 0; i < 2000; ++i) {
    Node* const node = &nodes[random() % nodes.size()];
    const auto at = std::find(linked.begin(), linked.end(), node);
    if (at == linked.end()) {
      list.push_front(node, kMemberLinks);
      linked.insert(linked.begin(), node);
    } else {
      list.remove(node, kMemberLinks);
      linked.erase(at);
    }
    expect_elements(list, kMemberLinks, linked);
  }
}

TEST(IntrusiveList, ForgetsWithoutALookAtTheElements) {
  IntrusiveList<Node*> list;
  Node first;
  Node second;
  list.push_front(&first, kMemberLinks);
  list.push_front(&second, kMemberLinks);
  list.forget();
  EXPECT_TRUE(list.is_empty());
  EXPECT_EQ(second.next, &first) << "links stay as they are";
  list.push_front(&first, kMemberLinks);
  expect_elements(list, kMemberLinks, std::vector<Node*>{&first});
}

// Elements that are numbers of records in a table, under a head that others read for a hint.
TEST(IntrusiveList, ElementsMayBeNumbers) {
  struct Links {
    std::vector<std::uint32_t>& next_of;
    std::vector<std::uint32_t>& previous_of;
    std::uint32_t& next(std::uint32_t n) const { return next_of[n]; }
    std::uint32_t& previous(std::uint32_t n) const { return previous_of[n]; }
  };
  std::vector<std::uint32_t> next_of(4);
  std::vector<std::uint32_t> previous_of(4);
  const Links links{next_of, previous_of};
  IntrusiveList<std::uint32_t, Atomic<std::uint32_t>> list;
  for (const std::uint32_t n : {1u, 2u, 3u}) list.push_front(n, links);
  expect_elements(list, links, std::vector<std::uint32_t>{3, 2, 1});
  list.remove(2u, links);
  list.remove(3u, links);
  expect_elements(list, links, std::vector<std::uint32_t>{1});
}

}  // namespace
}  // namespace spanalloc
