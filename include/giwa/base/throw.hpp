// SPDX-License-Identifier: MIT
// The opt-in shell for programs that prefer text and exceptions: format_status, status_error, throw_if_failed.
#ifndef GIWA_BASE_THROW_HPP
#define GIWA_BASE_THROW_HPP

#include <giwa/base/status.hpp>

#include <cstdio>
#include <exception>

namespace giwa::inline GIWA_ABI {

/// A status in words, in a fixed buffer: no allocation, and a text too long for it is cut.
struct status_text {
  char text[512];  ///< ends with a zero
  /// The text, for printf.
  const char* c_str() const { return text; }
};

/// "giwa: invalid argument `block`: a block holds at most 1024 threads (at most 1024, got 2048)".
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

/// What throw_if_failed throws: the status, and its words as what().
class status_error : public std::exception {
 public:
  /// Puts the status into words.
  explicit status_error(const status& s) : state_(s), text_(format_status(s)) {}
  /// The words of format_status().
  const char* what() const noexcept override { return text_.c_str(); }
  /// The status that caused it.
  const giwa::status& state() const noexcept { return state_; }

 private:
  giwa::status state_;
  status_text text_;
};

#if defined(__cpp_exceptions)  // with -fno-exceptions there is format_status, and the status itself
/// Throws status_error unless the call succeeded.
inline void throw_if_failed(const status& s) {
  if (!s.ok()) throw status_error(s);
}

/// Returns the value of a result, or throws status_error if there is none. A temporary gives up its value, as in
/// `auto a = throw_if_failed(to_device(stream, x));`. A named result keeps it and gives a reference: `auto& a = throw_if_failed(r);`.
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
