// The tiny program that startup.cpp starts: one malloc. Fails when the memory is not there.
#include <stdlib.h>

int main(void) {
  char* volatile block = malloc(100);
  if (block == NULL) return 1;
  block[0] = 1;
  return 0;
}
