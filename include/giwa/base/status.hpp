// SPDX-License-Identifier: MIT
// How giwa reports: a status (what broke, which argument, the bound and the value seen), and a value with its status.
#ifndef GIWA_BASE_STATUS_HPP
#define GIWA_BASE_STATUS_HPP

#include <giwa/base/std.hpp>

namespace giwa::inline GIWA_ABI {

/// What kind of thing went wrong; `success` is zero.
enum class status_code : int {
  success = 0,
  invalid_argument,  ///< the call breaks a rule of its documentation
  not_supported,     ///< the call is right, but not on this device or in this build
  out_of_memory,     ///< the device or the host has too little memory left
  no_device,         ///< there is no such GPU, or none at all
  no_driver,         ///< no usable NVIDIA driver
  no_kernel_image,   ///< this binary holds no code for this GPU
  cuda_error,        ///< anything else that the CUDA runtime reports, see status::cuda_code
};

/// How the value seen relates to the bound that it breaks.
enum class bound : int { none, exactly, at_most, at_least };

/// What a call answers: trivially copyable, made of static strings, never allocates, on the host and on the device.
/// `argument` names the caller's argument, or is empty. `expected` and `got` count only where `relation` is not none.
struct [[nodiscard]] GIWA_ABI_TAG status {
  status_code code = status_code::success;  ///< what kind of thing went wrong
  bound relation = bound::none;             ///< how `got` breaks `expected`
  int cuda_code = 0;                        ///< the cudaError_t behind it, 0 if none
  const char* message = "";                 ///< a sentence: the rule that is broken, and what to do
  const char* argument = "";                ///< the caller's name of what is wrong, or empty
  int64 expected = 0;                       ///< the bound
  int64 got = 0;                            ///< the value seen

  /// Whether the call succeeded.
  ///@{
  GIWA_HOST_DEVICE constexpr bool ok() const { return code == status_code::success; }
  GIWA_HOST_DEVICE constexpr explicit operator bool() const { return ok(); }
  ///@}

  /// A status whose argument breaks a rule that has no number in it.
  GIWA_HOST_DEVICE static constexpr status invalid(const char* argument, const char* message) {
    return {status_code::invalid_argument, bound::none, 0, message, argument, 0, 0};
  }
  /// A status whose argument breaks a bound: "`argument`: message (at most `expected`, got `got`)".
  GIWA_HOST_DEVICE static constexpr status invalid(const char* argument, const char* message, bound relation,
                                                   int64 expected, int64 got) {
    return {status_code::invalid_argument, relation, 0, message, argument, expected, got};
  }
};

/// A value, or the status that says why there is none. The value of a failed result is the type's empty state.
template <class T>
struct [[nodiscard]] GIWA_ABI_TAG result {
  T value{};       ///< what was asked for; the empty state where there is none
  status state{};  ///< success, or why there is no value

  /// Whether there is a value.
  ///@{
  GIWA_HOST_DEVICE constexpr bool ok() const { return state.ok(); }
  GIWA_HOST_DEVICE constexpr explicit operator bool() const { return ok(); }
  ///@}
};

/// The code's name in words: "invalid argument".
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
  }
  return "unknown status code";
}

/// "at most", and so on; empty for none.
GIWA_HOST_DEVICE constexpr const char* name_of(bound relation) {
  switch (relation) {
    case bound::none: return "";
    case bound::exactly: return "exactly";
    case bound::at_most: return "at most";
    case bound::at_least: return "at least";
  }
  return "";
}

}  // namespace giwa::inline GIWA_ABI

#endif
