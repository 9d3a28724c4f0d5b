// SPDX-License-Identifier: MIT
// append_to_cache on the CPU: rows and units of heads shared among threads.
#ifndef GIWA_ATTENTION_CPU_APPEND_HPP
#define GIWA_ATTENTION_CPU_APPEND_HPP

#include <giwa/attention/call/append.hpp>
#include <giwa/grid/host_for_all.hpp>
#include <giwa/grid/host_loop.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// The work on a unit of all heads of k, of v, or of q in a row.
template <class Params>
struct append_row_unit {
  Params p;
  void operator()(index<3> at) const { append_slice<1>(p, at[0], static_cast<int>(at[1]), static_cast<int>(at[2])); }
};

template <class Rotary>
struct host_append {
  template <class T, class Element>
  static status run(const append_views<T, Element>& a, const Rotary& rotary) {
    const int64 most = a.k.extent(2) > a.q.extent(2) ? a.k.extent(2) : a.q.extent(2);
    const auto p = append_params_of<1>(a, rotary, most);
    return for_all(host, extents{p.rows, p.slices.divisor(), p.units.divisor()}, append_row_unit<decltype(p)>{p});
  }
};

}  // namespace giwa::inline GIWA_ABI::detail

#endif
