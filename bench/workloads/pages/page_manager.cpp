#include "pages/page_manager.hpp"

#include <dlfcn.h>
#include <sys/mman.h>

#include <algorithm>

namespace pages {
namespace {

// Constant initialisation: registrations of other source files may come before this one's.
constinit const Registration* first_registration = nullptr;

// ---- the operating system ----

class Mmap final : public PageManager {
 public:
  void* allocate(std::size_t count) override {
    void* const address = mmap(nullptr, count * kPageSize, PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return address == MAP_FAILED ? nullptr : address;
  }
  void free(void* address, std::size_t count) override {
    workload::check(munmap(address, count * kPageSize) == 0,
                    "munmap failed; with many threads, vm.max_map_count may be too small");
  }
};

const Registration mmap_manager("mmap",
                                [](std::size_t,
                                   const std::string&) -> std::unique_ptr<PageManager> {
                                  return std::make_unique<Mmap>();
                                });

// ---- NBBS ----

// NBBS has one region a process, made when the object is loaded, and rounds to
// powers of two by itself.
class Nbbs final : public PageManager {
 public:
  using Malloc = void* (*)(std::size_t);
  using Free = void (*)(void*);

  // Empty, and `malloc` and `free` set, where the object is what it should be.
  static std::string load(const std::string& path, Malloc& malloc, Free& free) {
    void* const object = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!object) return dlerror();
    malloc = reinterpret_cast<Malloc>(dlsym(object, "bd_xx_malloc"));
    free = reinterpret_cast<Free>(dlsym(object, "bd_xx_free"));
    return malloc && free ? "" : path + " does not define bd_xx_malloc and bd_xx_free";
  }

  explicit Nbbs(const std::string& path) {
    workload::check(load(path, malloc_, free_).empty(), "cannot load NBBS");
  }
  void* allocate(std::size_t count) override { return malloc_(count * kPageSize); }
  void free(void* address, std::size_t) override { free_(address); }

 private:
  Malloc malloc_ = nullptr;
  Free free_ = nullptr;
};

const Registration nbbs_manager(
    "nbbs",
    [](std::size_t, const std::string& path) -> std::unique_ptr<PageManager> {
      return std::make_unique<Nbbs>(path);
    },
    "PATH",
    [](const std::string& path) {
      Nbbs::Malloc malloc = nullptr;
      Nbbs::Free free = nullptr;
      return Nbbs::load(path, malloc, free);
    });

std::vector<std::string> names(bool with_argument) {
  std::vector<std::string> all;
  for (const Registration* r = first_registration; r; r = r->next) {
    if (!r->argument)
      all.emplace_back(r->name);
    else if (with_argument)
      all.emplace_back(std::string(r->name) + ":" + r->argument);
  }
  std::sort(all.begin(), all.end());
  return all;
}

}  // namespace

Registration::Registration(const char* name_, Create create_, const char* argument_, Refuse refuse_)
    : name(name_), create(create_), argument(argument_), refuse(refuse_), next(first_registration) {
  first_registration = this;
}

Choice::Choice(workload::Options& options)
    : options_(options),
      text_(options.text("manager", "mmap",
                         "page manager; `list` prints those there are, nbbs:PATH loads NBBS")) {}

void Choice::done() {
  options_.done();
  if (text_ == "list") {
    for (const std::string& name : names(false)) std::puts(name.c_str());
    std::exit(0);
  }
  const std::size_t colon = text_.find(':');
  const std::string name = text_.substr(0, colon);
  if (colon != std::string::npos) argument_ = text_.substr(colon + 1);
  for (const Registration* r = first_registration; r; r = r->next)
    if (name == r->name && (colon != std::string::npos) == (r->argument != nullptr))
      registration_ = r;
  std::string known;
  for (const std::string& each : names(true)) known += " " + each;
  options_.require(registration_, ("--manager " + text_ + ": expected one of" + known).c_str());
  const std::string problem = registration_->refuse ? registration_->refuse(argument_) : "";
  options_.require(problem.empty(), ("--manager " + text_ + ": " + problem).c_str());
}

std::unique_ptr<PageManager> Choice::create(std::size_t pages) const {
  std::unique_ptr<PageManager> manager = registration_->create(pages, argument_);
  workload::check(manager != nullptr, "memory for the region was refused");
  return manager;
}

}  // namespace pages
