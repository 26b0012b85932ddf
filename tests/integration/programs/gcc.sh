#!/bin/sh
# GCC compiles a large C++ file of standard headers and templates; the object must be, byte for byte, the one that
# GCC on libc's malloc makes, and the program must run.
set -eu
# shellcheck source=tests/integration/programs/lib.sh
. "$(dirname "$0")/lib.sh"
need g++ g++
prove_first g++
{
  for header in algorithm any array atomic bitset chrono complex deque filesystem forward_list fstream functional \
    future iomanip iostream iterator list locale map memory memory_resource mutex numeric optional ostream queue \
    random ranges regex set shared_mutex sstream stack string string_view thread tuple unordered_map \
    unordered_set utility valarray variant vector; do
    echo "#include <$header>"
  done
  cat <<'SOURCE'
template <unsigned N> struct Deep {
  std::map<std::array<char, N + 1>, std::variant<int, std::string, std::vector<Deep<N / 2>*>>> table;
  std::string run(unsigned x) {
    std::ostringstream out;
    std::vector<std::tuple<unsigned, std::string>> all;
    for (unsigned i = 0; i < 5; ++i) all.emplace_back(x * N + i, std::to_string(N));
    std::sort(all.begin(), all.end(), [](auto& a, auto& b) { return std::get<0>(a) > std::get<0>(b); });
    for (auto& [n, text] : all) out << n << text;
    return out.str() + std::to_string(table.size());
  }
};
template <unsigned... N> std::size_t all(std::integer_sequence<unsigned, N...>) {
  return (Deep<N>{}.run(N).size() + ...);
}
int main() {
  std::regex pattern("a(b|c)*d");
  if (!std::regex_match("abcbcd", pattern)) return 1;
  std::cout << all(std::make_integer_sequence<unsigned, 16>{}) << "\n";
}
SOURCE
} >big.cpp
g++ -std=c++20 -O1 -c big.cpp -o by_libc.o
ours g++ -std=c++20 -O1 -c big.cpp -o by_ours.o || fail "the compiler"
cmp by_libc.o by_ours.o || fail "the objects differ"
ours g++ by_ours.o -o big || fail "the linker"
output=$(ours ./big) || fail "the compiled program"
[ "$output" = "$(./big)" ] || fail "the compiled program prints $output"
prove_ours g++
grep -q '/cc1plus ' "$probe_file" || fail "the compiler proper has not run with the library"
