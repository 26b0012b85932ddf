// Which forms of operator new the process calls by their exported names.
#pragma once

#include <cstddef>
#include <new>

namespace spanalloc {

using PlainNew = void*(std::size_t);
using AlignedNew = void*(std::size_t, std::align_val_t);

/// Whether all forms of operator new that throw are this library's; `plain` and `aligned` are
/// its base forms. The loader has settled that before anything of this library runs. (Where
/// the program's code holds the address of such a form, the address may be that of a jump to
/// ours: then the answer is no.)
bool throwing_news_are_ours(PlainNew* plain, AlignedNew* aligned) noexcept;

}  // namespace spanalloc
