// Tests that hang: test_run_ctest.py looks how they end.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

namespace {

[[noreturn]] void hang() {
  for (;;) pause();
}

TEST(Hangs, Alone) {
  hang();
}

// Its own alarm is no longer there.
TEST(Hangs, BehindAnAlarmTakenBack) {
  alarm(1000);
  alarm(0);
  hang();
}

TEST(Hangs, WithAborts) {
  sigset_t abort_only;
  sigemptyset(&abort_only);
  sigaddset(&abort_only, SIGABRT);
  sigprocmask(SIG_BLOCK, &abort_only, nullptr);
  signal(SIGABRT, [](int) { hang(); });
  hang();
}

TEST(Hangs, InAChild) {
  const pid_t child = fork();
  if (child == 0) hang();
  waitpid(child, nullptr, 0);
}

// What the child has said is what its death is to be known by.
TEST(HangsDeathTest, HavingSaidWhatWasExpected) {
  EXPECT_DEATH((std::fputs("damaged", stderr), hang()), "damaged");
}

TEST(HangsDeathTest, InAFreshProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH((std::fputs("damaged", stderr), hang()), "damaged");
}

// None of these, and no crash: a child that dies on purpose.
TEST(HangsDeathTest, DiesOnPurpose) {
  EXPECT_DEATH(std::abort(), "");
}

}  // namespace
