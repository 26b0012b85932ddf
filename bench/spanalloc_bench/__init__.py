"""The benchmark suite behind `spanalloc bench`: which allocators, which workloads, how they are run, what is made of it."""
