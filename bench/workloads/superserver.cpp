// superserver: a server whose objects range over five orders of magnitude and die in another
// thread.
//
// Source: SuperMalloc (Kuszmaul, ISMM 2015) section 9, "SuperServer", and Figure 12. For each
// allocation a coin decides k: k = m with probability 1/2^m, but at least 4; the size is uniform in
// [2^k, 2^(k+1)). "Each object's expected lifetime is proportional to its size. The object will, at
// the end of its life, be freed by a randomly chosen other thread." The paper reports user, system
// and elapsed time, peak memory, and the slowest malloc and free, on 8 hardware threads (about 12
// s, 0.9 to 1.9 GiB). It gives neither the number of allocations, nor the factor between size and
// lifetime, nor the largest size, nor how an object reaches the thread that frees it. The author's
// server.cc tells more: sizes below 8 MiB; of an object that dies only the header of 32
// bytes is freed, by another thread, and the data never, so that the memory is what was allocated
// in ten seconds; every byte is written, within the time of the call.
//   --expired kept --write all --max-k 22
//
// Ours: lifetimes in Larson's manner. A thread has `slots` places for each k above 4 and 15 times
// as many for k = 4; an object takes a random place of its k, and the one that had it dies: a
// lifetime is geometric, of mean slots x 2^k allocations of the thread. k is at most 20 (2 MiB),
// as without a bound the mean size is infinite. The dead go to the inbox of a random other thread
// (one thread alone: its own), linked through their first word, 16 at a time, so that what the
// workload itself shares does not hide the allocator; a thread empties its inbox after every 16
// allocations, and at the end frees what it still has. The mail is bounded: who finds 4096
// objects in the inbox of another empties its own and gives way until that one has looked, and
// who has allocated all goes on emptying its own until all have. So peak memory does not depend
// on which thread the system happens to stop. Live bytes are all that have not been freed, those
// in the mail too; they are summed over the threads after every 1024 allocations of each. The
// number of allocations is fixed. One word in every page is written and, at the free, checked. An
// operation is one malloc and its free. With --latency on each call is timed, and the time of the
// clock is in the elapsed time.
#include <sched.h>

#include <algorithm>
#include <deque>

#include "support/mapped_array.hpp"
#include "support/stamp.hpp"
#include "support/workload.hpp"

namespace {

constexpr unsigned kSmallestBits = 4;
constexpr std::uint64_t kSlotsFactor4 = 15;  // P(k <= 4) = 15/16 = 15 x 2^-4
// Objects, and allocations between two looks into the inbox
constexpr std::uint64_t kPost = 16;
constexpr std::uint64_t kFull =
    256 * kPost;  // objects in an inbox; about 200 KB, and beyond a time slice's worth
constexpr std::uint64_t kSample = 64 * kPost;  // allocations between two sums of the live bytes

// Every object begins with this; stamps are in the rest.
struct Object {
  union {
    // In its place: unique in the thread, so that two owners of one object are found
    std::uint64_t serial;
    Object* next;  // on its way
  };
  // Size, and 16 bits over size and address: damage must not lead outside the object
  std::uint64_t label;
};

std::uint64_t label_of(const Object* object, std::size_t size) {
  return size | (workload::stamp_word(object, size, 1) >> 48 << 48);
}

void mark(Object* object, std::size_t size, std::uint64_t serial) {
  object->serial = serial;
  object->label = label_of(object, size);
  if (size > sizeof(Object))
    workload::stamp(object, size, workload::stamp_word(object, size, 0), sizeof(Object));
}

// The size of a marked object; ends the workload where it was overwritten.
std::size_t size_of(const Object* object) {
  const std::size_t size = object->label & 0xffff'ffff'ffffu;
  workload::check(size >= sizeof(Object) && object->label == label_of(object, size),
                  "superserver: the size in an object is not what was written into it");
  return size;
}

// With --expired kept: the object is this header, and its data are a block of their own.
struct Header : Object {
  void* data;
  std::uint64_t unused;
};
static_assert(sizeof(Header) == 32);

// Objects on their way to one thread, linked.
struct Post {
  Object* first = nullptr;
  Object* last = nullptr;
  std::uint64_t count = 0;

  void add(Object* object) {
    object->next = first;
    first = object;
    if (count++ == 0) last = object;
  }
};

// Any thread puts, the owner takes everything: no order, hence one exchange and no ABA.
class alignas(workload::kCacheLine) Inbox {
 public:
  // Whether there is no room: soon, if not exactly now.
  bool full() const { return count_.load(std::memory_order_relaxed) >= kFull; }
  // The objects in `post`, which is empty afterwards.
  void put(Post& post) {
    count_.fetch_add(post.count, std::memory_order_relaxed);
    Object* head = head_.load(std::memory_order_relaxed);
    do post.last->next = head;
    while (!head_.compare_exchange_weak(head, post.first, std::memory_order_release,
                                        std::memory_order_relaxed));
    post = {};
  }
  Object* take_all() {
    return head_.load(std::memory_order_relaxed)
               ? head_.exchange(nullptr, std::memory_order_acquire)
               : nullptr;
  }
  // So many of those taken have been freed.
  void freed(std::uint64_t n) { count_.fetch_sub(n, std::memory_order_relaxed); }

 private:
  std::atomic<Object*> head_{nullptr};
  std::atomic<std::uint64_t> count_{0};  // sent and not yet freed
};

// What one thread allocated less what it freed, whoever allocated that; only the sum over all
// threads means anything. In an own line, as the others read it.
struct alignas(workload::kCacheLine) Balance {
  std::atomic<std::int64_t> bytes{0};
};

// All that the threads share, and their tables.
struct Shared {
  explicit Shared(std::uint64_t threads)
      : inboxes(threads), balances(threads), mallocs(threads), frees(threads) {}
  std::vector<Inbox> inboxes;
  std::vector<Balance> balances;
  workload::MappedArray<workload::Histogram> mallocs, frees;
  std::atomic<std::uint64_t> done{0};  // threads that have allocated all
};

struct Parameters {
  std::uint64_t threads, allocations, slots;
  unsigned largest_bits;
  bool latency, keeps_data, writes_all;
};

class alignas(workload::kCacheLine) Server {
 public:
  Server(const Parameters& p, std::uint64_t index, Shared& shared)
      : p_(p),
        index_(index),
        shared_(shared),
        inboxes_(shared.inboxes),
        random_(index + 1),
        serial_(index << 40),
        places_(first_place(p.largest_bits + 1)),
        posts_(p.threads),
        mallocs_(shared.mallocs[index]),
        frees_(shared.frees[index]) {}

  void run() {
    for (std::uint64_t i = 1; i <= p_.allocations; ++i) {
      allocate();
      if (i % kPost == 0) empty_inbox();
      if (i % kSample == 0) sum_live();
    }
    for (std::uint64_t to = 0; to < p_.threads; ++to)
      if (posts_[to].count > 0) deliver(to);
    sum_live();
    // Release: what was sent before is there for who sees the count.
    shared_.done.fetch_add(1, std::memory_order_release);
    while (shared_.done.load(std::memory_order_acquire) < p_.threads) {
      empty_inbox();
      sched_yield();
    }
    end();
  }

  // The most bytes alive that this thread saw, in all threads together.
  std::int64_t peak() const { return peak_; }
  std::uint64_t freed() const { return freed_; }
  // Of objects that this thread destroyed, but not their data.
  std::int64_t kept() const { return kept_; }

 private:
  // Once no thread allocates any more. What never expired is freed, its data, too.
  void end() {
    for (const Place& place : places_) {
      if (!place.object) continue;
      leave(place);
      if (p_.keeps_data) {
        std::free(static_cast<Header*>(place.object)->data);
        const auto size = static_cast<std::int64_t>(size_of(place.object));
        balance_ -= size;
        kept_ -= size;  // destroy() adds it
      }
      destroy(place.object);
    }
    empty_inbox();
  }

  struct Place {
    Object* object = nullptr;
    std::uint64_t serial = 0;
  };

  // Places of one k follow those of the k before.
  std::size_t first_place(unsigned k) const {
    return k == kSmallestBits ? 0 : p_.slots * (kSlotsFactor4 + k - kSmallestBits - 1);
  }
  std::uint64_t places_of(unsigned k) const {
    return k == kSmallestBits ? p_.slots * kSlotsFactor4 : p_.slots;
  }

  void allocate() {
    const unsigned k = std::max(coin_flips(), kSmallestBits);
    const std::size_t size = (std::size_t{1} << k) + random_.below(std::size_t{1} << k);
    Object* const object = p_.keeps_data ? make_header(size) : make_object(size);
    balance_ += static_cast<std::int64_t>(size);
    const Place newcomer{object, serial_};
    const Place dead =
        std::exchange(places_[first_place(k) + random_.below(places_of(k))], newcomer);
    if (dead.object) {
      leave(dead);
      send(dead.object, undertaker());
    }
  }

  Object* make_object(std::size_t size) {
    auto* const object = static_cast<Object*>(allocate_bytes(size));
    mark(object, size, ++serial_);
    return object;
  }
  Object* make_header(std::size_t size) {
    void* const header = std::malloc(sizeof(Header));
    workload::check(header != nullptr, "superserver: malloc returned null");
    auto* const object = new (header) Header;
    object->serial = ++serial_;
    object->label = label_of(object, size);
    object->data = allocate_bytes(size);
    return object;
  }
  void* allocate_bytes(std::size_t size) {
    void* const bytes = timed(mallocs_, [&] {
      void* const p = std::malloc(size);
      if (p_.writes_all && p != nullptr) __builtin_memset(p, 3, size);
      return p;
    });
    workload::check(bytes != nullptr, "superserver: malloc returned null");
    return bytes;
  }

  // The object in `place` dies, by the hand of the thread that allocated it.
  void leave(const Place& place) {
    workload::check(place.object->serial == place.serial,
                    "superserver: an object does not hold its owner's number");
  }

  void publish() { shared_.balances[index_].bytes.store(balance_, std::memory_order_relaxed); }
  void sum_live() {
    publish();
    std::int64_t sum = 0;
    for (const Balance& b : shared_.balances) sum += b.bytes.load(std::memory_order_relaxed);
    peak_ = std::max(peak_, sum);
  }

  // m with probability 1/2^m; above the largest k is drawn again.
  unsigned coin_flips() {
    unsigned m;
    do m = static_cast<unsigned>(std::countr_zero(random_.next())) + 1;
    while (m > p_.largest_bits);
    return m;
  }

  // A random other thread.
  std::uint64_t undertaker() {
    if (p_.threads == 1) return 0;
    const std::uint64_t other = random_.below(p_.threads - 1);
    return other + (other >= index_ ? 1 : 0);
  }

  void send(Object* dead, std::uint64_t to) {
    posts_[to].add(dead);
    if (posts_[to].count == kPost) deliver(to);
  }

  // Emptying the own inbox meanwhile, as its senders may wait for that.
  void deliver(std::uint64_t to) {
    while (inboxes_[to].full()) {
      empty_inbox();
      if (to != index_) sched_yield();
    }
    inboxes_[to].put(posts_[to]);
  }

  void empty_inbox() {
    std::uint64_t count = 0;
    for (Object* object = inboxes_[index_].take_all(); object; ++count) {
      Object* const next = object->next;
      destroy(object);
      object = next;
    }
    if (count > 0) inboxes_[index_].freed(count);
    publish();
  }

  void destroy(Object* object) {
    const std::size_t size = size_of(object);
    if (p_.keeps_data) {
      kept_ += static_cast<std::int64_t>(size);
    } else {
      const std::uint64_t word = workload::stamp_word(object, size, 0);
      workload::check(
          size == sizeof(Object) || workload::stamped(object, size, word, sizeof(Object)),
          "superserver: an object does not hold what was written into it");
      balance_ -= static_cast<std::int64_t>(size);
    }
    object->label = 0;  // a second holder finds it
    timed(frees_, [&] {
      std::free(object);
      return nullptr;
    });
    ++freed_;
  }

  template <class Call>
  void* timed(workload::Histogram& histogram, Call call) {
    if (!p_.latency) return call();
    const std::uint64_t begin = workload::now_ns();
    void* const result = call();
    histogram.record(workload::now_ns() - begin);
    return result;
  }

  const Parameters& p_;
  const std::uint64_t index_;
  Shared& shared_;
  std::vector<Inbox>& inboxes_;
  workload::Random random_;
  std::uint64_t serial_;
  workload::MappedArray<Place> places_;
  std::vector<Post> posts_;  // by receiver
  std::int64_t balance_ = 0;
  std::int64_t peak_ = 0;
  std::int64_t kept_ = 0;
  std::uint64_t freed_ = 0;
  workload::Histogram& mallocs_;
  workload::Histogram& frees_;
};

}  // namespace

int main(int argc, char** argv) {
  workload::Options options(argc, argv, "superserver",
                            "SuperMalloc (ISMM 2015) section 9, Figure 12",
                            "objects of widely spread sizes, freed by random other threads");
  Parameters p;
  p.threads = options.integer("threads", 2, 1, 1024, "threads");
  p.allocations =
      options.integer("allocations", 500'000, 1, 1'000'000'000, "allocations by each thread");
  p.slots = options.integer("slots", 64, 1, 100'000,
                            "objects of one k that a thread keeps (15 times that for k = 4)");
  p.largest_bits = static_cast<unsigned>(
      options.integer("max-k", 20, kSmallestBits, 30, "largest k: sizes below 2^(k+1)"));
  p.latency = options.choice("latency", {"off", "on"}, "time every call") == 1;
  p.keeps_data =
      options.choice("expired", {"freed", "kept"}, "what becomes of an expired object's data") == 1;
  p.writes_all = options.choice("write", {"stamps", "all"},
                                "what is written of an object; all: within the timed call") == 1;
  options.done();

  Shared shared(p.threads);
  std::deque<Server> servers;
  for (std::uint64_t i = 0; i < p.threads; ++i) servers.emplace_back(p, i, shared);
  const std::uint64_t elapsed =
      workload::run_threads(p.threads, [&](std::uint64_t i) { servers[i].run(); });

  std::uint64_t freed = 0;
  std::int64_t peak = 0, alive = 0;
  for (const Server& server : servers) {
    freed += server.freed();
    peak = std::max(peak, server.peak());
  }
  for (const Balance& balance : shared.balances) alive += balance.bytes.load();
  for (const Server& server : servers) alive -= p.keeps_data ? server.kept() : 0;
  workload::check(alive == 0, "superserver: bytes alive at the end");
  workload::Histogram& mallocs = shared.mallocs[0];
  workload::Histogram& frees = shared.frees[0];
  for (std::uint64_t i = 1; i < p.threads; ++i) {
    mallocs.merge(shared.mallocs[i]);
    frees.merge(shared.frees[i]);
  }
  workload::check(freed == p.threads * p.allocations, "superserver: objects were lost");

  workload::Record record(options, p.threads);
  if (p.latency) {
    record.latency("malloc", mallocs);
    record.latency("free", frees);
    record.metric("malloc_p9999_ns", mallocs.percentile(0.9999));
    record.metric("malloc_max_ns", mallocs.max());
    record.metric("free_p9999_ns", frees.percentile(0.9999));
    record.metric("free_max_ns", frees.max());
  }
  record.print(freed, elapsed, peak);
}
