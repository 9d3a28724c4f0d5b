// SPDX-License-Identifier: MIT
// How giwa reports errors: a status (code, argument, bound and value), and a result, which is a value with its status.
#ifndef GIWA_BASE_STATUS_HPP
#define GIWA_BASE_STATUS_HPP

#include <giwa/base/std.hpp>

namespace giwa::inline GIWA_ABI {

/// The kind of an error. `success` is zero.
enum class status_code : int {
  success = 0,
  invalid_argument,     ///< an argument breaks a documented rule
  not_supported,        ///< the call is valid, but this device or this build does not support it
  out_of_memory,        ///< the device or the host has too little free memory
  no_device,            ///< there is no GPU, or none with this number
  no_driver,            ///< no usable NVIDIA driver
  no_kernel_image,      ///< this binary contains no code for this GPU
  cuda_error,           ///< any other error of the CUDA runtime: see status::cuda_code
  communication_error,  ///< NCCL, or another communicator, failed or was aborted
};

/// The relation to `expected` that `got` violates.
enum class bound : int { none, exactly, at_most, at_least, multiple_of };

/// The result of a call that can fail: what is wrong, with which argument, the bound and the value. Trivially copyable,
/// made of static strings, never allocates; for host and device code. `expected` and `got` are valid if `relation` is
/// not none.
struct [[nodiscard]] GIWA_ABI_TAG status {
  status_code code = status_code::success;  ///< the kind of error
  bound relation = bound::none;             ///< the relation to `expected` that `got` violates
  int cuda_code = 0;                        ///< the cudaError_t that caused it, 0 if none
  const char* message = "";                 ///< the rule that is broken, and what to do
  const char* argument = "";                ///< the name of the argument, or empty
  int64 expected = 0;                       ///< the bound
  int64 got = 0;                            ///< the value that was given

  /// Returns whether the call succeeded.
  ///@{
  GIWA_HOST_DEVICE constexpr bool ok() const { return code == status_code::success; }
  GIWA_HOST_DEVICE constexpr explicit operator bool() const { return ok(); }
  ///@}

  /// Makes a status for an argument that breaks a rule without a bound.
  GIWA_HOST_DEVICE static constexpr status invalid(const char* argument, const char* message) {
    return {status_code::invalid_argument, bound::none, 0, message, argument, 0, 0};
  }
  /// Makes a status for an argument that violates a bound: "`argument`: message (at most `expected`, got `got`)".
  GIWA_HOST_DEVICE static constexpr status invalid(const char* argument, const char* message, bound relation,
                                                   int64 expected, int64 got) {
    return {status_code::invalid_argument, relation, 0, message, argument, expected, got};
  }
};

namespace detail {

/// Stops at the first of several rules that fails: `if (broken(check_a()) || broken(check_b())) return broken.state;`
struct first_failure {
  status state{};

  GIWA_HOST_DEVICE constexpr bool operator()(const status& next) {
    state = next;
    return !state.ok();
  }
};

}  // namespace detail

/// A value, or the status that says why there is none. The value of a failed result is default-constructed.
template <class T>
struct [[nodiscard]] GIWA_ABI_TAG result {
  T value{};       ///< the value; default-constructed if the call failed
  status state{};  ///< success, or the error

  /// Returns whether there is a value.
  ///@{
  GIWA_HOST_DEVICE constexpr bool ok() const { return state.ok(); }
  GIWA_HOST_DEVICE constexpr explicit operator bool() const { return ok(); }
  ///@}
};

/// Returns the name of a code in words: "invalid argument".
GIWA_HOST_DEVICE constexpr const char* name_of(status_code code) {
  switch (code) {
    case status_code::success: return "success";
    case status_code::invalid_argument: return "invalid argument";
    case status_code::not_supported: return "not supported";
    case status_code::out_of_memory: return "out of memory";
    case status_code::no_device: return "no device";
    case status_code::no_driver: return "no driver";
    case status_code::no_kernel_image: return "no kernel image";
    case status_code::cuda_error: return "CUDA error";
    case status_code::communication_error: return "communication error";
  }
  return "unknown status code";
}

/// Returns the relation in words, as in "at most"; empty for none.
GIWA_HOST_DEVICE constexpr const char* name_of(bound relation) {
  switch (relation) {
    case bound::none: return "";
    case bound::exactly: return "exactly";
    case bound::at_most: return "at most";
    case bound::at_least: return "at least";
    case bound::multiple_of: return "a multiple of";
  }
  return "";
}

}  // namespace giwa::inline GIWA_ABI

#endif
