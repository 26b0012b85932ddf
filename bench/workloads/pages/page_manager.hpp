// What the page experiments exercise: a manager of a region of pages, and the registry
// of those that there are.
//
// Source of the experiments: Leite and Rocha, "Lock-free Coalescing" (ISMM 2019), section 5. Its
// contenders are the coalescing mechanism with and without recursion, the operating system (mmap
// and munmap), and NBBS, the lock-free buddy system of Marotta et al.
// (https://github.com/HPDCS/NBBS).
//
// Here: `mmap` is always there. `nbbs:PATH` loads a shared object that its user built from
// NBBS's public code and calls the two functions that this code publishes, bd_xx_malloc(bytes)
// and bd_xx_free(address). Its smallest block must be a page; its region and largest block are
// fixed when it is built: 2^18 pages and 128 pages serve every experiment with up to 8
// threads. Where they do not suffice, the program ends and says how many pages it asked for.
// The state of its code counts: that of January 2019, which the paper measured, searches
// through what is allocated (10,000 blocks take some 25 times as long as 2,000); that of 2020
// remembers where it last found room.
//
// Each call goes through one virtual function, the same cost for every manager.
#ifndef SPANALLOC_BENCH_PAGE_MANAGER_HPP
#define SPANALLOC_BENCH_PAGE_MANAGER_HPP

#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include "support/workload.hpp"

namespace pages {

// The paper's; on machines with larger pages, mmap rounds up
inline constexpr std::size_t kPageSize = 4096;

// Blocks of pages out of one region. Created by one thread; allocate and free may then be called by
// any threads at once; destroyed by one thread after all of those calls.
class PageManager {
 public:
  PageManager() = default;
  PageManager(const PageManager&) = delete;
  PageManager& operator=(const PageManager&) = delete;
  virtual ~PageManager() = default;

  // `count` > 0 consecutive pages, readable and writable, the address a multiple of kPageSize; null
  // where there are none. A page reads as zero until it has been written to.
  virtual void* allocate(std::size_t count) = 0;

  // Gives back what allocate(count) returned.
  virtual void free(void* address, std::size_t count) = 0;

  // Number of free blocks while no call is under way: 1 for an untouched region. No value where the
  // manager does not keep blocks.
  virtual std::optional<std::size_t> free_blocks() const { return std::nullopt; }
};

// A manager that --manager can name. Define one with static storage duration in a
// source file of the program.
class Registration {
 public:
  // Makes a manager of a region of `pages` pages; null where memory is refused.
  using Create = std::unique_ptr<PageManager> (*)(std::size_t pages, const std::string& argument);
  // What is wrong with the argument, empty if nothing.
  using Refuse = std::string (*)(const std::string& argument);

  Registration(const char* name, Create create, const char* argument = nullptr,
               Refuse refuse = nullptr);

  const char* const name;
  const Create create;
  const char* const argument;  // what must follow "name:", for the help; null for nothing
  const Refuse refuse;
  const Registration* const next;
};

// The manager that was asked for.
class Choice {
 public:
  // Declares --manager. `list` prints the names of the managers that need no argument, one a
  // line, and ends the program.
  explicit Choice(workload::Options& options);

  // To be called after the last option was declared. Refuses a manager that does not exist.
  void done();

  // A manager of a new region of `pages` pages; ends the program where memory is refused.
  std::unique_ptr<PageManager> create(std::size_t pages) const;

 private:
  workload::Options& options_;
  std::string text_;
  const Registration* registration_ = nullptr;
  std::string argument_;
};

}  // namespace pages

#endif  // SPANALLOC_BENCH_PAGE_MANAGER_HPP
