// mallinfo, mallinfo2, malloc_info.
#include <errno.h>
#include <stdio.h>

#include <cctype>
#include <string>
#include <vector>

#include "api/statistics_json.hpp"
#include "engines.hpp"

namespace spanalloc::test {
namespace {

template <class E>
class IntrospectionTest : public EngineTest<E> {};
TYPED_TEST_SUITE(IntrospectionTest, AllEngines, EngineNames);

// Reads XML without comments or declarations. Empty when well-formed, otherwise what is wrong.
std::string xml_error(const std::string& text) {
  std::vector<std::string> open;
  bool root_seen = false;
  for (std::size_t i = 0; i < text.size();) {
    if (text[i] != '<') {
      if (text[i] == '>' || text[i] == '&') return "stray character";
      if (open.empty() && std::isspace(static_cast<unsigned char>(text[i])) == 0)
        return "text outside the root";
      ++i;
      continue;
    }
    const std::size_t end = text.find('>', i);
    if (end == std::string::npos) return "tag without end";
    std::string tag = text.substr(i + 1, end - i - 1);
    if (!tag.empty() && tag[0] == '/') {
      if (open.empty() || open.back() != tag.substr(1)) return "closes what is not open: " + tag;
      open.pop_back();
    } else {
      if (open.empty() && root_seen) return "two roots";
      root_seen = true;
      const std::string name = tag.substr(0, tag.find(' '));
      if (name.empty()) return "nameless tag";
      std::size_t quotes = 0;
      for (char c : tag) quotes += c == '"' ? 1 : 0;
      if (quotes % 2 != 0) return "open quote in " + tag;
      open.push_back(name);
    }
    i = end + 1;
  }
  if (!open.empty()) return "never closed: " + open.back();
  return root_seen ? "" : "no element";
}

template <class Write>
std::string written_to_stream(Write&& write) {
  char* text = nullptr;
  std::size_t length = 0;
  FILE* stream = open_memstream(&text, &length);
  write(stream);
  fclose(stream);
  std::string result(text, length);
  free(text);
  return result;
}

TEST(XmlError, FindsWhatIsNotWellFormed) {
  EXPECT_EQ(xml_error("<a x=\"1\">\n<b>1</b></a>\n"), "");
  for (const char* bad : {"", "<a>", "</a>", "<a></b>", "<a><b></a></b>", "<a></a><a></a>",
                          "x<a></a>", "<a x=\"1></a>", "<a>&</a>", "<a"}) {
    EXPECT_NE(xml_error(bad), "") << bad;
  }
}

TYPED_TEST(IntrospectionTest, MallocInfoIsWellFormedXmlWithTheFigures) {
  using Api = MallocApi<TypeParam>;
  void* large = Api::malloc(5 * kMiB);
  const std::string text =
      written_to_stream([](FILE* stream) { EXPECT_EQ(Api::malloc_info(0, stream), 0); });
  EXPECT_EQ(xml_error(text), "") << text;
  EXPECT_EQ(text.rfind("<malloc version=", 0), 0u) << text;
  EXPECT_NE(text.find(TypeParam::kName), std::string::npos) << text;
  const std::size_t at = text.find("<large>");
  ASSERT_NE(at, std::string::npos) << text;
  EXPECT_GE(std::stoull(text.substr(at + 7)), 5 * kMiB);
  Api::free(large);
}

TYPED_TEST(IntrospectionTest, MallocInfoRefusesOptionsAndTellsFailure) {
  using Api = MallocApi<TypeParam>;
  const std::string text =
      written_to_stream([](FILE* stream) { EXPECT_EQ(Api::malloc_info(1, stream), EINVAL); });
  EXPECT_EQ(text, "");
  FILE* read_only = fopen("/dev/null", "r");
  ASSERT_NE(read_only, nullptr);
  EXPECT_EQ(Api::malloc_info(0, read_only), -1);
  fclose(read_only);
}

TYPED_TEST(IntrospectionTest, MallinfoCountsLargeObjects) {
  using Api = MallocApi<TypeParam>;
  const struct mallinfo2 before = Api::mallinfo2();
  void* p = Api::malloc(8 * kMiB);
  const struct mallinfo2 during = Api::mallinfo2();
  EXPECT_EQ(during.hblks, before.hblks + 1);
  EXPECT_GE(during.hblkhd, before.hblkhd + 8 * kMiB);
  EXPECT_EQ(static_cast<std::size_t>(Api::mallinfo().hblks), during.hblks);
  Api::free(p);
  EXPECT_EQ(Api::mallinfo2().hblks, before.hblks);
}

// A member of a JSON document, or an element of malloc_info's; SIZE_MAX: it has none.
std::size_t figure_in(const std::string& text, const std::string& before) {
  const std::size_t at = text.find(before);
  return at == std::string::npos ? SIZE_MAX : std::stoull(text.substr(at + before.size()));
}

TYPED_TEST(IntrospectionTest, AllTellTheSameFigures) {
  using Api = MallocApi<TypeParam>;
  std::vector<void*> held;
  for (std::size_t n = 16; n < 100000; n += n / 3) held.push_back(Api::malloc(n));
  std::string json;
  json.reserve(1 << 20);
  const auto keep = [](void* to, const char* text, std::size_t bytes) {
    static_cast<std::string*>(to)->append(text, bytes);
  };
  ASSERT_EQ(StatisticsJson<TypeParam>::write(keep, &json, 0), 0);
  const EngineStatistics s = all_statistics<TypeParam>();
  const struct mallinfo2 info = Api::mallinfo2();
  const std::string xml =
      written_to_stream([](FILE* stream) { EXPECT_EQ(Api::malloc_info(0, stream), 0); });
  std::size_t told = 0;
  for (const Figure& figure : kFigures) {
    const std::size_t value = figure.of(s);
    EXPECT_EQ(figure_in(json, std::string("\"") + figure.name + "\": "), value) << figure.name;
    EXPECT_EQ(figure_in(xml, std::string("<") + figure.element + ">"), value) << figure.name;
    told += value != kNotTold;
  }
  EXPECT_GE(told, 8u);
  EXPECT_EQ(info.arena, s.opened_bytes);
  EXPECT_EQ(info.uordblks, s.small_bytes_carved);
  EXPECT_EQ(info.fordblks, s.pooled_bytes);
  EXPECT_EQ(info.keepcost, s.pooled_bytes);
  EXPECT_EQ(info.hblks, s.large_objects);
  EXPECT_EQ(info.hblkhd, s.large_bytes);
  EXPECT_EQ(info.smblks, s.free_blocks == kNotTold ? 0 : s.free_blocks);
  EXPECT_EQ(info.fsmblks, s.free_bytes == kNotTold ? 0 : s.free_bytes);
  for (void* p : held) Api::free(p);
}

TYPED_TEST(IntrospectionTest, StatisticsRefuseWhatHasNoMeaning) {
  using Json = StatisticsJson<TypeParam>;
  bool written = false;
  const auto note = [](void* flag, const char*, std::size_t) { *static_cast<bool*>(flag) = true; };
  EXPECT_EQ(Json::write(nullptr, nullptr, 0), EINVAL);
  EXPECT_EQ(Json::write(note, &written, SP_STATS_KERNEL << 1), EINVAL);
  EXPECT_FALSE(written);
  EXPECT_EQ(Json::write(note, &written, SP_STATS_KERNEL), 0);
  EXPECT_TRUE(written);
}

TEST(Mallinfo, ShowsIntMaxForWhatDoesNotFit) {
  struct Huge : ReferenceEngine {
    static EngineStatistics statistics() {
      EngineStatistics s;
      s.opened_bytes = std::size_t{1} << 40;
      s.large_objects = 7;
      return s;
    }
  };
  EXPECT_EQ(MallocApi<Huge>::mallinfo().arena, INT_MAX);
  EXPECT_EQ(MallocApi<Huge>::mallinfo().hblks, 7);
  EXPECT_EQ(MallocApi<Huge>::mallinfo2().arena, std::size_t{1} << 40);
}

}  // namespace
}  // namespace spanalloc::test
