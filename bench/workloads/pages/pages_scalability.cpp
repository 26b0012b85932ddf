// pages_scalability: linux-scalability in pages.
//
// Source: Leite and Rocha (ISMM 2019) section 5, Figure 5; after Lever and Boreham (FREENIX 2000).
// Each of 1 to 32 independent threads runs a batch of 10,000 allocations of one page, then a batch
// of as many frees. The pages are not touched. The paper reports the execution time.
//
// Ours: the same, and the whole repeated `batches` times in a thread, as once takes milliseconds.
// An operation is one allocation and its free.
#include "pages/batches.hpp"

int main(int argc, char** argv) {
  workload::Options options(argc, argv, "pages_scalability",
                            "Leite and Rocha (ISMM 2019) section 5, Figure 5",
                            "large batches of one-page allocations, then frees");
  pages::Choice choice(options);
  pages::Batches b;
  b.threads = options.integer("threads", 1, 1, 1024, "threads");
  b.batches = options.integer("batches", 1, 1, 1'000'000, "batches of each thread; the paper's 1");
  b.blocks = options.integer("blocks", 10'000, 1, 10'000'000,
                             "one-page blocks in a batch; the paper's 10000");
  choice.done();
  pages::measure_batches(options, choice, b);
}
