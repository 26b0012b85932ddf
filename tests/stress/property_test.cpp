// RapidCheck: random programs of heap operations against a model of what must hold. A failure is
// shrunk to a short program and printed.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "engines.hpp"
#include "heap_user.hpp"
#include "seed_report.hpp"

namespace spanalloc::test {
namespace {

// RapidCheck draws anew in each run unless it is given a seed: ours, where RC_PARAMS has none.
const bool seeded = [] {
  const char* given = std::getenv("RC_PARAMS");
  const std::string parameters = given != nullptr ? given : "";
  if (parameters.find("seed=") == std::string::npos) {
    setenv("RC_PARAMS", (parameters + " seed=" + std::to_string(kSeed)).c_str(), 1);
  }
  return true;
}();

// One step of a program; `slot` picks the block it is about, `size` and `alignment` are
// for those that need them.
struct Step {
  enum Kind { kMalloc, kCalloc, kAligned, kRealloc, kFree, kTrim } kind;
  std::size_t slot;
  std::size_t size;
  std::size_t alignment;
};

void showValue(const Step& step, std::ostream& os) {
  static constexpr const char* kNames[] = {"malloc",  "calloc", "aligned_alloc",
                                           "realloc", "free",   "trim"};
  os << kNames[step.kind] << "(slot " << step.slot << ", " << step.size << " bytes, alignment "
     << step.alignment << ")";
}

rc::Gen<std::size_t> any_size() {
  return rc::gen::weightedOneOf<std::size_t>({
      {6, rc::gen::inRange<std::size_t>(0, 300)},
      {3, rc::gen::inRange<std::size_t>(0, 5000)},
      {2, rc::gen::inRange<std::size_t>(0, 200000)},
      {1, rc::gen::inRange<std::size_t>(0, std::size_t{4} << 20)},
  });
}

rc::Gen<Step> any_step() {
  return rc::gen::apply(
      [](int kind, std::size_t slot, std::size_t size, unsigned log_alignment) {
        return Step{static_cast<Step::Kind>(kind), slot, size, std::size_t{1} << log_alignment};
      },
      rc::gen::weightedElement<int>({{8, Step::kMalloc},
                                     {3, Step::kCalloc},
                                     {3, Step::kAligned},
                                     {4, Step::kRealloc},
                                     {8, Step::kFree},
                                     {1, Step::kTrim}}),
      rc::gen::inRange<std::size_t>(0, 40), any_size(), rc::gen::inRange(4u, 22u));
}

/// The model: which blocks are live, where, and what they contain.
template <class E>
class Model {
 public:
  using Api = MallocApi<E>;

  ~Model() {
    for (auto& block : blocks_) Api::free(block.start);
  }

  void run(const Step& step) {
    stress::Block& block = blocks_[step.slot];
    switch (step.kind) {
      case Step::kMalloc:
        release(block);
        enter(block, Api::malloc(step.size), step.size, step.size < 16 ? 8 : 16);
        break;
      case Step::kCalloc: {
        release(block);
        auto* p = static_cast<unsigned char*>(Api::calloc(1, step.size));
        RC_ASSERT(bool(p != nullptr));
        for (std::size_t i = 0; i < step.size; ++i) RC_ASSERT(p[i] == 0);
        enter(block, p, step.size, 8);
        break;
      }
      case Step::kAligned:
        release(block);
        enter(block, Api::aligned_alloc(step.alignment, step.size), step.size, step.alignment);
        break;
      case Step::kRealloc:
        resize(block, step.size == 0 ? 1 : step.size);
        break;
      case Step::kFree:
        release(block);
        break;
      case Step::kTrim:
        E::trim();
    }
  }

 private:
  void enter(stress::Block& block, void* p, std::size_t size, std::size_t alignment) {
    RC_ASSERT(bool(p != nullptr));
    block = {static_cast<unsigned char*>(p), size, ++seed_};
    const std::uintptr_t begin = address_of(p);
    RC_ASSERT(begin % alignment == 0);
    RC_ASSERT(E::owns(p));
    const std::size_t usable = E::usable_size(p);
    RC_ASSERT(usable >= size);
    // All of what is usable must lie apart from every other block.
    const auto next = live_.lower_bound(begin);
    RC_ASSERT(bool(next == live_.end() || next->first >= begin + usable));
    RC_ASSERT(bool(next == live_.begin() || std::prev(next)->second <= begin));
    live_[begin] = begin + usable;
    stress::Pattern::write(block);
  }
  void release(stress::Block& block) {
    if (block.start == nullptr) return;
    RC_ASSERT(stress::Pattern::stands(block, block.size));
    live_.erase(address_of(block.start));
    Api::free(block.start);
    block = {};
  }
  void resize(stress::Block& block, std::size_t size) {
    if (block.start == nullptr) return enter(block, Api::realloc(nullptr, size), size, 8);
    RC_ASSERT(stress::Pattern::stands(block, block.size));
    live_.erase(address_of(block.start));
    stress::Block moved = block;
    moved.start = static_cast<unsigned char*>(Api::realloc(block.start, size));
    RC_ASSERT(bool(moved.start != nullptr));
    // The pattern stands at a stride that depends on the size it was written with.
    if (block.size <= 8192)
      RC_ASSERT(stress::Pattern::stands(moved, size < block.size ? size : block.size));
    enter(block, moved.start, size, 8);
  }

  stress::Block blocks_[40] = {};
  std::map<std::uintptr_t, std::uintptr_t> live_;
  std::uint64_t seed_ = 0;
};

template <class E>
class Property : public EngineTest<E> {};
TYPED_TEST_SUITE(Property, TestedEngines, EngineNames);

TYPED_TEST(Property, AnyProgramKeepsBlocksApartAndIntact) {
  ASSERT_TRUE(seeded);
  const bool holds = rc::check([] {
    const auto program = *rc::gen::scale(1.5, rc::gen::container<std::vector<Step>>(any_step()));
    {
      Model<TypeParam> model;
      for (const Step& step : program) model.run(step);
    }
    stress::Report report;
    stress::expect_everything_returned<TypeParam>(report);
    if (report.errors() != 0) RC_FAIL(report.first());
  });
  EXPECT_TRUE(holds);
}

}  // namespace
}  // namespace spanalloc::test
