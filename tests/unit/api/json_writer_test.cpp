#include "api/json_writer.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace spanalloc {
namespace {

struct Pieces {
  std::vector<std::string> all;
  static void write(void* self, const char* text, std::size_t bytes) {
    static_cast<Pieces*>(self)->all.emplace_back(text, bytes);
  }
  std::string joined() const {
    std::string text;
    for (const std::string& piece : all) text += piece;
    return text;
  }
};

std::string foreign(const char* text) {
  Pieces pieces;
  {
    JsonWriter out(&Pieces::write, &pieces);
    out.foreign_text(text);
  }
  return pieces.joined();
}

TEST(JsonWriter, EscapesForeignText) {
  EXPECT_EQ(foreign(""), "\"\"\n");
  EXPECT_EQ(foreign("plain text ~"), "\"plain text ~\"\n");
  EXPECT_EQ(foreign("a\"b\\c/"), R"("a\"b\\c/")"
                                 "\n");
  EXPECT_EQ(foreign("\n\x1b\x7f"), R"("\u000a\u001b\u007f")"
                                   "\n");
  EXPECT_EQ(foreign("\u00e9\u20ac\U0001F600\U0010FFFF"), R"("\u00e9\u20ac\ud83d\ude00\udbff\udfff")"
                                                         "\n");
}

TEST(JsonWriter, ReplacesWhatIsNoCharacter) {
  // Stray bytes; a character that ends too early; longer forms than need be; half of a pair; what
  // is beyond the last one.
  for (const char* const text : {"\x80", "\xff", "\xc3", "\xe2\x82", "\xf0\x9f\x98"}) {
    std::string wanted;
    for (const char* at = text; *at != 0; ++at) wanted += "\\ufffd";
    EXPECT_EQ(foreign(text), '"' + wanted + "\"\n");
  }
  EXPECT_EQ(foreign("\xc3(") + foreign("\xc0\xaf"), "\"\\ufffd(\"\n\"\\ufffd\\ufffd\"\n");
  for (const char* const text : {"\xe0\x80\xaf", "\xed\xa0\x80"})
    EXPECT_EQ(foreign(text), "\"\\ufffd\\ufffd\\ufffd\"\n");
  for (const char* const text : {"\xf0\x80\x80\xaf", "\xf4\x90\x80\x80"})
    EXPECT_EQ(foreign(text), "\"\\ufffd\\ufffd\\ufffd\\ufffd\"\n");
}

TEST(JsonWriter, WritesObjectsArraysAndValues) {
  Pieces pieces;
  {
    JsonWriter out(&Pieces::write, &pieces);
    out.begin('{');
    out.member("schema", 1);
    out.name("engine");
    out.text("standard");
    out.name("none");
    out.begin('[');
    out.end(']');
    out.name("rows");
    out.begin('[');
    for (std::size_t i = 0; i < 2; ++i) {
      out.begin('{');
      out.member("a", i);
      out.name("is");
      out.boolean(i == 1);
      out.end('}');
    }
    out.end(']');
    out.name("at");
    out.address(0x7f00deadbeef);
    out.end('}');
    EXPECT_TRUE(pieces.all.empty()) << "it is one piece";
  }
  EXPECT_EQ(pieces.joined(), R"({
  "schema": 1,
  "engine": "standard",
  "none": [],
  "rows": [
    {"a": 0, "is": false},
    {"a": 1, "is": true}
  ],
  "at": "0x7f00deadbeef"
}
)");
}

TEST(JsonWriter, WritesEveryNumber) {
  Pieces pieces;
  {
    JsonWriter out(&Pieces::write, &pieces);
    out.begin('[');
    for (const std::size_t n : {std::size_t{0}, std::size_t{10}, SIZE_MAX}) out.number(n);
    out.end(']');
  }
  EXPECT_EQ(pieces.joined(), "[\n  0,\n  10,\n  18446744073709551615\n]\n");
}

TEST(JsonWriter, ComesInPiecesThatJoinWhereverTheyEnd) {
  // Names of growing length, so that pieces end at every kind of place.
  const std::string name(600, 'n');
  std::string expected = "[";
  Pieces pieces;
  {
    JsonWriter out(&Pieces::write, &pieces);
    out.begin('[');
    for (std::size_t i = 0; i < 600; ++i) {
      out.text(name.c_str() + i);
      expected += (i == 0 ? "\n  \"" : ",\n  \"") + name.substr(i) + "\"";
    }
    out.end(']');
  }
  EXPECT_EQ(pieces.joined(), expected + "\n]\n");
  ASSERT_GT(pieces.all.size(), 300u);
  for (const std::string& piece : pieces.all) {
    EXPECT_FALSE(piece.empty());
    EXPECT_LE(piece.size(), 512u);
  }
}

}  // namespace
}  // namespace spanalloc
