// Runs simulations: one, or many, each in a process of its own, and makes failing ones smaller.
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "engine.hpp"
#include "kernel.hpp"
#include "plan.hpp"
#include "process.hpp"
#include "program.hpp"
#include "report.hpp"
#include "scheduler.hpp"

namespace spanalloc::simulation {
namespace {

template <class T>
T* shared(std::size_t count = 1) {
  void* const p = mmap(nullptr, sizeof(T) * count, PROT_READ | PROT_WRITE,
                       MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) {
    std::perror("simulation: mmap");
    std::exit(2);
  }
  return static_cast<T*>(p);
}

// An access to memory that is not there. (With a stack of its own: a fibre's may be used up.)
void on_fault(int signal, siginfo_t* info, void*) {
  const void* const at = info->si_addr;
  ::signal(signal, SIG_DFL);
  fail("%s at %p", signal == SIGSEGV ? "access to memory that is not there" : "fault", at);
}

void catch_faults() {
  static char stack[64 * 1024];
  stack_t alternate{};
  alternate.ss_sp = stack;
  alternate.ss_size = sizeof stack;
  sigaltstack(&alternate, nullptr);
  struct sigaction action{};
  action.sa_sigaction = &on_fault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  for (const int signal : {SIGSEGV, SIGBUS, SIGILL, SIGFPE}) sigaction(signal, &action, nullptr);
}

// Steps bound a run; this is for a harness that hangs itself.
constexpr unsigned kMostSeconds = 300;

[[noreturn]] void run_here(const Spec& spec) {
  alarm(kMostSeconds);
  catch_faults();
  const Plan plan = make_plan(spec);
  const std::uint64_t seed = spec.seed * 4 + 0x5EED;
  scheduler.begin(seed ^ (spec.schedule * 0xD1B54A32D192ED03u));
  kernel.begin(seed + 1);
  process.begin(seed + 2, plan.process);
  run_program(plan);
  result->steps = scheduler.steps();
  result->switches = scheduler.switches();
  result->signals = scheduler.signals();
  result->late_stores = scheduler.late_stores();
  result->new_pairs = scheduler.new_pairs();
  result->forks = process.forks();
  result->refusals = kernel.refusals();
  std::fflush(stdout);
  _exit(0);
}

// The process that runs it; its result comes into `out`.
pid_t start_run(const Spec& spec, Result* out) {
  std::memset(out, 0, sizeof *out);
  std::fflush(stdout);
  const pid_t child = fork();
  if (child < 0) {
    std::perror("simulation: fork");
    std::exit(2);
  }
  if (child == 0) {
    result = out;
    run_here(spec);
  }
  return child;
}

void finish_run(int status, Result* out) {
  if (out->failed || (WIFEXITED(status) && WEXITSTATUS(status) == 0)) return;
  out->failed = true;
  std::snprintf(out->message, sizeof out->message, "the run ended by %s %d",
                WIFSIGNALED(status) ? "signal" : "status",
                WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
}

Result run_one(const Spec& spec) {
  Result* const out = shared<Result>();
  const pid_t child = start_run(spec, out);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  finish_run(status, out);
  const Result copy = *out;
  munmap(out, sizeof *out);
  return copy;
}

// What of a message names the failure: without numbers.
std::string kind_of(const char* message) {
  std::string kind;
  for (const char* at = message; *at != '\0'; ++at) {
    if ((*at < '0' || *at > '9') && !(*at >= 'a' && *at <= 'f' && kind.size() > 40)) kind += *at;
  }
  return kind.substr(0, 60);
}

struct Options {
  std::uint64_t first = 1;
  std::uint64_t runs = 0;        // 0: no limit
  std::uint64_t operations = 0;  // 0: no limit
  double seconds = 0;            // 0: no limit
  unsigned jobs = 2;
  bool keep_going = false;
  const char* corpus = nullptr;
};

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

Spec shrink(Spec spec, const Result& failure, unsigned budget) {
  const std::string kind = kind_of(failure.message);
  unsigned runs = 0;
  // The same failure with less. Orders of steps change with what is left out, so a few are tried.
  const auto still_fails = [&](Spec smaller, unsigned orders) {
    for (unsigned i = 0; i < orders && runs < budget; ++i) {
      smaller.schedule = i == 0 ? spec.schedule : spec.schedule * 8 + i;
      ++runs;
      const Result got = run_one(smaller);
      if (got.failed && kind_of(got.message) == kind) {
        spec = smaller;
        return true;
      }
    }
    return false;
  };
  bool any = true;
  while (any && runs < budget) {
    any = false;
    const Plan plan = make_plan(spec);
    for (const Phase& phase : plan.phases) {
      if (plan.phases.size() == 1) break;
      Spec smaller = spec;
      smaller.phases = 0;
      for (const Phase& other : make_plan(spec).phases) {
        if (other.number != phase.number) smaller.phases |= 1u << other.number;
      }
      if (smaller.phases != 0 && (spec.phases >> phase.number & 1) != 0)
        any = still_fails(smaller, 3) || any;
    }
    for (unsigned f = 0; f < kFeatures; ++f) {
      if (!make_plan(spec).has(static_cast<Feature>(f))) continue;
      Spec smaller = spec;
      smaller.off |= 1u << f;
      any = still_fails(smaller, 3) || any;
    }
    unsigned most_threads = 0;
    unsigned most_operations = 0;
    for (const Phase& phase : make_plan(spec).phases) {
      most_threads = phase.threads > most_threads ? phase.threads : most_threads;
      most_operations = phase.operations > most_operations ? phase.operations : most_operations;
    }
    for (unsigned threads = 1; threads < most_threads; ++threads) {
      Spec smaller = spec;
      smaller.threads = threads;
      if (!still_fails(smaller, 6)) continue;
      any = true;
      break;
    }
    for (unsigned part = 8; part >= 2; --part) {
      Spec smaller = spec;
      smaller.operations = most_operations * (8 - part + 1) / 9;
      if (!still_fails(smaller, 4)) continue;
      any = true;
      break;
    }
    std::fprintf(stderr, "  %u runs: %s\n", runs, spec.text().c_str());
  }
  return spec;
}

void print_failure(const Spec& spec, const Result& got) {
  std::printf("FAILED %s %s\n  %s\n  %s\n", engine::kName, spec.text().c_str(), got.message,
              got.place);
}

// What is worth to be played in other orders: plans of runs that have met a rare pair (Coverage).
class Corpus {
 public:
  explicit Corpus(const char* file) {
    if (file == nullptr) return;
    is_used_ = true;
    if (std::FILE* const in = std::fopen(file, "r"); in != nullptr) {
      char line[256];
      while (std::fgets(line, sizeof line, in) != nullptr) {
        line[std::strcspn(line, " \n")] = '\0';
        Spec spec;
        if (parse(line, spec)) plans_.push_back(spec);
      }
      std::fclose(in);
    }
    out_ = std::fopen(file, "a");
  }
  ~Corpus() {
    if (out_ != nullptr) std::fclose(out_);
  }
  Corpus(const Corpus&) = delete;
  Corpus& operator=(const Corpus&) = delete;

  void add(const Spec& spec, std::uint64_t new_pairs) {
    if (!is_used_ || new_pairs == 0) return;
    plans_.push_back(spec);
    if (out_ != nullptr)
      std::fprintf(out_, "%s %llu\n", spec.text().c_str(),
                   static_cast<unsigned long long>(new_pairs));
  }
  /// Each second time one of its plans, in an order that it has not had; false: none.
  bool draw(std::uint64_t number, Spec& out) const {
    if (plans_.empty() || number % 2 == 0) return false;
    test::Random random(number);
    out = plans_[random.below(plans_.size())];
    out.schedule = number;
    return true;
  }

 private:
  bool is_used_ = false;
  std::FILE* out_ = nullptr;
  std::vector<Spec> plans_;
};

int search(const Options& options) {
  const auto start = std::chrono::steady_clock::now();
  struct Worker {
    pid_t child = 0;
    Spec spec;
    Result* out = nullptr;
  };
  std::vector<Worker> workers(options.jobs);
  for (Worker& worker : workers) worker.out = shared<Result>();
  Result sum{};
  std::uint64_t begun = 0;
  std::uint64_t ended = 0;
  std::uint64_t failures = 0;
  unsigned running = 0;
  std::uint64_t next = options.first;
  Corpus corpus(options.corpus);
  const auto wants_more = [&] {
    return (failures == 0 || options.keep_going) && (options.runs == 0 || begun < options.runs) &&
           (options.operations == 0 || sum.operations < options.operations) &&
           (options.seconds == 0 || seconds_since(start) < options.seconds);
  };
  for (;;) {
    for (Worker& worker : workers) {
      if (worker.child != 0 || !wants_more()) continue;
      worker.spec = Spec{};
      ++begun;
      if (!corpus.draw(options.first + begun, worker.spec)) worker.spec.seed = next++;
      worker.child = start_run(worker.spec, worker.out);
      ++running;
    }
    if (running == 0) break;
    int status = 0;
    const pid_t child = wait(&status);
    if (child < 0) {
      if (errno == EINTR) continue;
      break;
    }
    for (Worker& worker : workers) {
      if (worker.child != child) continue;
      worker.child = 0;
      --running;
      ++ended;
      finish_run(status, worker.out);
      const Result& got = *worker.out;
      sum.operations += got.operations;
      sum.steps += got.steps;
      sum.switches += got.switches;
      sum.signals += got.signals;
      sum.forks += got.forks;
      sum.late_stores += got.late_stores;
      sum.refusals += got.refusals;
      sum.new_pairs += got.new_pairs;
      corpus.add(worker.spec, got.new_pairs);
      if (got.failed) {
        ++failures;
        print_failure(worker.spec, got);
        std::printf("  after %llu operations of %llu runs\n",
                    static_cast<unsigned long long>(sum.operations),
                    static_cast<unsigned long long>(ended));
        std::fflush(stdout);
      }
    }
  }
  const double took = seconds_since(start);
  const auto number = [](std::uint64_t n) { return static_cast<unsigned long long>(n); };
  std::printf(
      "%s: seeds %llu to %llu: %llu operations, %llu steps, %llu switches, %llu late stores, %llu "
      "signals, %llu forks, %llu refusals, %llu pairs; %llu failed; %.0f s, %.2f million "
      "operations "
      "a minute\n",
      engine::kName, number(options.first), number(next - 1), number(sum.operations),
      number(sum.steps), number(sum.switches), number(sum.late_stores), number(sum.signals),
      number(sum.forks), number(sum.refusals), number(sum.new_pairs), number(failures), took,
      static_cast<double>(sum.operations) / took * 60 / 1e6);
  return failures == 0 ? 0 : 1;
}

void write_sites(const char* path) {
  std::FILE* const out = std::fopen(path, "w");
  if (out == nullptr) {
    std::perror(path);
    std::exit(2);
  }
  for (std::size_t i = 0; i < Coverage::kSites; ++i) {
    if (coverage->sites[i] != 0)
      std::fprintf(out, "%zx %u\n", code_begin() + i, coverage->sites[i]);
  }
  std::fclose(out);
}

[[noreturn]] void usage() {
  std::fputs(
      "usage: simulate run PLAN [--log]\n"
      "       simulate shrink PLAN [--runs N]\n"
      "       simulate search [--first SEED] [--runs N] [--operations N] [--seconds N] [--jobs N]\n"
      "                       [--keep-going] [--corpus FILE] [--sites FILE]\n"
      "PLAN: SEED[:phases=0+2][,threads=N][,ops=N][,off=NAME+NAME][,schedule=N]\n",
      stderr);
  std::exit(2);
}

}  // namespace

int main(int count, char** arguments) {
  coverage = shared<Coverage>();
  if (count < 2) usage();
  const std::string command = arguments[1];
  Options options;
  Spec spec;
  const char* sites = nullptr;
  unsigned budget = 400;
  int at = 2;
  if (command == "run" || command == "shrink") {
    if (count < 3 || !parse(arguments[2], spec)) usage();
    at = 3;
  } else if (command != "search") {
    usage();
  }
  for (; at < count; ++at) {
    const std::string name = arguments[at];
    if (name == "--log") {
      logging = true;
      continue;
    }
    if (name == "--keep-going") {
      options.keep_going = true;
      continue;
    }
    if (at + 1 == count) usage();
    const char* const value = arguments[++at];
    if (name == "--corpus") {
      options.corpus = value;
    } else if (name == "--sites") {
      sites = value;
    } else {
      const std::uint64_t number = std::strtoull(value, nullptr, 10);
      if (name == "--first")
        options.first = number;
      else if (name == "--runs")
        options.runs = number, budget = static_cast<unsigned>(number);
      else if (name == "--operations")
        options.operations = number;
      else if (name == "--seconds")
        options.seconds = static_cast<double>(number);
      else if (name == "--jobs" && number != 0)
        options.jobs = static_cast<unsigned>(number);
      else
        usage();
    }
  }
  if (command == "search") {
    if (options.runs == 0 && options.operations == 0 && options.seconds == 0) usage();
    const int code = search(options);
    if (sites != nullptr) write_sites(sites);
    return code;
  }
  Result got = run_one(spec);
  if (command == "shrink" && got.failed) {
    spec = shrink(spec, got, budget);
    got = run_one(spec);
  }
  if (got.failed) {
    print_failure(spec, got);
    return 1;
  }
  std::printf("passed %s %s: %llu operations, %llu steps\n", engine::kName, spec.text().c_str(),
              static_cast<unsigned long long>(got.operations),
              static_cast<unsigned long long>(got.steps));
  return 0;
}

}  // namespace spanalloc::simulation

int main(int count, char** arguments) {
  return spanalloc::simulation::main(count, arguments);
}
