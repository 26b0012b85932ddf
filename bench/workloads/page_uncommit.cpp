// page_uncommit: what madvise(MADV_DONTNEED) of one page costs. No allocator is involved.
//
// Source: SuperMalloc (Kuszmaul, ISMM 2015) section 10: 1800 ns where the page is committed, 240 ns
// where it is uncommitted already. The author's fragments/madvise.cc takes one page again and
// again, a million times, and times the call with the write that commits the page again:
//   uncommit_and_touch_ns   the call, then the write (the paper's 1800)
//   uncommitted_ns          the call alone, where nothing is committed (the paper's 240)
//   touch_ns                the write alone, of a committed page
//
// Ours: what the first row has beside the call is the page fault. So a fourth row times the call
// alone, for pages that were written before the time began, 512 by 512:
//   uncommit_ns
#include <sys/mman.h>
#include <unistd.h>

#include "support/workload.hpp"

namespace {

constexpr std::uint64_t kPages = 512;

class Pages {
 public:
  explicit Pages(std::uint64_t rounds)
      : rounds_(rounds), page_(static_cast<std::size_t>(sysconf(_SC_PAGESIZE))) {
    void* at =
        mmap(nullptr, kPages * page_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    workload::check(at != MAP_FAILED, "page_uncommit: mmap");
    first_ = static_cast<char*>(at);
    // Or one call would split a huge page. (Kernels without them refuse.)
    (void)madvise(first_, kPages * page_, MADV_NOHUGEPAGE);
  }

  void uncommit(std::uint64_t page) {
    workload::check(madvise(first_ + page * page_, page_, MADV_DONTNEED) == 0,
                    "page_uncommit: madvise");
  }
  // (Reads nothing first: of a page that is not committed that would be one page fault more.)
  void write(std::uint64_t page) {
    first_[page * page_] = 1;
    workload::touch(first_);
  }
  void check_uncommitted(std::uint64_t page) {
    workload::check(first_[page * page_] == 0, "page_uncommit: a page is not zero");
    uncommit(page);
  }

  template <class Step>
  std::uint64_t time(Step step) {
    const std::uint64_t start = workload::now_ns();
    for (std::uint64_t i = 0; i < rounds_; ++i) step();
    return workload::now_ns() - start;
  }
  // Of the calls alone.
  std::uint64_t time_calls() {
    std::uint64_t ns = 0;
    for (std::uint64_t done = 0; done < rounds_; done += kPages) {
      for (std::uint64_t page = 0; page < kPages; ++page) write(page);
      const std::uint64_t start = workload::now_ns();
      for (std::uint64_t page = 0; page < kPages; ++page) uncommit(page);
      ns += workload::now_ns() - start;
      check_uncommitted(kPages - 1);
    }
    return ns;
  }

 private:
  std::uint64_t rounds_;
  std::size_t page_;
  char* first_;
};

}  // namespace

int main(int argc, char** argv) {
  workload::Options options(argc, argv, "page_uncommit", "SuperMalloc (ISMM 2015) section 10",
                            "the cost of uncommitting a page, or one that is uncommitted already");
  const auto rounds = options.integer("rounds", 100'000, 1, 1'000'000'000, "calls in each row");
  options.done();

  workload::Record record(options, 1);
  Pages pages(rounds);
  std::uint64_t elapsed = 0;
  const auto row = [&](const char* name, std::uint64_t ns, std::uint64_t calls) {
    record.metric(name, ns, calls);
    elapsed += ns;
  };
  row("uncommit_and_touch_ns", pages.time([&] {
    pages.uncommit(0);
    pages.write(0);
  }),
      rounds);
  pages.uncommit(0);
  pages.check_uncommitted(0);
  row("uncommitted_ns", pages.time([&] { pages.uncommit(0); }), rounds);
  row("touch_ns", pages.time([&] { pages.write(0); }), rounds);
  pages.uncommit(0);
  const std::uint64_t calls = (rounds + kPages - 1) / kPages * kPages;
  row("uncommit_ns", pages.time_calls(), calls);
  record.print(3 * rounds + calls, elapsed);
}
