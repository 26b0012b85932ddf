#include "plan.hpp"

#include <cstdlib>
#include <cstring>

#include "base/bits.hpp"

namespace spanalloc::simulation {

const char* const kFeatureNames[kFeatures] = {
    "late_stores", "signals",     "forks",      "refusals", "limits",  "foreign", "locked",
    "clock",       "heaps",       "soft_limit", "realloc",  "aligned", "large",   "trim",
    "statistics",  "thread_ends", "stalls",     "sharing",  "alone",   "misuse"};

namespace {

using test::Random;

template <class T, std::size_t kCount>
T one_of(Random& random, const T (&values)[kCount]) {
  return values[random.below(kCount)];
}

// Uniform in the number of bits.
std::size_t log_uniform(Random& random, std::size_t low, std::size_t high) {
  const std::size_t bits = log2_floor(high) - log2_floor(low);
  const std::size_t base = low << random.below(bits + 1);
  return min_of(base + random.below(base), high);
}

void draw_sizes(Random& random, const Plan& plan, Phase& phase) {
  static constexpr Sizes kKinds[] = {Sizes::one,  Sizes::one,   Sizes::few,
                                     Sizes::few,  Sizes::small, Sizes::medium,
                                     Sizes::wide, Sizes::large, Sizes::pages};
  phase.sizes = one_of(random, kKinds);
  const bool large = plan.has(Feature::large);
  if (!large && (phase.sizes == Sizes::wide || phase.sizes == Sizes::large))
    phase.sizes = Sizes::few;
  for (std::size_t& size : phase.size) {
    switch (random.below(8)) {
      case 0:
        size = 1 + random.below(64);
        break;
      case 1:
      case 2:
        size = 16 * (1 + random.below(32));
        break;
      case 3:
        size = log_uniform(random, 16, 4 * kKiB);
        break;
      case 4:
        size = log_uniform(random, 1 * kKiB, 32 * kKiB);
        break;
      case 5:
        size = log_uniform(random, 4 * kKiB, large ? 256 * kKiB : 32 * kKiB);
        break;
      case 6:
        size = (std::size_t{1} << (4 + random.below(12))) - random.below(17);
        break;
      default:
        size = large ? log_uniform(random, 32 * kKiB, 2 * kMiB) : 48;
        break;
    }
  }
}

void draw_weights(Random& random, const Plan& plan, Phase& phase) {
  std::uint32_t* const weights = phase.weights;
  const auto set = [&](Operation operation, bool on, std::uint32_t weight) {
    weights[static_cast<unsigned>(operation)] = on ? weight : 0;
  };
  set(Operation::allocate_or_free, true, 1000);
  set(Operation::reallocate, plan.has(Feature::realloc), one_of(random, {0u, 50u, 400u}));
  const bool sharing = plan.has(Feature::sharing) && !random.one_in(4);
  const std::uint32_t shared = one_of(random, {30u, 200u, 800u});
  set(Operation::publish, sharing, shared);
  set(Operation::take, sharing, shared / 4);
  set(Operation::free_public, sharing, shared);
  set(Operation::ask, random.one_in(2), 20);
  set(Operation::trim, plan.has(Feature::trim), one_of(random, {0u, 2u, 20u}));
  set(Operation::statistics, plan.has(Feature::statistics), one_of(random, {0u, 1u, 5u}));
  set(Operation::document, plan.has(Feature::statistics), one_of(random, {0u, 0u, 1u}));
  set(Operation::heap, plan.has(Feature::heaps) && !random.one_in(3), one_of(random, {50u, 500u}));
  set(Operation::limit, plan.has(Feature::soft_limit), one_of(random, {0u, 3u, 20u}));
  set(Operation::fork, plan.has(Feature::forks), one_of(random, {0u, 1u, 4u}));
  set(Operation::sleep, plan.has(Feature::clock), one_of(random, {0u, 2u, 30u}));
  set(Operation::exit_soon, plan.has(Feature::thread_ends), one_of(random, {0u, 1u, 10u}));
}

void draw_schedule(Random& random, const Plan& plan, Schedule& schedule) {
  schedule.policy =
      one_of(random, {Policy::random, Policy::priorities, Policy::rare_pairs, Policy::rare_pairs});
  static constexpr std::uint32_t kGaps[] = {3, 10, 40, 200, 1000, 5000};
  schedule.gap = one_of(random, kGaps);
  if (plan.has(Feature::late_stores)) {
    schedule.stores = one_of(random, {Stores::at_once, Stores::tso, Stores::pso});
    schedule.late = static_cast<std::uint8_t>(one_of(random, {64u, 200u, 250u}));
  }
  if (plan.has(Feature::signals) && plan.has(Feature::forks))
    schedule.signal_gap = one_of(random, {0u, 300u, 3'000u, 30'000u});
  if (plan.has(Feature::stalls)) schedule.stall = one_of(random, {0u, 500u, 20'000u});
}

void draw_kernel(Random& random, const Plan& plan, Placement placement, KernelPlan& kernel) {
  kernel.placement = placement;
  if (plan.has(Feature::refusals) && random.one_in(2)) {
    kernel.refused_calls = static_cast<std::uint32_t>(random.next()) & ((1u << kCalls) - 1);
    if (random.one_in(3)) kernel.refused_calls = 1u << random.below(kCalls);
    if (random.one_in(3)) kernel.refused_calls = (1u << kCalls) - 1;
    kernel.refusal_gap = one_of(random, {1u, 3u, 10u, 40u});
    kernel.burst = one_of(random, {1u, 4u, 50u});
  }
  if (plan.has(Feature::limits) && random.one_in(2)) {
    const std::size_t limit = (1 + random.below(64)) * kMiB;
    if (random.one_in(2)) kernel.open_limit = limit;
    if (random.one_in(2)) {
      kernel.open_limit = random.below(kMiB);
      kernel.open_limit_is_more = true;
    }
    if (random.one_in(3)) kernel.space_limit = limit * one_of(random, {1u, 2u, 16u});
    if (random.one_in(3)) kernel.mappings_limit = 4 + random.below(60);
  }
  if (plan.has(Feature::foreign)) kernel.foreign = one_of(random, {0u, 8u, 100u});
  kernel.locked = plan.has(Feature::locked) && random.one_in(4);
  if (plan.has(Feature::clock)) {
    kernel.clock_gap = one_of(random, {0u, 2u, 10u, 100u});
    kernel.clock_jump = one_of(random, {1u, 20u, 600u, 10'000u});
  }
}

Phase draw_phase(Random& random, const Plan& plan, unsigned number, Placement placement) {
  Phase phase;
  phase.number = number;
  static constexpr unsigned kThreads[] = {1, 2, 2, 2, 3, 3, 4, 4, 6, 8, 16};
  phase.threads = one_of(random, kThreads);
  phase.new_threads = plan.has(Feature::thread_ends) && random.one_in(3);
  static constexpr unsigned kOperationsOf[] = {20, 100, 300, 1000};
  phase.operations = one_of(random, kOperationsOf);
  if (phase.threads > 4) phase.operations = phase.operations < 300 ? phase.operations : 300;
  draw_sizes(random, plan, phase);
  static constexpr std::size_t kTargets[] = {0, 3, 20, 100, 500};
  phase.target = one_of(random, kTargets);
  phase.swings = random.one_in(2);
  phase.order = one_of(random, {Order::random, Order::newest, Order::oldest, Order::neighbours});
  draw_weights(random, plan, phase);
  draw_schedule(random, plan, phase.schedule);
  draw_kernel(random, plan, placement, phase.kernel);
  return phase;
}

// What a phase has drawn of a feature is taken out again: the rest of the plan stays as it is.
void switch_off(Feature feature, Plan& plan) {
  plan.features &= ~(1u << static_cast<unsigned>(feature));
  if (feature == Feature::limits) plan.process.limit_at_start = 0;
  for (Phase& phase : plan.phases) {
    const auto none = [&](Operation operation) {
      phase.weights[static_cast<unsigned>(operation)] = 0;
    };
    KernelPlan& kernel = phase.kernel;
    switch (feature) {
      case Feature::late_stores:
        phase.schedule.stores = Stores::at_once;
        break;
      case Feature::signals:
        phase.schedule.signal_gap = 0;
        break;
      case Feature::forks:
        phase.schedule.signal_gap = 0;
        none(Operation::fork);
        break;
      case Feature::refusals:
        kernel.refusal_gap = 0;
        break;
      case Feature::limits:
        kernel.open_limit_is_more = false;
        kernel.open_limit = kernel.space_limit = kernel.mappings_limit = 0;
        break;
      case Feature::foreign:
        kernel.foreign = 0;
        break;
      case Feature::locked:
        kernel.locked = false;
        break;
      case Feature::clock:
        kernel.clock_gap = 0;
        none(Operation::sleep);
        break;
      case Feature::heaps:
        none(Operation::heap);
        break;
      case Feature::soft_limit:
        none(Operation::limit);
        break;
      case Feature::realloc:
        none(Operation::reallocate);
        break;
      case Feature::trim:
        none(Operation::trim);
        break;
      case Feature::statistics:
        none(Operation::statistics);
        none(Operation::document);
        break;
      case Feature::thread_ends:
        none(Operation::exit_soon);
        phase.new_threads = false;
        break;
      case Feature::stalls:
        phase.schedule.stall = 0;
        break;
      case Feature::sharing:
        none(Operation::publish);
        none(Operation::take);
        none(Operation::free_public);
        break;
      case Feature::large:
        for (std::size_t& size : phase.size) size = min_of(size, 32 * kKiB);
        if (phase.sizes == Sizes::wide || phase.sizes == Sizes::large) phase.sizes = Sizes::few;
        break;
      case Feature::misuse:
      case Feature::aligned:
      case Feature::alone:
        break;  // asked for with each operation
    }
  }
}

bool parse_number(const char*& at, std::uint64_t& out) {
  char* end = nullptr;
  if (*at < '0' || *at > '9') return false;
  out = std::strtoull(at, &end, 10);
  at = end;
  return true;
}

}  // namespace

Plan make_plan(const Spec& spec) {
  Plan plan;
  plan.spec = spec;
  Random random(spec.seed * 0x9E3779B97F4A7C15u + 1);
  for (unsigned f = 0; f < kFeatures; ++f) {
    if (random.below(3) != 0) plan.features |= 1u << f;
  }
  if (random.one_in(4)) plan.features |= 1u << static_cast<unsigned>(Feature::clock);
  if (!random.one_in(8)) plan.features &= ~(1u << static_cast<unsigned>(Feature::misuse));
  static constexpr unsigned kCpus[] = {1, 2, 2, 4, 8, 40};
  plan.process.cpus = one_of(random, kCpus);
  if (random.one_in(3)) plan.process.decay_ms = one_of(random, {0u, 1u, 20u, 100'000u});
  if (random.one_in(4)) plan.process.arena_bits = 30 + random.below(8);
  plan.process.sequences = !random.one_in(4);
  if (plan.has(Feature::limits) && random.one_in(4))
    plan.process.limit_at_start = (16 + random.below(200)) * kMiB;
  // A range that is opened piece by piece, with others' mappings in its way.
  const bool limited_among_others = plan.process.limit_at_start != 0 && random.one_in(2);
  if (limited_among_others) plan.features |= 1u << static_cast<unsigned>(Feature::foreign);
  plan.most_bytes = (std::size_t{4} << random.below(4)) * kMiB;
  const auto placement = one_of(
      random, {Placement::downward, Placement::upward, Placement::scattered, Placement::reused});
  const unsigned phases = 2 + static_cast<unsigned>(random.below(5));
  for (unsigned p = 0; p < phases; ++p) {
    Phase phase = draw_phase(random, plan, p, placement);
    if ((spec.phases >> p & 1) == 0) continue;
    if (limited_among_others) phase.kernel.foreign = 100;
    if (phase.threads > spec.threads) phase.threads = spec.threads;
    if (phase.operations > spec.operations) phase.operations = spec.operations;
    // It stands for as long as the process runs.
    const std::size_t limit = plan.process.limit_at_start;
    std::size_t& phases_limit = phase.kernel.space_limit;
    if (limit != 0 && (phases_limit == 0 || phases_limit > limit)) phases_limit = limit;
    plan.phases.push_back(phase);
  }
  // Enough for what bounds of dirty memory are about.
  if (plan.has(Feature::large) && random.one_in(8)) {
    plan.most_bytes *= 8;
    // (An arena of 1 GiB may be too small for it: supermalloc's addresses have a size for good.)
    plan.process.arena_bits = 0;
  }
  for (unsigned f = 0; f < kFeatures; ++f) {
    if ((spec.off >> f & 1) != 0) switch_off(static_cast<Feature>(f), plan);
  }
  return plan;
}

std::string Spec::text() const {
  std::string out = std::to_string(seed);
  const Spec plain;
  char separator = ':';
  const auto add = [&](const std::string& item) {
    out += separator;
    out += item;
    separator = ',';
  };
  if (phases != plain.phases) {
    std::string list;
    for (unsigned p = 0; p < 32; ++p) {
      if ((phases >> p & 1) != 0) list += (list.empty() ? "" : "+") + std::to_string(p);
    }
    add("phases=" + list);
  }
  if (threads != plain.threads) add("threads=" + std::to_string(threads));
  if (operations != plain.operations) add("ops=" + std::to_string(operations));
  if (off != 0) {
    std::string list;
    for (unsigned f = 0; f < kFeatures; ++f) {
      if ((off >> f & 1) != 0) list += (list.empty() ? "" : "+") + std::string(kFeatureNames[f]);
    }
    add("off=" + list);
  }
  if (schedule != 0) add("schedule=" + std::to_string(schedule));
  return out;
}

bool parse(const char* text, Spec& out) {
  out = Spec{};
  std::uint64_t number = 0;
  if (!parse_number(text, out.seed)) return false;
  if (*text == '\0') return true;
  if (*text++ != ':') return false;
  for (;;) {
    const char* const equals = std::strchr(text, '=');
    if (equals == nullptr) return false;
    const std::string key(text, equals);
    text = equals + 1;
    if (key == "phases") {
      out.phases = 0;
      do {
        if (*text == '+') ++text;
        if (!parse_number(text, number) || number > 31) return false;
        out.phases |= 1u << number;
      } while (*text == '+');
    } else if (key == "off") {
      do {
        if (*text == '+') ++text;
        const std::size_t length = std::strcspn(text, "+,");
        unsigned f = 0;
        while (f < kFeatures && (std::strlen(kFeatureNames[f]) != length ||
                                 std::strncmp(kFeatureNames[f], text, length) != 0))
          ++f;
        if (f == kFeatures) return false;
        out.off |= 1u << f;
        text += length;
      } while (*text == '+');
    } else {
      if (!parse_number(text, number)) return false;
      if (key == "threads" && number != 0) {
        out.threads = static_cast<unsigned>(number);
      } else if (key == "ops") {
        out.operations = static_cast<unsigned>(number);
      } else if (key == "schedule") {
        out.schedule = number;
      } else {
        return false;
      }
    }
    if (*text == '\0') return true;
    if (*text++ != ',') return false;
  }
}

}  // namespace spanalloc::simulation
