// A model of what the kernel does with memory: mappings, limits, refusals, and a clock.
//
// The mappings are real ones, at addresses that the model chooses, so that an access to what is not
// mapped, or not open, is a SIGSEGV. What the model knows of them it checks with each call: the
// library may only open, close or release what it has mapped.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

#include "os/os.hpp"
#include "random.hpp"

namespace spanalloc::simulation {

/// Where a mapping goes whose address is the kernel's choice.
enum class Placement : std::uint8_t {
  downward,   ///< below the one before, as Linux does
  upward,     ///< above it
  scattered,  ///< 4 GiB or more from all others, in either direction
  reused,     ///< where the last one was released, if it fits
};

enum class Call : std::uint8_t {
  reserve,
  open,
  open_at,
  reserve_at,
  close,
  release,
  map,
  unmap,
  remap,
  purge,
  renew,
  would_grant,
};
inline constexpr unsigned kCalls = 12;

struct KernelPlan {
  Placement placement = Placement::downward;
  std::uint32_t refused_calls = 0;  ///< a bit for each Call that may be refused
  std::uint32_t refusal_gap = 0;    ///< mean number of such calls between refusals; 0: none
  std::uint32_t burst = 1;          ///< how many are refused in a row
  std::uint32_t foreign = 0;        ///< of 256: somebody else maps the page behind a new mapping
  bool locked = false;              ///< mlockall(MCL_FUTURE): nothing is purged
  std::size_t space_limit = 0;      ///< bytes of addresses; 0: none
  std::size_t open_limit = 0;       ///< readable and writable bytes; 0: none
  bool open_limit_is_more = false;  ///< ... beside what is open when the phase begins
  std::size_t mappings_limit = 0;   ///< number of mappings; 0: none
  std::uint32_t clock_gap = 0;   ///< mean number of looks at the clock between jumps; 0: it stands
  std::uint64_t clock_jump = 0;  ///< the most that it jumps, in milliseconds
};

class Kernel {
 public:
  void begin(std::uint64_t seed);
  void set(const KernelPlan& plan) {
    plan_ = plan;
    if (plan.open_limit_is_more) plan_.open_limit += open_bytes_;
    burst_left_ = 0;
  }
  /// While it lives, everything is refused, and the clock stands.
  class RefuseAll {
   public:
    explicit RefuseAll(Kernel& kernel) : kernel_(kernel), before_(kernel.plan_) {
      kernel_.plan_.refused_calls = (1u << kCalls) - 1;
      kernel_.plan_.refusal_gap = 1;
      kernel_.plan_.clock_gap = 0;
    }
    ~RefuseAll() { kernel_.plan_ = before_; }
    RefuseAll(const RefuseAll&) = delete;
    RefuseAll& operator=(const RefuseAll&) = delete;

   private:
    Kernel& kernel_;
    const KernelPlan before_;
  };
  const KernelPlan& plan() const { return plan_; }

  void* reserve(std::size_t bytes, std::size_t alignment);
  void* map(std::size_t bytes, std::size_t alignment);
  os::Placed place_at(void* address, std::size_t bytes, bool open, Call call);
  bool open(void* address, std::size_t bytes);
  bool close(void* address, std::size_t bytes);
  bool release(void* address, std::size_t bytes, Call call);
  void* remap(void* address, std::size_t old_bytes, std::size_t new_bytes);
  bool purge(void* address, std::size_t bytes, Call call);
  /// The purge of all that stays mapped, which no kernel refuses but for locked memory.
  void forget_pages(void* address, std::size_t bytes);
  bool would_grant(std::size_t bytes);
  bool can_be_read(const void* address) const;
  std::size_t resident(void* address, std::size_t bytes) const;
  /// Of all mappings of the library: pages that are mapped, the kernel's page of zeros, too, which
  /// stands where nothing has been written yet.
  std::size_t present() const;
  /// ... without that page. Reads all mappings of the process.
  std::size_t resident() const;
  bool is_locked() const { return plan_.locked; }
  bool is_locked_at(const void* page) const;

  std::uint64_t now_ms();
  void pass(std::uint64_t ms) { clock_ += ms; }

  /// Since the beginning, and since the director last asked for nothing to be refused.
  std::uint64_t refusals() const { return refusals_; }
  std::uint64_t calls() const { return calls_; }
  /// How often it has granted memory or addresses.
  std::uint64_t grants() const { return grants_; }
  /// Pages that somebody else has mapped.
  unsigned foreign_pages() const { return foreign_; }
  std::size_t open_bytes() const { return open_bytes_; }

 private:
  struct Mapping {
    std::uintptr_t end;
    bool open;
    bool foreign;
    bool locked = false;
  };
  using Mappings = std::map<std::uintptr_t, Mapping>;

  bool refuses(Call call);
  bool exceeds(std::size_t more_space, std::size_t more_open);
  bool is_free(std::uintptr_t start, std::uintptr_t end) const;
  bool is_ours(std::uintptr_t start, std::uintptr_t end, bool all_open) const;
  bool has_foreign(std::uintptr_t start, std::uintptr_t end) const;
  bool makes_a_hole(std::uintptr_t start, std::uintptr_t end) const;
  std::uintptr_t first_hole(std::size_t bytes, std::size_t alignment) const;
  std::uintptr_t choose_place(std::size_t bytes, std::size_t alignment);
  bool really_map(std::uintptr_t start, std::size_t bytes, int rights);
  void plant_foreign(std::uintptr_t at);
  void insert(std::uintptr_t start, std::uintptr_t end, bool open, bool foreign);
  void erase(std::uintptr_t start, std::uintptr_t end);
  void split_at(std::uintptr_t at);
  void join_around(std::uintptr_t start, std::uintptr_t end);
  void* map_somewhere(std::size_t bytes, std::size_t alignment, bool open, Call call);

  test::Random random_{0};
  KernelPlan plan_;
  Mappings mappings_;
  std::uintptr_t low_ = 0, high_ = 0;
  std::uintptr_t released_ = 0;
  std::size_t released_bytes_ = 0;
  std::size_t space_bytes_ = 0, open_bytes_ = 0;
  std::uint32_t burst_left_ = 0;
  unsigned foreign_ = 0;
  std::uint64_t refusals_ = 0, calls_ = 0, grants_ = 0;
  std::uint64_t clock_ = 1'000'000;
};

extern Kernel kernel;

}  // namespace spanalloc::simulation
