// 200 MiB of small objects are freed in another order. Then the program is idle for three seconds,
// but for ten requests a second.
#include <time.h>
#include "report.h"
enum { N = 350000 };
static char* block[N];
int main(void) {
  for (int i = 0; i < N; ++i) block[i] = written(64 + chance(1000));
  for (int i = N - 1; i > 0; --i) {
    const int j = (int)chance((unsigned)i + 1);
    char* other = block[j];
    block[j] = block[i], block[i] = other;
  }
  for (int i = 0; i < N; ++i) free(block[i]);
  const double freed = mib();
  for (int request = 0; request < 30; ++request) {
    for (int i = 0; i < 200; ++i) block[i] = written(64 + chance(1000));
    for (int i = 0; i < 200; ++i) free(block[i]);
    nanosleep(&(struct timespec){0, 100000000}, NULL);
  }
  return verdict(mib() < 50, "%.0f MiB, %.0f later", freed, mib());
}
