// The table of bins in papers/supermalloc/DESIGN.md. SPANALLOC_WRITE_DOCS=1 writes it.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

#include "papers/supermalloc/engine/bins.hpp"
#include "papers/supermalloc/engine/config.hpp"

namespace spanalloc::supermalloc {
namespace {

using TheBins = Bins<Supermalloc>;

const char* name_of(Kind kind) {
  switch (kind) {
    case Kind::kSmall:
      return "small";
    case Kind::kMedium:
      return "medium";
    case Kind::kAligned:
      return "medium, aligned";
    case Kind::kLarge:
      return "large";
  }
  return "";
}

// Requests without an alignment that the bin serves; of large ones the offset counts as asked for.
std::string requests_of(BinNumber b) {
  if (TheBins::of(b).kind == Kind::kAligned) return "";
  std::size_t before = 0;
  for (BinNumber other = 0; other < b; ++other) {
    if (TheBins::of(other).kind != Kind::kAligned) before = TheBins::of(other).size;
  }
  return (before == 0 ? "0" : std::to_string(before + 1)) + " to " +
         std::to_string(TheBins::of(b).size);
}

std::string table_of_bins() {
  std::ostringstream out;
  const auto cell = [&](const auto& text) { out << ' ' << text << " |"; };
  const auto cell_if = [&](bool holds, std::size_t number) { holds ? cell(number) : cell(""); };
  out << "| bin | kind | requests (bytes) | object | cache lines | folio, pages | objects a folio "
         "| folios a "
         "chunk | objects a chunk | objects a list | lists a chain |\n"
         "|--:|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n";
  for (BinNumber b = 0; b < TheBins::kCount; ++b) {
    const Bin& bin = TheBins::of(b);
    out << '|';
    cell(b);
    cell(name_of(bin.kind));
    cell(requests_of(b));
    cell(bin.size);
    cell_if(bin.size % kCacheLine == 0, bin.size / kCacheLine);
    cell_if(!bin.is_large(), bin.folio_bytes / kPage);
    cell_if(!bin.is_large(), bin.folio_objects);
    cell_if(!bin.is_large(), bin.folios - bin.first_folio);
    cell(bin.objects - bin.first);
    cell(bin.list_objects);
    cell(bin.chain_lists);
    out << '\n';
  }
  return out.str();
}

TEST(SupermallocDesign, HasTheTableOfBins) {
  const std::string path = SPANALLOC_DOCS "/../papers/supermalloc/DESIGN.md";
  std::stringstream file;
  file << std::ifstream(path).rdbuf();
  std::string text = file.str();
  const std::string begin = "<!-- bins:begin -->\n", end = "<!-- bins:end -->";
  const std::size_t found = text.find(begin);
  ASSERT_NE(found, std::string::npos);
  const std::size_t from = found + begin.size(), to = text.find(end, from);
  ASSERT_NE(to, std::string::npos);
  if (std::getenv("SPANALLOC_WRITE_DOCS") != nullptr) {
    text.replace(from, to - from, table_of_bins());
    std::ofstream(path) << text;
    return;
  }
  EXPECT_EQ(text.substr(from, to - from), table_of_bins()) << "SPANALLOC_WRITE_DOCS=1 writes it";
}

}  // namespace
}  // namespace spanalloc::supermalloc
