// Memory of operator new with an alignment goes back with its size only. That is the program's
// fault; it must not become other blocks' damage.
#include <new>
#include "report.h"
int main() {
  constexpr int kBlocks = 20000;
  static char* block[kBlocks];
  static size_t size[kBlocks];
  int damaged = 0;
  for (int round = 0; round < 4; ++round) {
    for (int i = 0; i < kBlocks; ++i) {
      size[i] = 100 + chance(5000);
      block[i] = static_cast<char*>(operator new(size[i], std::align_val_t{32u << chance(8)}));
    }
    for (int i = 0; i < kBlocks; ++i) operator delete(block[i], size[i]);
    for (int i = 0; i < kBlocks; ++i)
      memset(block[i] = static_cast<char*>(malloc(size[i])), i % 251, size[i]);
    for (int i = 0; i < kBlocks; ++i) {
      for (size_t at = 0; at < size[i]; ++at)
        damaged += static_cast<unsigned char>(block[i][at]) != i % 251;
      free(block[i]);
    }
  }
  return verdict(damaged == 0, "%d bytes damaged", damaged);
}
