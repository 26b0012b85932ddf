// The sizes of objects: a bin for each. Small ones take every quarter of a doubling, medium ones
// are prime numbers of cache lines, large ones whole pages; all are found by constant arithmetic,
// and what the paper says of them is asserted here. (Sections 3 to 5 and Figure 2; DESIGN.md tells
// where the paper contradicts itself.)
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/bits.hpp"
#include "base/compiler.hpp"
#include "papers/supermalloc/engine/config.hpp"

namespace spanalloc::supermalloc {

inline constexpr unsigned kChunkBits = 21;
inline constexpr std::size_t kChunk = std::size_t{1} << kChunkBits;
/// What folios are counted in, whatever the kernel's pages are.
inline constexpr std::size_t kPage = 4 * kKiB;
inline constexpr std::size_t kPagesInChunk = kChunk / kPage;
inline constexpr std::size_t kLeastObject = 16;  // a free one holds two words

using BinNumber = std::uint32_t;

enum class Kind : std::uint8_t {
  kSmall,
  kMedium,   ///< a prime number of cache lines, or one of the two that close gaps
  kAligned,  ///< medium, a power of two: for requests with an alignment only
  kLarge,
};

namespace detail {

constexpr bool is_prime(std::size_t n) {
  for (std::size_t d = 2; d * d <= n; ++d) {
    if (n % d == 0) return false;
  }
  return n >= 2;
}

/// The largest prime of which at most 30 % lies beyond p; where there is none, the next one. (The
/// paper says 25 % and lists these.)
constexpr std::size_t next_spaced_prime(std::size_t p) {
  std::size_t found = 0;
  for (std::size_t q = p + 1; found == 0 || (q - p) * 10 <= q * 3; ++q) {
    if (is_prime(q)) found = q;
  }
  return found;
}

struct Size {
  std::uint32_t bytes = 0;
  Kind kind = Kind::kSmall;
};

inline constexpr std::size_t kMaxBins = 64;
struct Sizes {
  std::array<Size, kMaxBins> at{};
  std::uint32_t count = 0;

  constexpr void add(std::size_t bytes, Kind kind) {
    at[count++] = {static_cast<std::uint32_t>(bytes), kind};
  }
  constexpr bool has(std::size_t bytes) const {
    for (std::uint32_t i = 0; i < count; ++i) {
      if (at[i].bytes == bytes) return true;
    }
    return false;
  }
  constexpr void sort() {
    for (std::uint32_t i = 1; i < count; ++i) {
      for (std::uint32_t j = i; j > 0 && at[j].bytes < at[j - 1].bytes; --j) {
        const Size other = at[j];
        at[j] = at[j - 1];
        at[j - 1] = other;
      }
    }
  }
};

inline constexpr std::size_t kLargestSmall = 320;
inline constexpr std::size_t kLeastLarge = 16 * kKiB;

/// `prime`: medium sizes are prime numbers of cache lines, and powers of two serve alignment only.
constexpr Sizes make_sizes(bool prime, std::size_t quantum) {
  Sizes sizes;
  // k * 2^i for k from 4 to 7, as far as malloc's alignment allows; 16, 32 and 48 are what it
  // leaves.
  for (std::size_t n = kLeastObject; n < 64; n += quantum) sizes.add(n, Kind::kSmall);
  for (std::size_t power = 16; 4 * power <= kLargestSmall; power *= 2) {
    for (std::size_t k = 4; k <= 7 && k * power <= kLargestSmall; ++k)
      sizes.add(k * power, Kind::kSmall);
  }
  if (prime) {
    // Primes of cache lines: from 5, which is the last small size.
    for (std::size_t p = next_spaced_prime(5); p * kCacheLine < kLeastLarge;
         p = next_spaced_prime(p)) {
      sizes.add(p * kCacheLine, Kind::kMedium);
    }
    sizes.add(9 * kCacheLine, Kind::kMedium);   // between 7 and 11
    sizes.add(15 * kCacheLine, Kind::kMedium);  // between 13 and 17
  }
  for (std::size_t n = 512; n < kLeastLarge; n *= 2) {
    sizes.add(n, prime ? Kind::kAligned : Kind::kMedium);
  }
  // Powers of two while sixteen of them fill a chunk; then what lets eight, four, two
  // fit beside the bookkeeping.
  for (std::size_t n = kLeastLarge; n <= kChunk / 16; n *= 2) sizes.add(n, Kind::kLarge);
  for (std::size_t fit = 8; fit >= 2; fit /= 2)
    sizes.add((kPagesInChunk / fit - 1) * kPage, Kind::kLarge);
  sizes.sort();
  return sizes;
}

constexpr std::size_t gcd(std::size_t a, std::size_t b) {
  while (b != 0) {
    const std::size_t r = a % b;
    a = b;
    b = r;
  }
  return a;
}

}  // namespace detail

/// x / d for x < 2^21 (a place in a chunk) and d > 1, by one multiplication: the upper half
/// of x * inverse. The lower half is below the inverse exactly where d divides x. (Granlund
/// & Montgomery, PLDI 1994, after the paper's reference 32; the test of the lower half:
/// Lemire, Kaser & Kurz, 2019.)
constexpr std::uint64_t inverse_of(std::size_t d) {
  return UINT64_MAX / d + 1;
}

struct Quotient {
  std::uint64_t value;
  bool exact;
};
constexpr Quotient divide(std::size_t x, std::uint64_t inverse) {
  const auto product = static_cast<unsigned __int128>(x) * inverse;
  return {static_cast<std::uint64_t>(product >> 64), static_cast<std::uint64_t>(product) < inverse};
}

/// The same by inverses[i], in two instructions where the machine has them: compilers copy its
/// operands for the second use of each.
SPANALLOC_INLINE Quotient divide_by(std::uint64_t x, const std::uint64_t* inverses, std::size_t i) {
#if defined(__x86_64__)
  std::uint64_t value;
  bool exact;
  // (What it reads is constant, so that nothing need say that it is read. x is written
  // before the others are read for the second time: "&", or one that is known to be equal
  // may be in its register.)
  asm("mulq (%3,%4,8)\n\tcmpq (%3,%4,8), %0"
      : "+&a"(x), "=&d"(value), "=@ccb"(exact)
      : "r"(inverses), "r"(i));
  return {value, exact};
#else
  return divide(x, inverses[i]);
#endif
}

/// What is known of a bin. Constant.
struct Bin {
  std::uint64_t inverse = 0;  // of the size
  std::uint32_t size = 0;     // bytes of an object
  std::uint32_t origin = 0;   // where in a chunk object 0 would lie
  // Number of the first object: those before lie in the bookkeeping
  std::uint32_t first = 0;
  std::uint32_t objects = 0;        // behind the number of the last one
  std::uint32_t folio_bytes = 0;    // whole pages; 0: large, no folios
  std::uint32_t folio_objects = 0;  // objects in a folio: they fill it
  std::uint32_t first_folio = 0;    // number of the first one, as for objects
  std::uint32_t folios = 0;         // behind the number of the last one
  std::uint32_t list_objects = 0;   // most objects of a list
  std::uint32_t chain_lists = 0;    // most lists of a chain
  Kind kind = Kind::kSmall;
  std::uint8_t folio_shift = 0;  // folio_objects is 2^this

  constexpr bool is_large() const { return kind == Kind::kLarge; }
};

/// What a folio's bookkeeping takes in its chunk's first pages: see folios.hpp; of a
/// large object: large_heap.hpp.
inline constexpr std::size_t kFolioCellBytes = 24;
inline constexpr std::size_t kObjectCellBytes = 8;
inline constexpr std::size_t kChunkHeadBytes = kCacheLine;

namespace detail {

constexpr std::size_t bookkeeping_bytes(std::size_t objects, std::size_t folios, bool large) {
  const std::size_t bits = align_up(objects + 1, 64) / 8;
  return kChunkHeadBytes + bits + (large ? objects * kObjectCellBytes : folios * kFolioCellBytes);
}

constexpr Bin make_bin(Size size, std::size_t list_bytes, std::size_t chain_bytes) {
  Bin bin;
  bin.size = size.bytes;
  bin.kind = size.kind;
  bin.inverse = inverse_of(size.bytes);
  if (bin.is_large()) {
    std::size_t count = kChunk / size.bytes;
    const auto origin = [&] {
      return align_up(bookkeeping_bytes(kChunk / size.bytes, 0, true), kPage);
    };
    while (origin() + count * size.bytes > kChunk) --count;
    bin.origin = static_cast<std::uint32_t>(origin());
    bin.objects = static_cast<std::uint32_t>(count);
  } else {
    // Folios are counted from the chunk's start, so that an object's number is its place
    // divided by its size; the bookkeeping takes up the first ones. (Where a folio is long most
    // of that one is never touched.)
    const std::size_t folio = size.bytes / gcd(size.bytes, kPage) * kPage;
    const std::size_t folios = kChunk / folio;
    const std::size_t objects = folio / size.bytes;
    const std::size_t bookkeeping = bookkeeping_bytes(kChunk / size.bytes, folios, false);
    bin.folio_bytes = static_cast<std::uint32_t>(folio);
    bin.folio_objects = static_cast<std::uint32_t>(objects);
    bin.folio_shift = static_cast<std::uint8_t>(log2_floor(objects));
    bin.first_folio = static_cast<std::uint32_t>((bookkeeping + folio - 1) / folio);
    bin.folios = static_cast<std::uint32_t>(folios);
    bin.first = static_cast<std::uint32_t>(bin.first_folio * objects);
    bin.objects = static_cast<std::uint32_t>(folios * objects);
  }
  bin.list_objects = static_cast<std::uint32_t>(max_of(list_bytes / size.bytes, 1));
  bin.chain_lists =
      static_cast<std::uint32_t>(max_of(chain_bytes / (bin.list_objects * size.bytes), 1));
  return bin;
}

}  // namespace detail

/// The bins of a Config, by number, in order of size.
template <class Config>
struct Bins {
  static constexpr std::size_t kQuantum = Config::kQuantum;
  static constexpr detail::Sizes kSizes = detail::make_sizes(Config::kPrimeSizes, kQuantum);
  static constexpr BinNumber kCount = kSizes.count;

  static constexpr std::array<Bin, kCount> kTable = [] {
    std::array<Bin, kCount> table{};
    for (BinNumber b = 0; b < kCount; ++b) {
      table[b] = detail::make_bin(kSizes.at[b], Config::kThreadListBytes, Config::kChainBytes);
    }
    return table;
  }();

  /// The largest object that has folios, and the largest one of all bins: what is larger is huge.
  static constexpr std::size_t kLargestWithFolios = [] {
    std::size_t largest = 0;
    for (const Bin& bin : kTable) {
      if (bin.kind == Kind::kMedium) largest = bin.size;
    }
    return largest;
  }();
  static constexpr std::size_t kLargest = kTable[kCount - 1].size;
  /// Bins below this number have folios and are in threads' caches.
  static constexpr BinNumber kFirstLarge = [] {
    BinNumber b = 0;
    while (!kTable[b].is_large()) ++b;
    return b;
  }();

  static constexpr std::uint32_t kMostFolioObjects = [] {
    std::uint32_t most = 0;
    for (const Bin& bin : kTable) most = bin.folio_objects > most ? bin.folio_objects : most;
    return most;
  }();

  static constexpr const Bin& of(BinNumber b) { return kTable[b]; }

  /// The bin for n bytes, plus one: what the chunk table says of it; n <= kLargestWithFolios.
  static constexpr std::size_t tag_for_folios(std::size_t n) {
    return kTagBySize[(n + kQuantum - 1) / kQuantum];
  }
  static constexpr BinNumber for_folios(std::size_t n) {
    return static_cast<BinNumber>(tag_for_folios(n) - 1);
  }
  /// By any byte that the chunk table may have for a tag: for bin + 1 that of the bin, for whatever
  /// is no bin with folios one that says of no place that an object begins there.
  static constexpr const std::uint64_t* inverses_by_tag() { return kInverses.data(); }

  /// The bin for n bytes; n <= kLargest.
  static constexpr BinNumber for_size(std::size_t n) {
    if (n <= kLargestWithFolios) return for_folios(n);
    BinNumber b = kFirstLarge;
    while (kTable[b].size < n) ++b;
    return b;
  }

  /// The least bin with folios whose every object is large enough and a multiple of `alignment` (a
  /// power of two of at most a page); kCount: there is none.
  static constexpr BinNumber for_aligned(std::size_t n, std::size_t alignment) {
    for (BinNumber b = 0; b < kFirstLarge; ++b) {
      if (kTable[b].size >= n && (kTable[b].size & (alignment - 1)) == 0) return b;
    }
    return kCount;
  }

 private:
  static constexpr auto kInverses = [] {
    std::array<std::uint64_t, 256> inverses{};
    for (BinNumber b = 0; b < kFirstLarge; ++b) inverses[b + 1] = kTable[b].inverse;
    return inverses;
  }();
  static constexpr auto kTagBySize = [] {
    std::array<std::uint8_t, kLargestWithFolios / kQuantum + 1> table{};
    for (std::size_t i = 0; i < table.size(); ++i) {
      BinNumber b = 0;
      while (kTable[b].size < i * kQuantum || kTable[b].kind == Kind::kAligned) ++b;
      table[i] = static_cast<std::uint8_t>(b + 1);
    }
    return table;
  }();
};

// --- What the paper says of them -----------------------------------------------------------------

namespace detail {

constexpr Sizes kSizesOfPaper = Bins<Supermalloc>::kSizes;

constexpr bool sizes_are_the_papers() {
  // Figure 2's from 64 bytes up, and the two of section 4 that it leaves out.
  constexpr std::size_t kPaper[] = {
      64,   80,   96,   112,   128,   160,   192,   224,   256,    320,    448,    512,
      576,  704,  832,  960,   1024,  1088,  1472,  1984,  2048,   2752,   3904,   4096,
      5312, 7232, 8192, 10048, 14272, 16384, 32768, 65536, 131072, 258048, 520192, 1044480};
  std::uint32_t i = 0;
  while (kSizesOfPaper.at[i].bytes < 64) ++i;
  for (const std::size_t bytes : kPaper) {
    if (i == kSizesOfPaper.count || kSizesOfPaper.at[i].bytes != bytes) return false;
    ++i;
  }
  return i == kSizesOfPaper.count;
}

/// "increase in size by at most 25%": of small sizes from 64 bytes up.
constexpr bool small_steps_are_short() {
  for (std::uint32_t i = 1; i < kSizesOfPaper.count; ++i) {
    const Size before = kSizesOfPaper.at[i - 1], size = kSizesOfPaper.at[i];
    if (size.kind != Kind::kSmall || before.bytes < 64) continue;
    if ((size.bytes - before.bytes) * 4 > before.bytes) return false;
  }
  return true;
}

/// "all sized a multiple of 64", prime ones but for 9 and 15; powers of two
/// are for aligned requests.
constexpr bool medium_sizes_are_prime() {
  for (std::uint32_t i = 0; i < kSizesOfPaper.count; ++i) {
    const Size size = kSizesOfPaper.at[i];
    const std::size_t lines = size.bytes / kCacheLine;
    if (size.kind == Kind::kMedium && size.bytes % kCacheLine != 0) return false;
    if (size.kind == Kind::kMedium && !is_prime(lines) && lines != 9 && lines != 15) return false;
    if (size.kind == Kind::kAligned && !is_power_of_two(size.bytes)) return false;
  }
  return true;
}

/// Of what is asked for, in percent, how much more the next size that serves it has.
constexpr std::size_t worst_excess(std::size_t from_lines, std::size_t to_lines) {
  const std::size_t asked = from_lines * kCacheLine + 1;
  return (to_lines * kCacheLine - asked) * 100 / asked;
}

constexpr bool bins_fit(const auto& table) {
  for (const Bin& bin : table) {
    if (bin.origin + std::size_t{bin.objects} * bin.size > kChunk || bin.objects <= bin.first)
      return false;
    if (bin.origin % kPage != 0) return false;
    if (bin.is_large()) {
      if (bin.size % kPage != 0) return false;
    } else if (bin.folio_bytes % kPage != 0 || bin.folio_bytes != bin.folio_objects * bin.size ||
               bin.folios * bin.folio_objects != bin.objects || bin.origin != 0) {
      return false;
    }
    if (bin.folio_objects > 512) return false;
    if (!bin.is_large() && bin.folio_objects != std::uint32_t{1} << bin.folio_shift) return false;
  }
  return true;
}

/// "The powers of two [of medium sizes] are used only when the application explicitly asks for
/// aligned data": no size alone leads to one.
template <class TheBins>
constexpr bool sizes_lead_to_no_power_of_two() {
  for (std::size_t n = 0; n <= TheBins::kLargestWithFolios; n += TheBins::kQuantum) {
    const Bin& bin = TheBins::of(TheBins::for_folios(n));
    if (bin.size < n || (bin.kind != Kind::kSmall && is_power_of_two(bin.size))) return false;
  }
  return true;
}

}  // namespace detail

static_assert(detail::sizes_are_the_papers());
static_assert(detail::small_steps_are_short());
static_assert(detail::medium_sizes_are_prime());
static_assert(detail::worst_excess(7, 11) == 56 && detail::worst_excess(13, 17) == 30,
              "the gaps that 9 and 15 lines close: 57 % and 31 % in the paper, which rounds up");
static_assert(detail::worst_excess(7, 9) <= 28 && detail::worst_excess(13, 15) <= 15);
static_assert(detail::bins_fit(Bins<Supermalloc>::kTable));
static_assert(Bins<Supermalloc>::kMostFolioObjects == 256);
static_assert(detail::bins_fit(Bins<SupermallocPowersOfTwo>::kTable));
static_assert(detail::bins_fit(Bins<SupermallocAlignedTo8>::kTable));
static_assert(detail::sizes_lead_to_no_power_of_two<Bins<Supermalloc>>());

}  // namespace spanalloc::supermalloc
