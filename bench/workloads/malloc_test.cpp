// malloc_test: K producers allocate, K consumers free.
//
// Source: SuperMalloc (Kuszmaul, ISMM 2015) section 9, Figures 6 to 8; after malloc-test of Lever
// and Boreham (FREENIX 2000). This is the paper's improved form: a producer fills a batch of 4096
// objects, in a structure that it allocates too, and puts it in a bounded queue under a mutex and
// condition variables; a consumer takes a batch and frees its objects and the structure. The paper
// runs 1 to 32 producers for a fixed time and reports objects a second; what it does not print is
// in the author's new-malloc-test.c: objects of 1024 bytes, of which nothing is written, and
// at most 100 batches waiting, of which the last one comes first.
//   --low 1024 --high 1024 --bound 100 --order lifo --stamps off
//
// Ours: batches of 4096; objects of 64 bytes (or a range), stamped; a bound of 16 batches, first
// in first out; a fixed amount of work in place of a fixed time, so that every allocator does the
// same. An operation is one malloc and its free. The floor of memory counts batches from the put
// to the end of their frees; those that are still being filled are not in it.
#include <condition_variable>
#include <mutex>

#include "support/stamp.hpp"
#include "support/workload.hpp"

namespace {

struct Batch {
  Batch* next;
  std::uint64_t number;  // unique
  std::uint64_t bytes;   // of the objects and of this structure
  std::uint64_t count;
  struct Object {
    void* address;
    std::size_t size;
  };
  // `count` objects follow.
  Object* objects() { return reinterpret_cast<Object*>(this + 1); }
  // Unique for each object, so that of two at one address only the later one's stamp is there.
  std::uint64_t salt(std::uint64_t index) const { return number * count + index; }
  static std::size_t size_for(std::uint64_t count) {
    return sizeof(Batch) + count * sizeof(Object);
  }
};

class Queue {
 public:
  Queue(std::uint64_t bound, std::uint64_t producers, bool last_in_first_out)
      : bound_(bound), producers_(producers), is_stack_(last_in_first_out) {}

  void put(Batch* batch) {
    std::unique_lock lock(mutex_);
    not_full_.wait(lock, [&] { return length_ < bound_; });
    if (is_stack_) {
      batch->next = first_;
      first_ = batch;
    } else {
      batch->next = nullptr;
      (last_ ? last_->next : first_) = batch;
      last_ = batch;
    }
    ++length_;
    live_.add(batch->bytes);
    lock.unlock();
    not_empty_.notify_one();
  }

  // The next batch; null when the queue is empty for good. `freed`: bytes of
  // the caller's batch before.
  Batch* take(std::uint64_t freed) {
    std::unique_lock lock(mutex_);
    live_.remove(freed);
    not_empty_.wait(lock, [&] { return first_ || producers_ == 0; });
    Batch* const batch = first_;
    if (!batch) return nullptr;
    first_ = batch->next;
    if (!first_) last_ = nullptr;
    --length_;
    lock.unlock();
    not_full_.notify_one();
    return batch;
  }

  void producer_done() {
    const std::lock_guard lock(mutex_);
    if (--producers_ == 0) not_empty_.notify_all();
  }

  const workload::LiveBytes& live() const { return live_; }

 private:
  std::mutex mutex_;
  std::condition_variable not_full_;
  std::condition_variable not_empty_;
  Batch* first_ = nullptr;
  Batch* last_ = nullptr;
  std::uint64_t length_ = 0;
  const std::uint64_t bound_;
  std::uint64_t producers_;
  const bool is_stack_;
  workload::LiveBytes live_;
};

struct Parameters {
  std::uint64_t producers, batches, batch, low, high, bound;
  bool last_in_first_out, stamps;
};

void produce(Queue& queue, const Parameters& p, std::uint64_t producer) {
  workload::Random random(producer + 1);
  for (std::uint64_t b = 0; b < p.batches; ++b) {
    auto* const batch = static_cast<Batch*>(std::malloc(Batch::size_for(p.batch)));
    workload::check(batch != nullptr, "malloc_test: malloc of a batch returned null");
    batch->number = producer * p.batches + b;
    batch->bytes = Batch::size_for(p.batch);
    batch->count = p.batch;
    for (std::uint64_t i = 0; i < p.batch; ++i) {
      const std::size_t size = p.low == p.high ? p.low : random.between(p.low, p.high);
      void* const object = std::malloc(size);
      workload::check(object != nullptr, "malloc_test: malloc returned null");
      if (p.stamps)
        workload::stamp(object, size, workload::stamp_word(object, size, batch->salt(i)));
      batch->objects()[i] = {object, size};
      batch->bytes += size;
    }
    queue.put(batch);
  }
  queue.producer_done();
}

// Returns the number of objects freed.
std::uint64_t consume(Queue& queue, const Parameters& p) {
  std::uint64_t objects = 0;
  std::uint64_t freed = 0;
  while (Batch* const batch = queue.take(freed)) {
    for (std::uint64_t i = 0; i < batch->count; ++i) {
      const auto [object, size] = batch->objects()[i];
      workload::check(
          !p.stamps ||
              workload::stamped(object, size, workload::stamp_word(object, size, batch->salt(i))),
          "malloc_test: an object does not hold what was written into it");
      std::free(object);
    }
    objects += batch->count;
    freed = batch->bytes;
    std::free(batch);
  }
  return objects;
}

}  // namespace

int main(int argc, char** argv) {
  workload::Options options(argc, argv, "malloc_test",
                            "SuperMalloc (ISMM 2015) section 9, Figures 6 to 8",
                            "producers allocate batches of objects, consumers free them");
  Parameters p;
  p.producers = options.integer("producers", 1, 1, 1024, "producers, and as many consumers");
  p.batches = options.integer("batches", 500, 1, 100'000'000, "batches that each producer makes");
  p.batch = options.integer("batch", 4096, 1, 1'000'000, "objects in a batch; the paper's 4096");
  p.low = options.integer("low", 64, 1, 1 << 30, "smallest object in bytes");
  p.high = options.integer("high", 64, 1, 1 << 30, "largest object in bytes");
  p.bound = options.integer("bound", 16, 1, 1'000'000, "batches that the queue holds");
  p.last_in_first_out =
      options.choice("order", {"fifo", "lifo"}, "which batch a consumer takes") == 1;
  p.stamps = options.choice("stamps", {"on", "off"}, "write into every object, and check it") == 0;
  options.require(p.low <= p.high, "--low must not exceed --high");
  options.done();

  Queue queue(p.bound, p.producers, p.last_in_first_out);
  struct alignas(workload::kCacheLine) Consumed {
    std::uint64_t objects = 0;
  };
  std::vector<Consumed> consumed(p.producers);
  const std::uint64_t elapsed = workload::run_threads(2 * p.producers, [&](std::uint64_t i) {
    if (i < p.producers)
      produce(queue, p, i);
    else
      consumed[i - p.producers].objects = consume(queue, p);
  });
  std::uint64_t objects = 0;
  for (const Consumed& c : consumed) objects += c.objects;
  workload::check(objects == p.producers * p.batches * p.batch, "malloc_test: batches were lost");
  workload::check(queue.live().now() == 0, "malloc_test: not every batch was freed");

  workload::Record(options, 2 * p.producers).print(objects, elapsed, queue.live().peak());
}
