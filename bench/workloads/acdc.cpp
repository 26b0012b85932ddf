// acdc: objects with lifetimes in steps of time, kept as lists and trees, local to a
// thread or shared by all.
//
// After: Aigner, Kirsch: ACDC: Towards a Universal Mutator for Benchmarking Heap Management Systems
// (ISMM 2013), in the configurations of scalloc (OOPSLA 2015):
//   7.3 producer-consumer: 16 to 512 bytes, every object shared with all threads; all access it,
//   the last
//       to do so frees it (a free is remote with probability 1 - 1/threads).
//       --low 16 --high 513 --shared 100
//   7.5 object sizes: x from 4 to 20 by 2; a step allocates 2^x KB of objects of [2^x, 2^(x+2))
//   bytes,
//       accesses them and frees those of the step before; 30 steps, 40 threads.
//       --low 2^x --high 2^(x+2) --step-kib 2^x
//   7.6 spatial locality: 16 to 32 bytes, 0 to 100 % lists; a list is accessed first in, first out,
//   in
//       the order of allocation; a tree, allocated depth first from left to right, is accessed
//       depth first from right to left. --low 16 --high 33 --lists 0..100; baseline --compact 1:
//       contiguous memory, objects rounded up to 8 bytes (by size: not), no other overhead, instead
//       of the allocator
//   7.7.1 virtual spans: 7.5 under the ablations.
// The paper does not give the bytes of a step and the lifetimes of 7.3 and 7.6: they are in the
// scripts of the authors' cksystemsgroup/scalloc-artifact. What the suite takes for them, and by
// which factor it shortens 7.5, stands in bench/spanalloc_bench/cases/acdc.py. Sizes are uniform in
// the interval.
//
// Sets as cksystemsgroup/ACDC makes them: --sets-by size. All objects of a set have one size, of a
// class [2^k, 2^(k+1)) that is drawn first; of n classes and L lifetimes, a set of the k-th class
// and the l-th lifetime, both from 0, has (n - k + 1)^2 x (L - l)^2 objects. A step makes sets
// until it has allocated --step-bytes. --access-every N: what lives is accessed after each N-th
// set, and not once a step (ACDC's own: 1). Of a set's objects --write percent are written, all of
// their bytes, with each access, and of the others only the links. What differs: its threads write
// shared objects with each access, ours when they are made; its threads wait for one another with
// each L-th step, ours with each. (Of these sets nothing that --sets says is heeded.)
//
// A step of a thread, else: (1) allocate --step-kib of objects in --sets sets, all objects of a
// set with one lifetime of --min-lifetime to --max-lifetime further steps; link them and write
// them; (2) --passes times access everything that lives; (3) free the sets whose last step this
// is. An access follows the set's links and reads one word in every cache line of an object; an
// object of the thread's own is also written. With shared objects all threads start step (2)
// together, walk the owners in an order drawn anew each step, and count visitors an object.
//
// Time is measured in parts, means over the threads:
//   allocator_s  in malloc and free alone: pointers and sizes lie in tables made before
//   build_s      linking and the first write of new objects: where first touches of fresh pages are
//                paid
//   access_s     the accesses of step (2)
//   allocator_build_s  the sum of the first two: what the allocator is answerable for in malloc, in
//                      free and in the first write of what it hands out
// --interval says how often malloc and free are timed. `set` opens an interval for every set that a
// thread makes, and one for every set in its last step, also where this thread frees none of it:
// with many threads and small sets those readings of the clock are most of what is timed. `step`
// frees what a thread has to free in a step in one interval, and opens none where there is nothing.
// --warm-up: the first so many steps are in none of these parts, nor in what tools count that look
// at the program from outside (measured_part_starts in support/workload.hpp); elapsed_s and
// operations are of all steps. All threads meet after them. mean_rss_kib is the mean of RSS + page
// tables, less the workload's own tables, at the end of up to 64 steps spread evenly over the run
// (with --sets-by size, as ACDC does, before the frees, and not of the first 2 L steps), sampled by
// the first thread outside those parts; base_rss_kib is the same before the first step.
// mean_page_tables_kib and base_page_tables_kib: what page tables are of these.
// remote_frees_percent: frees by a thread that did not allocate the object.
//
// Operations: objects allocated, each freed by the end. Every link carries the set's tag, every
// word of an object its expected value; all are checked in each access and before the free.
#include <algorithm>
#include <bit>
#include <numeric>

#include "support/mapped_array.hpp"
#include "support/resident.hpp"
#include "support/workload.hpp"

namespace {

using workload::MappedArray;

struct Parameters {
  std::uint64_t threads, steps, step_bytes, low, high, min_lifetime, max_lifetime;
  std::uint64_t shared_percent, list_percent, sets, passes, warm_up, write_percent, access_every;
  bool compact, step_intervals, sets_by_size;

  // Classes of sizes by powers of two; of sets by size only.
  unsigned classes() const {
    return static_cast<unsigned>(std::bit_width(high - 1) - std::bit_width(low)) + 1;
  }
  std::uint64_t objects_of_set(unsigned k, std::uint64_t lifetime) const {
    const std::uint64_t by_size = classes() - k + 1;
    const std::uint64_t by_lifetime = max_lifetime - lifetime + 1;
    return by_size * by_size * by_lifetime * by_lifetime;
  }
  bool is_written(std::uint64_t index) const {
    return write_percent != 0 && index % (100 / write_percent) == 0;
  }
  std::uint64_t set_bytes() const {
    if (!sets_by_size) return step_bytes / sets > 0 ? step_bytes / sets : 1;
    std::uint64_t most = 0;
    for (unsigned k = 0; k < classes(); ++k)
      most = std::max(most, objects_of_set(k, min_lifetime) * (low << (k + 1)));
    return most;
  }
  // Of a step.
  std::uint64_t max_sets() const {
    if (!sets_by_size) return sets;
    std::uint64_t least = UINT64_MAX;
    for (unsigned k = 0; k < classes(); ++k)
      least = std::min(least, objects_of_set(k, max_lifetime) * (low << k));
    return step_bytes / least + 1;
  }
  // Of a set.
  std::uint64_t max_objects() const {
    return sets_by_size ? objects_of_set(0, min_lifetime) : set_bytes() / low + 1;
  }
  // Objects that are freed in one interval at most.
  std::uint64_t max_freed() const {
    return step_intervals ? std::max<std::uint64_t>(max_objects(), 4096) : max_objects();
  }
  // Steps whose sets may live or be read at once, and one more: what a slow thread still reads, a
  // fast one that is already in the next step does not write.
  std::uint64_t ring() const { return max_lifetime + 2; }
};

// Objects that are born together, linked to each other, and die together. Written by its owner
// before the barrier of its first step, read by all afterwards; `version` is the owner's.
struct Set {
  unsigned char* root;
  std::uint64_t seed;
  std::uint64_t count;
  std::uint64_t bytes;
  std::uint64_t death;                   // the last step in which it is accessed
  std::uint64_t version;                 // writes that each object has seen
  std::uint64_t size;                    // of each object; 0: each has its own
  std::atomic<std::uint32_t>* visitors;  // an object's threads yet to come in its last step
  unsigned char* region;                 // with --compact
  bool list, shared;

  std::uint64_t tag() const { return (seed >> 48) | 1; }
};

// ---- an object: links, then words to access ----
// Bytes 0 to 15: links, the set's tag above a 48-bit address; a list uses the first. Then a word at
// byte 16 and every 64 bytes from there, and one at the end.

constexpr std::size_t kLinks = 16;
constexpr unsigned kAddressBits = 48;

std::uint64_t load(const unsigned char* at) {
  std::uint64_t word;
  __builtin_memcpy(&word, at, sizeof word);
  return word;
}
void store(unsigned char* at, std::uint64_t word) {
  __builtin_memcpy(at, &word, sizeof word);
}

std::uint64_t link_word(const Set& set, const unsigned char* to) {
  const auto address = reinterpret_cast<std::uintptr_t>(to);
  workload::check(address >> kAddressBits == 0, "acdc: an address of more than 48 bits");
  return set.tag() << kAddressBits | address;
}
unsigned char* follow(const Set& set, const unsigned char* link) {
  const std::uint64_t word = load(link);
  workload::check(word >> kAddressBits == set.tag(), "acdc: a link was overwritten");
  return reinterpret_cast<unsigned char*>(word & ((std::uint64_t{1} << kAddressBits) - 1));
}

std::size_t size_of(const Parameters& p, const Set& set, std::uint64_t index) {
  if (set.size != 0) return set.size;
  return p.low + workload::Random(set.seed + index).below(p.high - p.low);
}
std::uint64_t word_of(const Set& set, std::uint64_t index) {
  return set.seed * 3 + index + set.version;
}

// Of object `index` of a set.
template <class Word>
void for_each_word(const Parameters& p, unsigned char* object, std::uint64_t index,
                   std::size_t size, Word word) {
  if (!p.is_written(index)) return;
  const std::size_t stride = p.sets_by_size ? sizeof(std::uint64_t) : workload::kCacheLine;
  for (std::size_t at = kLinks; at + 16 <= size; at += stride) word(object + at);
  if (size >= kLinks + 8) word(object + size - 8);
}

// ---- walking a set ----

struct Subtree {
  unsigned char* root;
  std::uint64_t index, count;
};

// Calls visit(object, index) for each object, whose links have been read
// before: it may free the object.
template <class Visit>
void walk_list(const Set& set, Visit visit) {
  unsigned char* object = set.root;
  for (std::uint64_t i = 0; i < set.count; ++i) {
    workload::check(object != nullptr, "acdc: a list lost objects");
    unsigned char* const next = follow(set, object);
    visit(object, i);
    object = next;
  }
  workload::check(object == nullptr, "acdc: a list gained objects");
}
template <class Visit>
void walk_tree(const Set& set, Visit visit) {
  Subtree pending[64];
  std::size_t top = 0;
  pending[top++] = {set.root, 0, set.count};
  while (top > 0) {
    const Subtree t = pending[--top];
    if (t.count == 0) {
      workload::check(t.root == nullptr, "acdc: a tree gained objects");
      continue;
    }
    workload::check(t.root != nullptr, "acdc: a tree lost objects");
    const std::uint64_t left = (t.count - 1) / 2;
    pending[top++] = {follow(set, t.root), t.index + 1, left};
    pending[top++] = {follow(set, t.root + 8), t.index + 1 + left, t.count - 1 - left};
    visit(t.root, t.index);
  }
}
template <class Visit>
void walk(const Set& set, Visit visit) {
  if (set.list)
    walk_list(set, visit);
  else
    walk_tree(set, visit);
}

void check_words(const Parameters& p, const Set& set, unsigned char* object, std::uint64_t index) {
  const std::uint64_t expected = word_of(set, index);
  for_each_word(p, object, index, size_of(p, set, index), [&](unsigned char* at) {
    workload::check(load(at) == expected, "acdc: an object was overwritten");
  });
}

// ---- a thread ----

struct alignas(workload::kCacheLine) Worker {
  Worker(const Parameters& parameters, std::uint64_t number_)
      : p(parameters),
        number(number_),
        random(number_ + 1),
        max_sets(p.max_sets()),
        sets(p.ring() * max_sets),
        made(p.ring()),
        objects(p.max_freed()),
        sizes(p.max_objects()),
        order(p.threads) {
    std::iota(order.data(), order.data() + p.threads, std::uint64_t{0});
    // Counters of two sets share no line.
    const std::uint64_t counters = (p.max_objects() + 15) / 16 * 16;
    if (p.shared_percent > 0)
      visitors = MappedArray<std::atomic<std::uint32_t>>(sets.size() * counters);
    const std::uint64_t region = p.set_bytes() + p.high + 8 * p.max_objects();
    if (p.compact && !p.sets_by_size)
      memory = MappedArray<unsigned char>(sets.size() * ((region + 63) / 64 * 64), false);
    for (std::uint64_t i = 0; i < sets.size(); ++i) {
      if (p.shared_percent > 0) sets[i].visitors = visitors.data() + i * counters;
      if (p.compact && !p.sets_by_size)
        sets[i].region = memory.data() + i * ((region + 63) / 64 * 64);
    }
  }
  Set& set(std::uint64_t step, std::uint64_t k) { return sets[step % p.ring() * max_sets + k]; }
  // How many sets a step has made.
  std::uint64_t& made_in(std::uint64_t step) { return made[step % p.ring()]; }

  // The owner's sets that live in `step`, and are of `youngest` or more steps before it.
  template <class Each>
  void for_each_live(std::uint64_t step, std::uint64_t youngest, Each each) {
    for (std::uint64_t age = youngest; age <= p.max_lifetime && age <= step; ++age)
      for (std::uint64_t k = 0; k < made_in(step - age); ++k)
        if (Set& s = set(step - age, k); s.count > 0 && s.death >= step) each(s);
  }

  const Parameters p;
  const std::uint64_t number;
  workload::Random random;
  workload::LiveBytes live;
  const std::uint64_t max_sets;  // of a step
  MappedArray<Set> sets;
  MappedArray<std::uint64_t> made;  // of a step of the ring
  // Of the set that is being allocated; those that are about to be freed.
  MappedArray<unsigned char*> objects;
  MappedArray<std::size_t> sizes;
  MappedArray<std::uint64_t> order;
  MappedArray<std::atomic<std::uint32_t>> visitors;
  MappedArray<unsigned char> memory;
  std::uint64_t excess = 0;  // bytes allocated beyond what the steps so far ask for
  std::uint64_t sets_made = 0;
  std::uint64_t to_free = 0;  // of `objects`
  std::uint64_t allocator_ns = 0, build_ns = 0, access_ns = 0;
  std::uint64_t allocated = 0, freed = 0, freed_remotely = 0;
};

// True for `percent` of all calls with n = 0, 1, 2, ..., evenly spread.
bool chosen(std::uint64_t n, std::uint64_t percent) {
  return (n + 1) * percent / 100 != n * percent / 100;
}

void allocate(Worker& w, Set& set) {
  if (w.p.compact) {
    if (w.p.sets_by_size) {
      set.region = static_cast<unsigned char*>(std::malloc(set.bytes));
      workload::check(set.region != nullptr, "acdc: malloc returned null");
    }
    unsigned char* next = set.region;
    for (std::uint64_t i = 0; i < set.count; ++i) {
      w.objects[i] = next;
      next += w.p.sets_by_size ? set.size : (w.sizes[i] + 7) & ~std::size_t{7};
    }
    return;
  }
  for (std::uint64_t i = 0; i < set.count; ++i) {
    w.objects[i] = static_cast<unsigned char*>(std::malloc(w.sizes[i]));
    workload::check(w.objects[i] != nullptr, "acdc: malloc returned null");
  }
}

// Links objects [index, index + count) to a tree in their order, depth first from left to
// right; returns its root.
unsigned char* link_tree(Worker& w, const Set& set, std::uint64_t index, std::uint64_t count) {
  if (count == 0) return nullptr;
  const std::uint64_t left = (count - 1) / 2;
  unsigned char* const root = w.objects[index];
  store(root, link_word(set, link_tree(w, set, index + 1, left)));
  store(root + 8, link_word(set, link_tree(w, set, index + 1 + left, count - 1 - left)));
  return root;
}

void build(Worker& w, Set& set) {
  for (std::uint64_t i = 0; i < set.count; ++i) {
    const std::uint64_t word = word_of(set, i);
    for_each_word(w.p, w.objects[i], i, w.sizes[i], [&](unsigned char* at) { store(at, word); });
    if (set.list)
      store(w.objects[i], link_word(set, i + 1 < set.count ? w.objects[i + 1] : nullptr));
    // Relaxed: the barrier of the step publishes it.
    if (set.shared)
      set.visitors[i].store(static_cast<std::uint32_t>(w.p.threads), std::memory_order_relaxed);
  }
  set.root = set.list ? w.objects[0] : link_tree(w, set, 0, set.count);
}

void fill_by_size(Worker& w, Set& set, std::uint64_t lifetime) {
  const auto k = static_cast<unsigned>(w.random.below(w.p.classes()));
  set.size = (w.p.low << k) + w.random.below(w.p.low << k);
  set.count = w.p.objects_of_set(k, lifetime);
  set.bytes = set.count * set.size;
  for (std::uint64_t i = 0; i < set.count; ++i) w.sizes[i] = set.size;
}
void fill_by_bytes(Worker& w, Set& set) {
  const Parameters& p = w.p;
  while (set.bytes + w.excess < p.set_bytes()) {
    const std::size_t size = size_of(p, set, set.count);
    w.sizes[set.count++] = size;
    set.bytes += size;
  }
  w.excess = set.bytes + w.excess - p.set_bytes();
}

void make_set(Worker& w, Set& set, std::uint64_t step) {
  const Parameters& p = w.p;
  set.seed = w.random.next();
  set.death = step + w.random.between(p.min_lifetime, p.max_lifetime);
  set.list = chosen(w.sets_made, p.list_percent);
  set.shared = chosen(w.sets_made, p.shared_percent);
  ++w.sets_made;
  set.version = set.count = set.bytes = set.size = 0;
  if (p.sets_by_size)
    fill_by_size(w, set, set.death - step);
  else
    fill_by_bytes(w, set);
  if (set.count == 0) return;

  const std::uint64_t begin = workload::now_ns();
  allocate(w, set);
  const std::uint64_t allocated = workload::now_ns();
  build(w, set);
  w.build_ns += workload::now_ns() - allocated;
  w.allocator_ns += allocated - begin;
  w.allocated += set.count;
  w.live.add(set.bytes);
}

void access_set(const Parameters& p, Set& set) {
  if (set.shared) {
    walk(set, [&](unsigned char* object, std::uint64_t i) { check_words(p, set, object, i); });
    return;
  }
  walk(set, [&](unsigned char* object, std::uint64_t i) {
    const std::uint64_t expected = word_of(set, i);
    for_each_word(p, object, i, size_of(p, set, i), [&](unsigned char* at) {
      workload::check(load(at) == expected, "acdc: an object was overwritten");
      store(at, expected + 1);
    });
  });
  ++set.version;
}

// One interval.
void free_collected(Worker& w) {
  const std::uint64_t count = std::exchange(w.to_free, 0);
  const std::uint64_t begin = workload::now_ns();
  if (!w.p.compact)
    for (std::uint64_t i = 0; i < count; ++i) std::free(w.objects[i]);
  w.allocator_ns += workload::now_ns() - begin;
}

// Frees the objects of a set in its last step: all of them, or of a shared one those that this
// thread is the last to visit. With --interval step it collects them, for the end of the step.
void bury(Worker& w, Set& set, bool own) {
  std::uint64_t count = 0;
  walk(set, [&](unsigned char* object, std::uint64_t i) {
    check_words(w.p, set, object, i);
    // Release: my reads come before its memory is used anew; acquire: so do the
    // others', where I am the last.
    if (!set.shared || set.visitors[i].fetch_sub(1, std::memory_order_acq_rel) == 1) {
      if (w.to_free == w.objects.size()) free_collected(w);
      w.objects[w.to_free++] = object;
      ++count;
    }
  });
  if (!w.p.step_intervals) free_collected(w);
  if (w.p.compact && w.p.sets_by_size) std::free(set.region);
  w.freed += count;
  if (!own) w.freed_remotely += count;
}

// ---- resident memory ----

struct ResidentKib {
  std::uint64_t all = 0, page_tables = 0;
};
ResidentKib resident_kib() {
  const workload::Resident now = workload::resident();
  const auto own = static_cast<std::int64_t>(workload::own_bytes.now);
  const std::int64_t all = std::max<std::int64_t>(now.rss + now.page_tables - own, 0);
  return {static_cast<std::uint64_t>(all / 1024),
          static_cast<std::uint64_t>(now.page_tables / 1024)};
}

struct ResidentMean {
  std::uint64_t every = 1, samples = 0;
  ResidentKib sum;
  void at_end_of(std::uint64_t step) {
    if ((step + 1) % every != 0) return;
    const ResidentKib now = resident_kib();
    sum.all += now.all;
    sum.page_tables += now.page_tables;
    ++samples;
  }
};

// ---- the run ----

// Where all threads meet after the warm-up: when the last one has come, the
// part begins that counts.
struct StartMark {
  void operator()() const noexcept { workload::measured_part_starts(); }
};
using WarmUpGate = std::barrier<StartMark>;

void run(std::vector<Worker>& workers, Worker& w, std::barrier<>& gate, WarmUpGate& warm,
         ResidentMean& resident) {
  const Parameters& p = w.p;
  const bool sharing = p.shared_percent > 0;
  std::uint64_t dying = 0;  // bytes of sets that other threads may still be burying
  // ACDC samples before the frees, once its first lifetimes have ended.
  const auto resident_at_end_of = [&](std::uint64_t step) {
    if (w.number != 0 || step >= p.steps) return;
    if (p.sets_by_size && step < 2 * (p.max_lifetime + 1) && p.steps > 2 * (p.max_lifetime + 1))
      return;
    resident.at_end_of(step);
  };
  for (std::uint64_t step = 0; step < p.steps + p.max_lifetime; ++step) {
    if (step > 0 && step == p.warm_up) {
      warm.arrive_and_wait();
      w.allocator_ns = w.build_ns = w.access_ns = 0;
    }
    // What lives, or, while the step is being made, what lived before it and the thread's own sets.
    const auto access_live = [&](bool of_step) {
      const std::uint64_t begin = workload::now_ns();
      const auto access = [&](Set& s) { access_set(p, s); };
      for (std::uint64_t i = 0; i < (sharing ? p.threads : 1); ++i) {
        const std::uint64_t owner = sharing ? w.order[i] : w.number;
        Worker& of = workers[owner];
        of.for_each_live(step, owner == w.number || of_step ? 0 : 1, [&](Set& s) {
          if (s.shared || owner == w.number) access(s);
        });
      }
      w.access_ns += workload::now_ns() - begin;
    };
    std::uint64_t& made = w.made_in(step);
    made = 0;
    if (step < p.steps) {
      std::uint64_t bytes = 0;
      while (p.sets_by_size ? bytes < p.step_bytes : made < p.sets) {
        Set& set = w.set(step, made++);
        make_set(w, set, step);
        bytes += set.bytes;
        if (p.access_every != 0 && made % p.access_every == 0) access_live(false);
      }
    }
    if (sharing) {
      gate.arrive_and_wait();
      for (std::uint64_t i = p.threads; i > 1; --i)
        std::swap(w.order[i - 1], w.order[w.random.below(i)]);
    }
    w.live.remove(std::exchange(dying, 0));

    const auto for_each_set = [&](auto each) {
      if (!sharing) return w.for_each_live(step, 0, [&](Set& s) { each(s, true); });
      for (std::uint64_t i = 0; i < p.threads; ++i) {
        const std::uint64_t owner = w.order[i];
        workers[owner].for_each_live(step, 0, [&](Set& s) {
          if (s.shared || owner == w.number) each(s, owner == w.number);
        });
      }
    };
    if (p.access_every == 0)
      for (std::uint64_t pass = 0; pass < p.passes; ++pass) access_live(true);
    if (p.sets_by_size) resident_at_end_of(step);
    for_each_set([&](Set& s, bool own) {
      if (s.death != step) return;
      bury(w, s, own);
      if (own) dying += s.bytes;
    });
    if (w.to_free > 0) free_collected(w);
    if (!sharing) w.live.remove(std::exchange(dying, 0));
    if (!p.sets_by_size) resident_at_end_of(step);
  }
}

}  // namespace

int main(int argc, char** argv) {
  workload::Options options(argc, argv, "acdc",
                            "ACDC (ISMM 2013) as configured by scalloc 7.3, 7.5, 7.6, 7.7.1",
                            "objects with lifetimes in steps, in lists and trees, local or shared");
  Parameters p{};
  p.threads = options.integer("threads", 2, 1, 1024, "threads");
  p.steps = options.integer("steps", 30, 1, 1u << 30, "steps of allocation");
  p.step_bytes =
      1024 * options.integer("step-kib", 1024, 1, 1 << 24, "KiB that a thread allocates in a step");
  if (const auto bytes =
          options.integer("step-bytes", 0, 0, 1ull << 34, "the same in bytes, if not 0");
      bytes != 0)
    p.step_bytes = bytes;
  p.low = options.integer("low", 16, 16, 1u << 30, "smallest size in bytes");
  p.high = options.integer("high", 64, 17, 1ull << 32, "sizes are below this");
  p.min_lifetime =
      options.integer("min-lifetime", 1, 0, 1000, "fewest steps that an object outlives its own");
  p.max_lifetime = options.integer("max-lifetime", 1, 0, 1000, "most steps");
  p.shared_percent =
      options.integer("shared", 0, 0, 100, "percent of the sets shared with all threads");
  p.list_percent = options.integer("lists", 100, 0, 100,
                                   "percent of the sets kept as lists, the others as trees");
  p.sets = options.integer("sets", 4, 1, 1000, "sets of a step");
  p.passes = options.integer("passes", 1, 1, 1000, "accesses of what lives in a step");
  p.sets_by_size = options.choice("sets-by", {"count", "size"}, "how sets are made") == 1;
  p.access_every = options.integer("access-every", 0, 0, 1000,
                                   "sets after which what lives is accessed; 0: once a step");
  p.write_percent = options.integer("write", 100, 0, 100, "percent of a set's objects written");
  p.compact =
      options.integer("compact", 0, 0, 1, "1: contiguous memory instead of the allocator") != 0;
  p.step_intervals =
      options.choice("interval", {"set", "step"}, "what is freed in one timed interval") == 1;
  p.warm_up = options.integer("warm-up", 0, 0, 1u << 30,
                              "steps before the times and the measured part begin");
  options.require(p.warm_up < p.steps, "--warm-up must be below --steps");
  options.require(p.low < p.high, "--low must be below --high");
  options.require(!p.sets_by_size || (std::has_single_bit(p.low) && std::has_single_bit(p.high)),
                  "--sets-by size needs powers of two for --low and --high");
  options.require(p.sets_by_size || (p.access_every == 0 && p.write_percent == 100),
                  "--access-every and --write are for --sets-by size");
  options.require(p.write_percent == 0 || 100 % p.write_percent == 0, "--write must divide 100");
  options.require(!(p.sets_by_size && p.compact) || p.shared_percent == 0,
                  "--compact 1 with --sets-by size needs --shared 0");
  options.require(p.min_lifetime <= p.max_lifetime,
                  "--min-lifetime must not exceed --max-lifetime");
  options.done();

  std::vector<Worker> workers;
  workers.reserve(p.threads);
  for (std::uint64_t i = 0; i < p.threads; ++i) workers.emplace_back(p, i);
  std::barrier<> gate(static_cast<std::ptrdiff_t>(p.threads));
  WarmUpGate warm(static_cast<std::ptrdiff_t>(p.threads));
  ResidentMean resident;
  resident.every = (p.steps + 63) / 64;
  resident_kib();  // from here on what that needs itself is resident
  const ResidentKib base = resident_kib();
  const std::uint64_t ns = workload::run_threads(
      p.threads, [&](std::uint64_t i) { run(workers, workers[i], gate, warm, resident); });

  std::uint64_t allocator = 0, building = 0, access = 0, allocated = 0, freed = 0, remotely = 0;
  for (const Worker& w : workers) {
    allocator += w.allocator_ns;
    building += w.build_ns;
    access += w.access_ns;
    allocated += w.allocated;
    freed += w.freed;
    remotely += w.freed_remotely;
  }
  workload::check(allocated == freed, "acdc: not every object was freed");
  const auto mean_s = [&](std::uint64_t sum) {
    return static_cast<double>(sum) * 1e-9 / static_cast<double>(p.threads);
  };
  workload::Record record(options, p.threads);
  record.metric("allocator_s", mean_s(allocator));
  record.metric("build_s", mean_s(building));
  record.metric("allocator_build_s", mean_s(allocator + building));
  record.metric("access_s", mean_s(access));
  record.metric("mean_rss_kib", resident.sum.all, resident.samples);
  record.metric("mean_page_tables_kib", resident.sum.page_tables, resident.samples);
  record.metric("base_rss_kib", base.all);
  record.metric("base_page_tables_kib", base.page_tables);
  record.metric("remote_frees_percent",
                freed > 0 ? 100.0 * static_cast<double>(remotely) / static_cast<double>(freed) : 0);
  record.print(allocated, ns, workload::sum_of_peaks(workers));
}
