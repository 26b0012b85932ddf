// sp_stats_json: what an engine tells of itself, as a JSON document. docs/statistics.md is its
// description, docs/statistics.schema.json the same for machines.
#pragma once

#include <errno.h>
#include <spanalloc/spanalloc.h>

#include <cstddef>
#include <cstdint>

#include "api/figures.hpp"
#include "api/json_writer.hpp"
#include "base/compiler.hpp"
#include "engine/engine.hpp"
#include "os/os.hpp"
#include "pages/program_heaps.hpp"

namespace spanalloc {

/// What sp_stats_json does with the heap of an engine.
template <Engine E>
class StatisticsJson {
 public:
  /// The document's "schema": rises when a member goes or gets another meaning.
  static constexpr std::size_t kSchema = 1;

  SPANALLOC_COLD static int write(JsonWriter::Write write, void* context, unsigned flags) {
    if (write == nullptr || (flags & ~SP_STATS_KERNEL) != 0) return EINVAL;
    if (os::in_kernel_call()) return EBUSY;
    if constexpr (TakesInventory<E>) {
      // First of all: what `write` allocates is not in it.
      const auto inventory = E::take_inventory();
      write_document(write, context, flags, inventory.totals, [&](JsonWriter& out) {
        write_classes(out, inventory);
        if constexpr (requires { inventory.for_each_thread([](const ThreadFigures&) {}); })
          write_threads(out, inventory, flags);
      });
    } else {
      write_document(write, context, flags, E::statistics(), [](JsonWriter&) {});
    }
    return 0;
  }

 private:
  template <class WriteMore>
  SPANALLOC_COLD static void write_document(JsonWriter::Write write, void* context, unsigned flags,
                                            EngineStatistics totals, WriteMore&& write_more) {
    add_heaps(totals);
    const bool asks_kernel = (flags & SP_STATS_KERNEL) != 0;
    if constexpr (TellsResident<E>) {
      if (asks_kernel) totals.resident_bytes = E::resident_bytes();
    }
    JsonWriter out(write, context);
    out.begin('{');
    out.member("schema", kSchema);
    out.name("version");
    out.text(SPANALLOC_VERSION);
    out.name("engine");
    out.text(E::kName);
    if (asks_kernel) out.member("pid", static_cast<std::size_t>(os::process_id()));
    out.name("totals");
    out.begin('{');
    for_each_figure(
        totals, [&](const Figure& figure, std::size_t value) { out.member(figure.name, value); });
    out.end('}');
    write_program_heaps(out, totals);
    write_more(out);
    if constexpr (DescribesBins<E>) write_bins(out);
    out.end('}');
  }

  // The totals, and the largest heaps one by one. Others may be destroyed meanwhile, and others
  // made, also by `write`: each is looked up anew.
  SPANALLOC_COLD static void write_program_heaps(JsonWriter& out, const EngineStatistics& totals) {
    ProgramHeaps::Largest largest;
    ProgramHeaps::find_largest(largest);
    out.name("program_heaps");
    out.begin('{');
    out.member("heaps", totals.heaps);
    out.member("taken_bytes", totals.heaps_taken_bytes);
    out.member("kept_bytes", totals.heaps_kept_bytes);
    out.member("unlisted_heaps", largest.unlisted);
    out.member("unlisted_bytes", largest.unlisted_bytes);
    out.name("largest");
    out.begin('[');
    for (std::size_t i = 0; i < largest.count; ++i) {
      ProgramHeaps::Description heap;
      if (!ProgramHeaps::describe(largest.entries[i].handle, heap)) continue;
      out.begin('{');
      out.name("name");
      out.foreign_text(heap.name);
      out.name("heap");
      out.address(heap.handle);
      out.member("limit_bytes", heap.limit_bytes);
      out.member("taken_bytes", heap.taken_bytes);
      out.member("used_bytes", heap.used_bytes);
      out.member("used_blocks", heap.used_blocks);
      out.end('}');
    }
    out.end(']');
    out.end('}');
  }

  template <class Inventory>
  SPANALLOC_COLD static void write_classes(JsonWriter& out, const Inventory& inventory) {
    out.name("classes");
    out.begin('[');
    inventory.for_each_class([&](const ClassFigures& figures) {
      out.begin('{');
      out.member("block_bytes", figures.block_bytes);
      out.member("span_bytes", figures.span_bytes);
      out.member("spans", figures.spans);
      out.member("blocks", figures.blocks);
      out.member("carved_blocks", figures.carved_blocks);
      out.member("live_blocks", figures.live_blocks);
      out.member("free_blocks", figures.free_blocks);
      out.member("unsure_blocks", figures.unsure_blocks);
      out.end('}');
    });
    out.end(']');
  }
  template <class Inventory>
  SPANALLOC_COLD static void write_threads(JsonWriter& out, const Inventory& inventory,
                                           unsigned flags) {
    out.name("threads");
    out.begin('[');
    inventory.for_each_thread([&](const ThreadFigures& figures) {
      const bool is_calling = figures.mark == address_of(os::thread_id());
      out.begin('{');
      out.name("pthread");
      out.address(os::pthread_of(figures.mark));
      out.name("is_calling");
      out.boolean(is_calling);
      if (is_calling && (flags & SP_STATS_KERNEL) != 0)
        out.member("tid", static_cast<std::size_t>(os::kernel_thread_id()));
      out.member("spans", figures.spans);
      out.member("span_bytes", figures.span_bytes);
      out.member("live_bytes", figures.live_bytes);
      out.member("unsure_bytes", figures.unsure_bytes);
      out.member("kept_block_bytes", figures.kept_block_bytes);
      out.member("kept_span_bytes", figures.kept_span_bytes);
      out.end('}');
    });
    out.end(']');
  }
  // What malloc_info has as `bins`.
  SPANALLOC_COLD static void write_bins(JsonWriter& out) {
    bool in_bin = false;
    const auto end_bin = [&] {
      if (!in_bin) return;
      out.end(']');
      out.end('}');
    };
    out.name("bins");
    out.begin('[');
    E::describe(
        [&](std::size_t size, std::size_t folio, std::size_t committed, std::size_t cached) {
          end_bin();
          in_bin = true;
          out.begin('{');
          out.member("size", size);
          out.member("folio_bytes", folio);
          out.member("committed_bytes", committed);
          out.member("cached_objects", cached);
          out.name("folios");
          out.begin('[');
        },
        [&](std::size_t free, std::size_t folios) {
          out.begin('{');
          out.member("free_objects", free);
          out.member("folios", folios);
          out.end('}');
        });
    end_bin();
    out.end(']');
  }
};

}  // namespace spanalloc
