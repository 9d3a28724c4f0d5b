// SPDX-License-Identifier: MIT
// elementwise{c, a, b}: contiguous arrays of equal size for for_all, which computes c[i] = f(a[i], b[i]).
#ifndef GIWA_GRID_ELEMENTWISE_HPP
#define GIWA_GRID_ELEMENTWISE_HPP

#include <giwa/grid/host_for_all.hpp>
#include <giwa/numeric/tensor_view.hpp>

namespace giwa::inline GIWA_ABI {

namespace detail {

/// A list of pointers, one for each element type, that are read at the same offset.
template <class... T>
struct pointers {
#if defined(__CUDACC__)
#pragma nv_exec_check_disable  // f is for one side or for both; the caller chooses the side
#endif
  template <class F, class... Value>
  GIWA_HOST_DEVICE auto call(const F& f, int64, const Value&... value) const {
    return f(value...);
  }
};
template <class First, class... Rest>
struct pointers<First, Rest...> {
  const First* first;
  pointers<Rest...> rest;

  /// Returns f(first[i], ...): reads every pointer at i and passes the values on.
#if defined(__CUDACC__)
#pragma nv_exec_check_disable
#endif
  template <class F, class... Value>
  GIWA_HOST_DEVICE auto call(const F& f, int64 i, const Value&... value) const {
    return rest.call(f, i, value..., first[i]);
  }
};

/// The element type of an elementwise that was made from raw pointers.
struct raw_pointer {};

/// The function that fill() computes of every element.
template <class T>
struct constant {
  T value;
  GIWA_HOST_DEVICE T operator()() const { return value; }
};
/// What an array is filled with: its element type, to which an argument converts.
template <class Array>
using value_for = stdlib::remove_cv_t<element_of<stdlib::remove_reference_t<Array>>>;

}  // namespace detail

/// The arrays of `for_all(where, elementwise{c, a, b}, f)`: an output and any number of inputs. Each is a tensor_view of
/// any rank, a device_array, or a type with data() and size(); all are contiguous and have the same number of elements. An
/// input may be the output itself; any other overlap with the output is an error. Refers to the arrays; owns nothing.
template <class Out, class... In>
class elementwise {
 public:
  static_assert(!stdlib::is_const_v<Out>,
                "giwa::elementwise: the first array is the output: its elements must not be const.");

  /// Takes the output first, then the inputs. state() tells what is wrong with them.
  template <detail::contiguous_range_like OutArray, detail::contiguous_range_like... InArray>
  elementwise(OutArray&& out, InArray&&... in)
      : out_(out.data()), size_(static_cast<int64>(out.size())), in_{make(in.data()...)} {
    check_array(out, "out");
    (check_input(in), ...);
    known_device_ = device_of(out);
    ((known_device_ = device_of(in) == known_device_ ? known_device_ : -1), ...);
    on_a_gpu_ = device_of(out) >= 0 ? "out" : ((device_of(in) >= 0) || ...) ? "in" : nullptr;
  }

  /// Rejects pointers at compile time, because a pointer has no size.
#if !defined(GIWA_DOXYGEN)  // a call that does not compile, and the reason
  template <class... Array>
    requires(stdlib::is_pointer_v<Array> || ...)
  elementwise(const Array&...) {
    static_assert(detail::always_false<Array...>,
                  "giwa::elementwise: a pointer has no size: pass tensor_view<float, 1>{pointer, {n}}.");
  }
#endif

  /// Returns the output, the inputs, and the number of elements of each.
  ///@{
  Out* out() const { return out_; }
  const detail::pointers<In...>& in() const { return in_; }
  int64 size() const { return size_; }
  ///@}
  /// Returns the GPU that holds all arrays if each has a device(), as a device_array has; otherwise -1.
  int known_device() const { return known_device_; }
  /// Returns the name of an argument whose device() is a GPU, or null.
  const char* on_a_gpu() const { return on_a_gpu_; }
  /// Returns the first error of the arrays: sizes that differ, overlap, strides, a null pointer.
  const status& state() const { return state_; }

 private:
  static detail::pointers<In...> make(const In*... in) { return make_list<In...>(in...); }
  template <class First, class... Rest>
  static detail::pointers<First, Rest...> make_list(const First* first, const Rest*... rest) {
    return {first, make_list<Rest...>(rest...)};
  }
  template <class... None>
    requires(sizeof...(None) == 0)
  static detail::pointers<> make_list() {
    return {};
  }

  template <class Array>
  static int device_of(const Array& array) {
    if constexpr (requires { array.device(); })
      return array.device();
    else
      return -1;
  }

  template <class Array>
  void check_array(const Array& array, const char* argument) {
    if (!state_.ok()) return;
    if constexpr (requires { array.check(argument); }) {
      state_ = array.check(argument);
      if (state_.ok() && !array.contiguous())
        state_ = status::invalid(argument, "the elements must be contiguous; use for_all over the extents instead");
    } else {
      using element = const detail::element_of<const Array>;
      state_ = tensor_view<element, 1>(array.data(), {array.size()}).check(argument);
    }
  }

  template <class Array>
  void check_input(const Array& array) {
    check_array(array, "in");
    if (!state_.ok()) return;
    if (static_cast<int64>(array.size()) != size_) {
      state_ = status::invalid("in", "an input must have as many elements as the output", bound::exactly, size_,
                               static_cast<int64>(array.size()));
      return;
    }
    constexpr auto out_bytes = sizeof(Out), in_bytes = sizeof(detail::element_of<const Array>);
    const auto out = reinterpret_cast<uint64>(out_), in = reinterpret_cast<uint64>(array.data());
    const auto n = static_cast<uint64>(size_);
    const bool overlap = n > 0 && out < in + n * in_bytes && in < out + n * out_bytes;
    if (overlap && (out != in || out_bytes != in_bytes))
      state_ = status::invalid("in", "an input must be the output itself or not overlap it");
  }

  Out* out_ = nullptr;
  int64 size_ = 0;
  detail::pointers<In...> in_{};
  int known_device_ = -1;
  const char* on_a_gpu_ = nullptr;
  status state_{};
};

/// Deduces the element types.
template <detail::contiguous_range_like OutArray, detail::contiguous_range_like... InArray>
elementwise(OutArray&&, InArray&&...)
    -> elementwise<detail::element_of<stdlib::remove_reference_t<OutArray>>,
                   stdlib::remove_cv_t<detail::element_of<stdlib::remove_reference_t<InArray>>>...>;

#if !defined(GIWA_DOXYGEN)  // so that the constructor says what is wrong
template <class... Array>
  requires(stdlib::is_pointer_v<Array> || ...)
elementwise(const Array&...) -> elementwise<detail::raw_pointer>;

template <class Out, class... In>
inline constexpr bool detail::is_iterable<elementwise<Out, In...>> = true;
#endif

/// Computes out[i] = f(in[i], ...) on the CPU for every element, as the overload for streams does on the GPU, and returns
/// when all are done.
///
/// Parameters:
///   - where: giwa::host
///   - arrays: the output, then the inputs, in host memory
///   - f: a const callable, of which each worker thread has its own copy
///
/// Errors: those of elementwise::state(), and a device_array. Other pointers are not checked.
template <class Out, class... In, class F>
status for_all(host_t where, const elementwise<Out, In...>& arrays, const F& f) {
  detail::refuse_device_lambda<F>();
  detail::require_function_of_elements<F, In...>();
  if (!arrays.state().ok()) return arrays.state();
  if (arrays.on_a_gpu() != nullptr)
    return status::invalid(arrays.on_a_gpu(), "the array is in GPU memory, which the CPU cannot read; pass a stream");
  return for_all(where, arrays.size(),
                 [out = arrays.out(), in = arrays.in(), f](int64 i) { out[i] = static_cast<Out>(in.call(f, i)); });
}

/// Sets every element of an array in host memory to a value: `fill(host, x, 0)`.
///
/// Parameters:
///   - where: giwa::host
///   - array: contiguous: a tensor_view of any rank, or a type with data() and size()
///   - value: converts to the element type
///
/// Errors: as of for_all(host, elementwise{array}, f).
template <detail::contiguous_range_like Array>
status fill(host_t where, Array&& array, const detail::value_for<Array>& value) {
  return for_all(where, elementwise{array}, detail::constant<detail::value_for<Array>>{value});
}

}  // namespace giwa::inline GIWA_ABI

#endif
