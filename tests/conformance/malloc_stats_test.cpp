// malloc_stats: what it writes, and that it goes past stdio and is no cancellation point.
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include <future>
#include <string>

#include "engines.hpp"

namespace spanalloc::test {
namespace {

constexpr int kMarker = 4711;

template <class E>
class MallocStats : public EngineTest<E> {};
TYPED_TEST_SUITE(MallocStats, AllEngines, EngineNames);

/// Another file in the place of standard error for as long as this lives.
class StandardError {
 public:
  explicit StandardError(int file) : saved_(dup(2)) {
    if (file < 0) {
      close(2);
    } else {
      dup2(file, 2);
    }
  }
  ~StandardError() {
    dup2(saved_, 2);
    close(saved_);
  }
  StandardError(const StandardError&) = delete;
  StandardError& operator=(const StandardError&) = delete;

 private:
  int saved_;
};

/// A socket that keeps what each call of write has written apart.
struct Writes {
  Writes() { EXPECT_EQ(socketpair(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0, ends), 0); }
  ~Writes() {
    close(ends[0]);
    close(ends[1]);
  }
  std::string next() {
    char text[4096];
    const ssize_t n = read(ends[0], text, sizeof text);
    return n < 0 ? std::string() : std::string(text, static_cast<std::size_t>(n));
  }
  int ends[2];
};

TYPED_TEST(MallocStats, WritesTheFiguresInOnePiece) {
  using Api = MallocApi<TypeParam>;
  Writes writes;
  errno = kMarker;
  {
    StandardError redirected(writes.ends[1]);
    Api::malloc_stats();
  }
  EXPECT_EQ(errno, kMarker);
  const std::string text = writes.next();
  EXPECT_EQ(text.rfind(std::string("spanalloc, engine ") + TypeParam::kName + "\n", 0), 0u) << text;
  EXPECT_NE(text.find("\naddress space held (bytes)"), std::string::npos) << text;
  EXPECT_NE(text.find("\nspans lost to fork"), std::string::npos) << text;
  // The last one.
  const std::size_t last = text.find("\n  given back by them, kept (bytes)");
  ASSERT_NE(last, std::string::npos) << text;
  EXPECT_EQ(text.find('\n', last + 1), text.size() - 1) << text;
  EXPECT_EQ(writes.next(), "");
}

TYPED_TEST(MallocStats, IsNoCancellationPoint) {
  using Api = MallocApi<TypeParam>;
  Writes writes;
  bool returned = false;
  void* result = nullptr;
  {
    StandardError redirected(writes.ends[1]);
    pthread_t thread;
    const auto body = [](void* flag) -> void* {
      pthread_cancel(pthread_self());  // deferred: it acts in the next cancellation point
      Api::malloc_stats();
      *static_cast<bool*>(flag) = true;
      pthread_testcancel();
      return nullptr;
    };
    ASSERT_EQ(pthread_create(&thread, nullptr, body, &returned), 0);
    ASSERT_EQ(pthread_join(thread, &result), 0);
  }
  EXPECT_TRUE(returned);
  EXPECT_EQ(result, PTHREAD_CANCELED);
}

TYPED_TEST(MallocStats, NeedsNoLockOfStderr) {
  using Api = MallocApi<TypeParam>;
  Writes writes;
  StandardError redirected(writes.ends[1]);
  flockfile(stderr);
  std::future<void> done = std::async(std::launch::async, [] { Api::malloc_stats(); });
  done.wait();  // for ever, if it needs the lock: the time-out of the test tells
  EXPECT_NE(writes.next(), "") << "it has written";
  funlockfile(stderr);
}

TYPED_TEST(MallocStats, WorksWithoutStandardError) {
  using Api = MallocApi<TypeParam>;
  errno = kMarker;
  {
    StandardError closed(-1);
    Api::malloc_stats();
  }
  EXPECT_EQ(errno, kMarker);
}

}  // namespace
}  // namespace spanalloc::test
