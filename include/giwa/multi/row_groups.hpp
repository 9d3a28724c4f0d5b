// SPDX-License-Identifier: MIT
// Copies, sums and zeros of the rows of tensors, a group of neighbouring elements at a time.
#ifndef GIWA_MULTI_ROW_GROUPS_HPP
#define GIWA_MULTI_ROW_GROUPS_HPP

#include <giwa/attention/call/forward_types.hpp>
#include <giwa/grid/host_for_all.hpp>
#include <giwa/numeric/vector_access.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// Neighbouring elements of a row, which are read and written together. Rows consist of them if has_groups().
template <class T, int Count>
struct alignas(Count == 1 ? alignof(T) : Count * sizeof(T)) row_group {
  T element[static_cast<uint64>(Count)];

  /// The group at a position of `x`: at[3] counts groups.
  GIWA_HOST_DEVICE static row_group load(const tensor_view<const T, 4>& x, index<4> at) {
    at[3] *= Count;
    if constexpr (Count == 1)
      return {{x[at]}};
    else
      return load_vector<row_group>(&x[at]);
  }
  GIWA_HOST_DEVICE void store(const tensor_view<T, 4>& to, index<4> at) const {
    at[3] *= Count;
    if constexpr (Count == 1)
      to[at] = element[0];
    else
      store_vector(&to[at], *this);
  }
  template <class From>
  GIWA_HOST_DEVICE void add(const row_group<From, Count>& other) {
    for (int i = 0; i < Count; ++i) element[i] += convert<T>{}(other.element[i]);
  }
};

/// Whether the rows of a tensor are groups of so many elements, at multiples of their size.
template <int Count, class T>
bool has_groups(const tensor_view<T, 4>& x) {
  if (x.size() == 0) return true;
  bool all = x.stride(3) == 1 && x.extent(3) % Count == 0 &&
             reinterpret_cast<uint64>(x.data()) % (sizeof(T) * uint64{Count}) == 0;
  for (int i = 0; i < 3; ++i) all = all && x.stride(i) % Count == 0;
  return all;
}
/// Runs what make(size) returns for the position of each group of `to`. Groups have `Count` elements if all these tensors
/// have them, else one.
template <int Count, class Where, class Make, class T, class... From>
status for_row_groups(const Where& where, const Make& make, const tensor_view<T, 4>& to,
                      const tensor_view<From, 4>&... from) {
  if (to.size() == 0) return {};
  const auto run = [&]<int Size>(stdlib::integral_constant<int, Size> count) {
    return for_all(where, extents{to.extent(0), to.extent(1), to.extent(2), to.extent(3) / Size}, make(count));
  };
  return has_groups<Count>(to) && (has_groups<Count>(from) && ...) ? run(stdlib::integral_constant<int, Count>{})
                                                                   : run(stdlib::integral_constant<int, 1>{});
}

template <class T, int Count>
struct copy_groups {
  tensor_view<T, 4> to;
  tensor_view<const T, 4> from;
  GIWA_HOST_DEVICE void operator()(index<4> at) const { row_group<T, Count>::load(from, at).store(to, at); }
};
template <class Where, class T>
status copy_rows(const Where& where, const tensor_view<const T, 4>& from, const tensor_view<T, 4>& to) {
  constexpr int count = sizeof(T) <= 8 && (sizeof(T) & (sizeof(T) - 1)) == 0 ? static_cast<int>(16 / sizeof(T)) : 1;
  return for_row_groups<count>(
      where,
      [&]<int Size>(stdlib::integral_constant<int, Size>) {
        return copy_groups<T, Size>{to, from};
      },
      to, from);
}

/// Sums of fp32: set to zero, or another tensor is added.
///@{
template <int Count>
struct zero_groups {
  tensor_view<float, 4> to;
  GIWA_HOST_DEVICE void operator()(index<4> at) const { row_group<float, Count>{}.store(to, at); }
};
template <class Where>
status set_to_zero(const Where& where, const tensor_view<float, 4>& to) {
  return for_row_groups<4>(
      where, [&]<int Size>(stdlib::integral_constant<int, Size>) { return zero_groups<Size>{to}; }, to);
}
template <int Count>
struct add_groups {
  tensor_view<float, 4> to;
  tensor_view<const float, 4> x;
  GIWA_HOST_DEVICE void operator()(index<4> at) const {
    auto sum = row_group<float, Count>::load(to, at);
    sum.add(row_group<float, Count>::load(x, at));
    sum.store(to, at);
  }
};
template <class Where>
status add_rows(const Where& where, const tensor_view<float, 4>& to, const tensor_view<const float, 4>& x) {
  return for_row_groups<4>(
      where,
      [&]<int Size>(stdlib::integral_constant<int, Size>) {
        return add_groups<Size>{to, x};
      },
      to, x);
}
///@}

}  // namespace giwa::inline GIWA_ABI::detail

#endif
