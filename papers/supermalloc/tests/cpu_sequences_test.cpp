// Restartable sequences on a CPU's chains, stopped at each of their instructions in turn: the
// thread is preempted there, moved to another CPU, or a signal comes, and other threads have been
// at the chain before it goes on. It must begin anew, and no list may be lost or be in two places.
// Behind the last instruction it must not. And stopped there while the kernel does not restart it:
// then other CPUs' threads have been at the chain, as they may be at any time.
//
// The thread is the only one of a child that the test traces. Its instructions are found by single
// steps, with the kernel told to forget about its sequences, which no step would leave to their
// end. Then, for each of them, a child runs into a trap that is planted there. (A thread that is
// stopped so loses its CPU each time, whatever comes in between: the ways differ by that. A signal,
// and nothing but it, comes in tests/integration/sequences.cpp.)
//
// And what is around a sequence: a thread that has looked at a chain and has not begun, while the
// chain is somebody's to change who has looked where it is and has been moved.
#include "papers/supermalloc/engine/cpu_sequences.hpp"

#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "environment.hpp"
#include "os_calls.hpp"
#include "papers/supermalloc/engine/config.hpp"
#include "papers/supermalloc/engine/cpu_caches.hpp"
#include "papers/supermalloc/tests/test_support.hpp"
#include "simulated_cpus.hpp"

namespace spanalloc {
namespace {

using supermalloc::BinNumber;
using supermalloc::FreeObject;
using supermalloc::ObjectList;
using Caches = supermalloc::CpuCaches<Supermalloc>;
using Bins = supermalloc::Bins<Supermalloc>;

#if defined(__x86_64__)

// Many lists a chain, of one object each; and one list a chain.
constexpr BinNumber kBin = Bins::kFirstLarge;
constexpr BinNumber kShortest = Bins::kCount - 1;
static_assert(Bins::of(kBin).chain_lists >= 8 && Bins::of(kShortest).chain_lists == 1);

// A thread of any process; 0: the calling one.
void run_on(unsigned cpu, pid_t thread = 0) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  if (sched_setaffinity(thread, sizeof set, &set) != 0) _exit(90);
}

// The kernel restarts the calling thread no more, and its area is the test's to write to.
void leave_sequences(unsigned cpu) {
  volatile os::SequenceArea& area = os::sequence_area();
  constexpr unsigned kUnregister = 1;
  constexpr unsigned kSignature = 0x53053053;
  for (unsigned bytes = 32; bytes <= 1024; bytes += 32) {
    if (syscall(SYS_rseq, &area, bytes, kUnregister, kSignature) == 0) {
      area.cpu_id = cpu;
      return;
    }
  }
  _exit(91);
}

enum class Act { kTake, kPut };
enum class Way {
  kPreempted,  // another thread of its CPU runs
  kMoved,      // to another CPU
  kSignalled,  // and the handler does what another thread might
  kOvertaken,  // by a thread on another CPU, while nothing interrupts it
};

// What a child works with: a heap's caches, and lists of one object, which nobody looks into.
struct Child {
  Caches caches;
  FreeObject objects[8];
  BinNumber bin = kBin;
  unsigned here = 0;
  unsigned there = 0;

  enum { kX, kY, kV, kW, kZ, kP, kQ };
  ObjectList list(unsigned n) { return {&objects[n], 1}; }
  void put(unsigned n) {
    if (!caches.put(bin, list(n))) _exit(92);
  }
  // Its number, -1: there was none.
  int take() {
    const ObjectList taken = caches.take(bin);
    return taken.is_empty() ? -1 : static_cast<int>(taken.first - objects);
  }
  std::vector<int> drained() {
    std::vector<int> numbers;
    caches.drain(
        bin, [&](ObjectList list) { numbers.push_back(static_cast<int>(list.first - objects)); });
    return numbers;
  }
};

Child* child_at_hand = nullptr;
std::atomic<int> others_took{-2};
std::atomic<bool> is_overtaken{false};

// What comes in between leaves the chain's word as it was, with other lists: who does
// not begin anew is wrong.
void interfere(Act act) {
  Child& child = *child_at_hand;
  if (act == Act::kTake) {
    others_took = child.take();
    child.put(Child::kZ);
  } else {
    child.put(Child::kQ);
    others_took = child.take();
  }
}
void interfere_to_take(int) {
  interfere(Act::kTake);
}
void interfere_to_put(int) {
  interfere(Act::kPut);
}

[[gnu::noinline]] int act_once(Child& child, Act act) {
  if (act == Act::kTake) return child.take();
  child.put(Child::kP);
  return -1;
}

struct Scene {
  Act act;
  Way way;
};

// The exit code: 0, or which check failed.
int judge(Child& child, Scene scene, int taken, bool counts_already) {
  const int others = others_took;
  const std::vector<int> left = child.drained();
  const auto is = [&](std::vector<int> expected) { return left == expected; };
  enum { kX = Child::kX, kY, kV, kW, kZ, kP, kQ };
  if (scene.way == Way::kOvertaken) {
    // All that was there is the other CPU's; what this one still finds is what it has put.
    if (!is_overtaken) return 10;
    if (scene.act == Act::kPut)
      return is(counts_already ? std::vector<int>{} : std::vector<int>{kP}) ? 0 : 11;
    return taken == (counts_already ? kY : -1) && is({}) ? 0 : 12;
  }
  if (scene.act == Act::kTake) {
    if (counts_already) {
      if (taken != kY) return 20;
      if (scene.way == Way::kMoved) return is({kX, kW, kV}) ? 0 : 21;
      return others == kX && is({kZ, kW, kV}) ? 0 : 22;
    }
    if (scene.way == Way::kMoved) return taken == kW && is({kY, kX, kV}) ? 0 : 23;
    return taken == kZ && others == kY && is({kX, kW, kV}) ? 0 : 24;
  }
  if (scene.way == Way::kMoved) {
    if (counts_already) return is({kP, kY, kX, kW, kV}) ? 0 : 30;
    return is({kY, kX, kP, kW, kV}) ? 0 : 31;
  }
  return others == kQ && is({kP, kY, kX, kW, kV}) ? 0 : 32;
}

// Runs in the child, traced. Its other thread waits for a byte, comes in between, and answers.
[[noreturn]] void run_child(Child& child, Scene scene, bool restarts, bool counts_already,
                            int request, int answer) {
  child_at_hand = &child;
  // Each CPU's chain has two lists.
  run_on(child.here);  // first, so that it has the first slot
  child.put(Child::kX);
  child.put(Child::kY);
  run_on(child.there);
  child.put(Child::kV);
  child.put(Child::kW);
  run_on(child.here);
  std::atomic<bool> is_ready{false};
  std::thread other([&] {
    run_on(scene.way == Way::kOvertaken ? child.there : child.here);
    is_ready = true;
    char byte = 0;
    while (read(request, &byte, 1) == 1) {
      if (scene.way == Way::kOvertaken) {
        (void)child.drained();
        is_overtaken = true;
      } else {
        interfere(scene.act);
      }
      if (write(answer, &byte, 1) != 1) _exit(93);
    }
  });
  other.detach();
  while (!is_ready) sched_yield();
  signal(SIGUSR1, scene.act == Act::kTake ? interfere_to_take : interfere_to_put);
  if (!restarts) leave_sequences(child.here);
  if (ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) _exit(94);
  raise(SIGSTOP);
  const int taken = act_once(child, scene.act);
  raise(SIGSTOP);
  _exit(judge(child, scene, taken, counts_already));
}

// Runs in the child, traced, in the bin of one list a chain. A thread of the same CPU
// answers twice: when it has looked where it is, with the chains closed, and been moved; and
// when it has changed them, and is done. In between it waits for the global cache's lock,
// which a third one holds.
[[noreturn]] void run_child_that_has_seen_the_chain(Child& child, int request, int answer) {
  const auto await_request = [=] {
    if (char byte = 0; read(request, &byte, 1) != 1) _exit(95);
  };
  const auto tell = [=] {
    if (const char byte = 1; write(answer, &byte, 1) != 1) _exit(93);
  };
  child.bin = kShortest;
  run_on(child.here);
  // 3 and 1 in the CPU's chains, 0 and 2 in the global ones
  for (unsigned n = 0; n < 4; ++n) child.put(n);
  std::atomic<bool> is_ready{false};
  std::thread([&] {
    run_on(child.here);
    is_ready = true;
    await_request();
    // 3's chain goes to the global cache, and 2's comes.
    if (child.take() != 3 || child.take() != 1 || child.take() != 2) _exit(96);
    child.put(4);
    child.put(5);
    const auto holder = static_cast<pid_t>(syscall(SYS_gettid));
    std::atomic<bool> is_held{false};
    std::thread third([&] {
      run_on(child.there);
      unsigned chains = 0;
      child.caches.for_each_chain(child.bin, [&](const supermalloc::Chain&) {
        if (++chains != 3) return;  // the CPU's two, then the one that is global
        const std::size_t yields = test::yields();
        is_held = true;
        while (test::yields() == yields) sched_yield();
        run_on(child.there, holder);
        tell();
        await_request();
      });
      if (chains != 3) _exit(97);
    });
    while (!is_held) sched_yield();
    child.put(6);  // both chains are full: 4's goes, and 3's comes back
    third.join();
    tell();
  }).detach();
  while (!is_ready) sched_yield();
  leave_sequences(child.here);
  if (ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) _exit(94);
  raise(SIGSTOP);
  const int taken = act_once(child, Act::kTake);
  raise(SIGSTOP);
  if (taken != 6) _exit(40);  // 3 is the other thread's
  _exit(child.drained() == std::vector<int>{5, 4, 0} ? 0 : 41);
}

// The tracer's side.
class Traced {
 public:
  /// What the child runs, with the ends of two pipes: where others are asked to
  /// interfere, where they answer.
  explicit Traced(const std::function<void(int request, int answer)>& run) {
    EXPECT_EQ(pipe(request_), 0);
    EXPECT_EQ(pipe(answer_), 0);
    pid_ = fork();
    if (pid_ == 0) run(request_[0], answer_[1]);
  }
  Traced(Child& child, Scene scene, bool restarts, bool counts_already)
      : Traced([&, scene, restarts, counts_already](int request, int answer) {
          run_child(child, scene, restarts, counts_already, request, answer);
        }) {}
  ~Traced() {
    if (!has_ended_) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    for (const int fd : {request_[0], request_[1], answer_[0], answer_[1]}) close(fd);
  }
  Traced(const Traced&) = delete;
  Traced& operator=(const Traced&) = delete;

  pid_t pid() const { return pid_; }
  /// The signal that it has stopped for; 0: it has ended.
  int wait_for_stop() {
    int status = 0;
    EXPECT_EQ(waitpid(pid_, &status, __WALL), pid_);
    if (WIFSTOPPED(status)) return WSTOPSIG(status);
    has_ended_ = true;
    exit_code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 256 + WTERMSIG(status);
    return 0;
  }
  void go_on(int signal = 0) { EXPECT_EQ(ptrace(PTRACE_CONT, pid_, nullptr, signal), 0); }
  void step() { EXPECT_EQ(ptrace(PTRACE_SINGLESTEP, pid_, nullptr, nullptr), 0); }
  std::uint64_t instruction() {
    user_regs_struct registers{};
    EXPECT_EQ(ptrace(PTRACE_GETREGS, pid_, nullptr, &registers), 0);
    return registers.rip;
  }
  std::uint64_t word_at(std::uintptr_t address) {
    errno = 0;
    const long word = ptrace(PTRACE_PEEKDATA, pid_, address, nullptr);
    EXPECT_EQ(errno, 0);
    return static_cast<std::uint64_t>(word);
  }
  /// The child runs into it when it comes to this instruction, once.
  void plant_trap(std::uintptr_t instruction) {
    planted_ = instruction;
    before_ = word_at(instruction);
    EXPECT_EQ(ptrace(PTRACE_POKETEXT, pid_, instruction, (before_ & ~0xFFul) | 0xCC), 0);
  }
  /// Whether it has stopped there; then it is about to run it.
  bool is_in_trap() {
    user_regs_struct registers{};
    EXPECT_EQ(ptrace(PTRACE_GETREGS, pid_, nullptr, &registers), 0);
    if (registers.rip != planted_ + 1) return false;
    registers.rip = planted_;
    EXPECT_EQ(ptrace(PTRACE_SETREGS, pid_, nullptr, &registers), 0);
    EXPECT_EQ(ptrace(PTRACE_POKETEXT, pid_, planted_, before_), 0);
    return true;
  }
  void have_others_interfere() {
    char byte = 1;
    EXPECT_EQ(write(request_[1], &byte, 1), 1);
    EXPECT_EQ(read(answer_[0], &byte, 1), 1);
  }
  int exit_code() const { return exit_code_; }

 private:
  pid_t pid_ = 0;
  int request_[2] = {-1, -1};
  int answer_[2] = {-1, -1};
  bool has_ended_ = false;
  int exit_code_ = -1;
  std::uintptr_t planted_ = 0;
  std::uint64_t before_ = 0;
};

struct Sequence {
  std::uintptr_t before = 0;                 // the last one before them, which begins the sequence
  std::vector<std::uintptr_t> instructions;  // in the order in which they are run
  std::uintptr_t behind = 0;                 // the first one behind them

  bool has(std::uintptr_t instruction) const {
    return instruction >= instructions.front() && instruction < behind;
  }
};

class SupermallocSequences : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!os::has_sequences())
      GTEST_SKIP() << "the C library has registered no restartable sequences";
    const std::vector<unsigned>& cpus = test::cpus_of_this_process();
    child_.here = cpus.front();
    child_.there = cpus.back();
    ASSERT_TRUE(child_.caches.start());
    ASSERT_TRUE(child_.caches.uses_sequences());
  }
  void TearDown() override { child_.caches.destroy(); }
  bool has_two_cpus() const { return child_.here != child_.there; }
  // Why nothing can be traced on two CPUs; nullptr: it can.
  const char* hindrance() const {
    if (!has_two_cpus()) return "it takes two CPUs";
    return can_trace() ? nullptr : "programs may not be traced here";
  }

  // What the act runs in its sequence. Empty: the child cannot be traced.
  Sequence steps_of(Act act) {
    Sequence found;
    Traced traced(child_, {act, Way::kPreempted}, false, true);
    if (traced.wait_for_stop() != SIGSTOP) return found;
    const auto area = address_of(const_cast<const os::SequenceArea*>(&os::sequence_area()));
    std::size_t steps = 0;
    for (traced.step(); traced.wait_for_stop() == SIGTRAP; traced.step()) {
      if (++steps > 1'000'000) return {};
      const std::uint64_t descriptor = traced.word_at(area + offsetof(os::SequenceArea, sequence));
      const std::uint64_t at = traced.instruction();
      if (descriptor == 0) {
        if (found.instructions.empty()) found.before = at;
        continue;
      }
      // Its begin and length: the child's, at the same place here.
      const auto* words = pointer_to<const std::uint64_t>(descriptor);
      if (at - words[1] < words[2]) found.instructions.push_back(at);
      found.behind = words[1] + words[2];
    }
    return found;
  }

  // Stops the act at an instruction and lets come in between what the scene says.
  void stop_at(const Sequence& sequence, std::uintptr_t instruction, Scene scene) {
    const bool restarts = scene.way != Way::kOvertaken;
    const bool counts_already = instruction == sequence.behind;
    const bool has_begun = instruction != sequence.before;
    SCOPED_TRACE("instruction " + std::to_string(instruction - sequence.instructions.front()));
    Traced traced(child_, scene, restarts, counts_already);
    ASSERT_EQ(traced.wait_for_stop(), SIGSTOP);
    traced.plant_trap(instruction);
    traced.go_on();
    ASSERT_EQ(traced.wait_for_stop(), SIGTRAP);
    ASSERT_TRUE(traced.is_in_trap()) << "it stopped elsewhere";
    ++hits_;
    if (scene.way == Way::kMoved) {
      run_on(child_.there, traced.pid());
    } else if (scene.way != Way::kSignalled) {
      traced.have_others_interfere();
    }
    // It comes by the begin again, unless it has done its work. (Or by it for the first time.)
    const bool begins_anew = restarts && has_begun && !counts_already;
    if (begins_anew) traced.plant_trap(sequence.instructions.front());
    traced.go_on(scene.way == Way::kSignalled ? SIGUSR1 : 0);
    if (begins_anew) {
      ASSERT_EQ(traced.wait_for_stop(), SIGTRAP) << "it went on";
      ASSERT_TRUE(traced.is_in_trap());
      ++restarts_;
      traced.go_on();
    }
    ASSERT_EQ(traced.wait_for_stop(), SIGSTOP);
    traced.go_on();
    ASSERT_EQ(traced.wait_for_stop(), 0);
    EXPECT_EQ(traced.exit_code(), 0);
  }
  void stop_everywhere(Way way) {
    for (const Act act : {Act::kTake, Act::kPut}) {
      SCOPED_TRACE(act == Act::kTake ? "take" : "put");
      const Sequence sequence = steps_of(act);
      // Where am I, what is the word, and a jump behind each; two words moved;
      // the word changed: no fewer.
      ASSERT_GE(sequence.instructions.size(), 7u);
      ASSERT_TRUE(std::is_sorted(sequence.instructions.begin(), sequence.instructions.end()));
      hits_ = restarts_ = 0;
      for (const std::uintptr_t instruction : sequence.instructions)
        stop_at(sequence, instruction, {act, way});
      stop_at(sequence, sequence.before, {act, way});
      stop_at(sequence, sequence.behind, {act, way});
      EXPECT_EQ(hits_, sequence.instructions.size() + 2) << "each was reached";
      EXPECT_EQ(restarts_, way == Way::kOvertaken ? 0 : sequence.instructions.size());
    }
  }
  static bool can_trace() {
    const pid_t pid = fork();
    if (pid == 0) _exit(ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) == 0 ? 0 : 1);
    int status = 0;
    waitpid(pid, &status, 0);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }

  const test::Variable bits_{"SPANALLOC_ARENA_BITS", "32"};
  const test::SimulatedCpus cpus_{2};
  const test::Variable wanted_{"SPANALLOC_RSEQ", "1"};
  Child child_;
  std::size_t hits_ = 0;
  std::size_t restarts_ = 0;
};

#define SKIP_IF_HINDERED() \
  if (const char* why = hindrance()) GTEST_SKIP() << why

TEST_F(SupermallocSequences, APreemptedOneBeginsAnewAtEachInstruction) {
  SKIP_IF_HINDERED();
  stop_everywhere(Way::kPreempted);
}
TEST_F(SupermallocSequences, OneThatIsMovedBeginsAnewThereAtEachInstruction) {
  SKIP_IF_HINDERED();
  stop_everywhere(Way::kMoved);
}
TEST_F(SupermallocSequences, OneThatASignalInterruptsBeginsAnewAtEachInstruction) {
  SKIP_IF_HINDERED();
  stop_everywhere(Way::kSignalled);
}
TEST_F(SupermallocSequences, OneThatAnotherCpuOvertakesTakesNothingOfItsAtEachInstruction) {
  SKIP_IF_HINDERED();
  stop_everywhere(Way::kOvertaken);
}

// One has seen a chain and not begun its sequence. The holder of the lock has closed the chain,
// has looked where it is, and is moved to another CPU before it goes on: now both run, and
// nothing restarts the one. (The kernel has been told to forget about it. That stands for the
// time that a processor may take to come from one instruction to the next.) It may not take what
// the chain had when it looked: the holder, who has been through all caches meanwhile, leaves the
// word as it was, with another list.
TEST_F(SupermallocSequences, OneThatBeginsBesideAHolderThatWasMovedTakesNothingOld) {
  SKIP_IF_HINDERED();
  const Sequence sequence = steps_of(Act::kTake);
  ASSERT_FALSE(sequence.instructions.empty());
  Traced traced(
      [&](int request, int answer) { run_child_that_has_seen_the_chain(child_, request, answer); });
  ASSERT_EQ(traced.wait_for_stop(), SIGSTOP);
  traced.plant_trap(sequence.before);
  traced.go_on();
  ASSERT_EQ(traced.wait_for_stop(), SIGTRAP);
  ASSERT_TRUE(traced.is_in_trap()) << "it stopped elsewhere";
  traced.have_others_interfere();  // one is about to change the chain
  // As far as to the instruction that counts, unless it gives up before.
  do {
    traced.step();
    ASSERT_EQ(traced.wait_for_stop(), SIGTRAP);
  } while (sequence.has(traced.instruction()) &&
           traced.instruction() != sequence.instructions.back());
  traced.have_others_interfere();  // has done so
  traced.go_on();
  ASSERT_EQ(traced.wait_for_stop(), SIGSTOP);
  traced.go_on();
  ASSERT_EQ(traced.wait_for_stop(), 0);
  EXPECT_EQ(traced.exit_code(), 0);
}

// Lists that come to a CPU without a slot of its own, and from a thread that
// the kernel does not know.
TEST_F(SupermallocSequences, WhoHasNoCpusChainsUsesThoseThatAreNoCpus) {
  const auto use = [&](unsigned first) {
    child_.put(first);
    child_.put(first + 1);
    EXPECT_EQ(child_.take(), static_cast<int>(first + 1));
    child_.put(first + 1);
  };
  std::thread([&] {
    leave_sequences(static_cast<unsigned>(-1));
    use(0);
  }).join();
  std::thread([&] {
    leave_sequences(supermalloc::CpuSlots::kCpus);
    EXPECT_EQ(child_.take(), 1);
    use(1);
  }).join();
  std::thread([&] {
    run_on(child_.here);
    use(4);
  }).join();
  // The CPU's, then nobody's.
  EXPECT_EQ(child_.drained(), (std::vector<int>{5, 4, 2, 1, 0}));
}

// What lies in the chains that are no CPU's is found by whoever has nothing else.
TEST_F(SupermallocSequences, WhatIsNoCpusIsFoundWhenNothingElseIsLeft) {
  std::thread([&] {
    leave_sequences(static_cast<unsigned>(-1));
    child_.put(0);
  }).join();
  std::thread([&] {
    run_on(child_.here);
    child_.put(1);
    EXPECT_EQ(child_.take(), 1);
    EXPECT_EQ(child_.take(), 0);
    EXPECT_EQ(child_.take(), -1);
  }).join();
}

// Also of a CPU that the process may use later, and on a machine that is simulated to have fewer.
TEST_F(SupermallocSequences, EachCpuHasChainsOfItsOwnHoweverManyAreCounted) {
  if (!has_two_cpus()) GTEST_SKIP() << "it takes two CPUs";
  if (os::has_memory_limit()) GTEST_SKIP() << "a limit on memory stands";
  const test::SimulatedCpus one(1);
  Child late;
  ASSERT_TRUE(late.caches.start());
  std::thread([&] {
    run_on(child_.here);
    late.put(0);
    run_on(child_.there);
    late.put(1);
    late.put(2);
    EXPECT_EQ(late.take(), 2);
    EXPECT_EQ(late.take(), 1);
    EXPECT_EQ(late.take(), -1) << "what is another CPU's, or no CPU's";
    late.put(1);
  }).join();
  std::thread([&] {
    leave_sequences(static_cast<unsigned>(-1));
    EXPECT_EQ(late.take(), -1) << "it went to the chains that are no CPU's";
  }).join();
  EXPECT_EQ(late.drained(), (std::vector<int>{0, 1}));
  late.caches.destroy();
}

// Who holds a CPU's lock may have lost that CPU to the one that wants it: nobody waits there. What
// comes meanwhile goes to the chains that are no CPU's.
TEST_F(SupermallocSequences, WhoFindsACpusLockTakenDoesNotWait) {
  child_.bin = kShortest;
  std::thread([&] {
    run_on(child_.here);
    child_.put(0);
  }).join();
  std::atomic<bool> is_done{false};
  bool waits = false;
  std::thread other;
  std::size_t chains = 0;
  child_.caches.for_each_chain(kShortest, [&](const supermalloc::Chain&) {
    if (++chains != 1) return;
    // Under the lock. Who waits for it gives its CPU away, sooner or later.
    const std::size_t yields = test::yields();
    other = std::thread([&] {
      run_on(child_.here);
      child_.put(1);
      EXPECT_EQ(child_.take(), 1);
      child_.put(1);
      is_done = true;
    });
    while (!is_done && test::yields() == yields) sched_yield();
    waits = !is_done;
  });
  if (other.joinable()) other.join();
  EXPECT_FALSE(waits);
  EXPECT_EQ(chains, 2u) << "the CPU's, and nobody's";
  EXPECT_EQ(child_.drained(), (std::vector<int>{0, 1}));
}

#endif

}  // namespace
}  // namespace spanalloc
