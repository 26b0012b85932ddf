/* Every thread starts a chain of `operations` threads, each of which starts the next one and ends.
 * A core that is free takes the next thread: the machine needs about two cores a chain, not one a
 * thread. */
#define OWN_MAIN
#include "known.h"
static pthread_barrier_t finish;
static void* chain(void* left) {
  if ((intptr_t)left > 0) {
    pthread_t next;
    pthread_attr_t detached;
    pthread_attr_init(&detached);
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    if (pthread_create(&next, &detached, chain, (void*)((intptr_t)left - 1)) != 0) exit(1);
  } else {
    pthread_barrier_wait(&finish);
  }
  return NULL;
}
static void body(int number) {
  (void)number;
  chain((void*)operations);
  pthread_barrier_wait(&finish);
}
int main(int argc, char** argv) {
  pthread_barrier_init(&finish, NULL, argc > 1 ? 2 * (unsigned)atoi(argv[1]) : 8);
  run(argc, argv);
}
