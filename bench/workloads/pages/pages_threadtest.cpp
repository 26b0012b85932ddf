// pages_threadtest: threadtest in pages.
//
// Source: Leite and Rocha (ISMM 2019) section 5, Figure 6; after Hoard's threadtest (Berger et al.,
// ASPLOS 2000). Each of 1 to 32 independent threads runs 100 batches, each of 100 allocations of
// one page and then as many frees. The pages are not touched. The paper reports the execution time.
//
// Ours: the same, the number of batches an option. An operation is one allocation and its free.
#include "pages/batches.hpp"

int main(int argc, char** argv) {
  workload::Options options(argc, argv, "pages_threadtest",
                            "Leite and Rocha (ISMM 2019) section 5, Figure 6",
                            "small batches of one-page allocations, then frees");
  pages::Choice choice(options);
  pages::Batches b;
  b.threads = options.integer("threads", 1, 1, 1024, "threads");
  b.batches =
      options.integer("batches", 100, 1, 100'000'000, "batches of each thread; the paper's 100");
  b.blocks =
      options.integer("blocks", 100, 1, 10'000'000, "one-page blocks in a batch; the paper's 100");
  choice.done();
  pages::measure_batches(options, choice, b);
}
