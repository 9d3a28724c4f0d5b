// SPDX-License-Identifier: MIT
// For programs that prefer text and exceptions: format_status, status_error and throw_if_failed.
#ifndef GIWA_BASE_THROW_HPP
#define GIWA_BASE_THROW_HPP

#include <giwa/base/status.hpp>

#include <cstdio>
#include <exception>

namespace giwa::inline GIWA_ABI {

/// A status in words, in a buffer of fixed size. Text that does not fit is cut.
struct status_text {
  char text[512];  ///< zero-terminated
  /// Returns the text, for printf.
  const char* c_str() const { return text; }
};

/// Returns a status in words: "giwa: invalid argument `block`: too many threads in a block (at most 1024, got 2048)".
inline status_text format_status(const status& s) {
  status_text out;
  int used = std::snprintf(out.text, sizeof out.text, "giwa: %s", name_of(s.code));
  const auto append = [&](const char* format, auto... values) {
    if (used < static_cast<int>(sizeof out.text))
      used += std::snprintf(out.text + used, sizeof out.text - static_cast<std::size_t>(used), format, values...);
  };
  if (s.argument[0] != '\0') append(" `%s`", s.argument);
  if (s.message[0] != '\0') append(": %s", s.message);
  if (s.relation != bound::none)
    append(" (%s %lld, got %lld)", name_of(s.relation), static_cast<long long>(s.expected),
           static_cast<long long>(s.got));
  if (s.cuda_code != 0) append(" [cudaError %d]", s.cuda_code);
  return out;
}

/// The exception that throw_if_failed() throws: a status, with its words as what().
class status_error : public std::exception {
 public:
  /// Formats the status.
  explicit status_error(const status& s) : state_(s), text_(format_status(s)) {}
  /// Returns the text of format_status().
  const char* what() const noexcept override { return text_.c_str(); }
  /// Returns the status.
  const giwa::status& state() const noexcept { return state_; }

 private:
  giwa::status state_;
  status_text text_;
};

#if defined(__cpp_exceptions)  // -fno-exceptions leaves format_status() and the status itself
/// Throws status_error if the call failed.
inline void throw_if_failed(const status& s) {
  if (!s.ok()) throw status_error(s);
}

/// Returns the value of a result, or throws status_error if there is none. A temporary gives up its value, as in `auto
/// a = throw_if_failed(to_device(stream, x));`. A named result keeps it and gives a reference: `auto& a =
/// throw_if_failed(r);`.
///@{
template <class T>
T throw_if_failed(result<T>&& r) {
  if (!r.ok()) throw status_error(r.state);
  return static_cast<T&&>(r.value);
}
template <class T>
T& throw_if_failed(result<T>& r) {
  if (!r.ok()) throw status_error(r.state);
  return r.value;
}
template <class T>
const T& throw_if_failed(const result<T>& r) {
  if (!r.ok()) throw status_error(r.state);
  return r.value;
}
///@}
#endif

}  // namespace giwa::inline GIWA_ABI

#endif
