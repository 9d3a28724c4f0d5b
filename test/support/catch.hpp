// SPDX-License-Identifier: MIT
// The macros of Catch2 that the tests use, over a small interface that main.cpp implements: Catch2 2.13 is one header of
// 18 000 lines, which nvcc would parse three times for each program. For GENERATE and matchers a .cpp includes catch2.hpp.
#ifndef GIWA_TEST_SUPPORT_CATCH_HPP
#define GIWA_TEST_SUPPORT_CATCH_HPP

#include <concepts>
#include <initializer_list>
#include <string>
#include <string_view>
#include <type_traits>

namespace giwa_test {

// --- What main.cpp implements with Catch2 -------------------------------------------------------------------------------

/// Where a macro stands, and its text.
struct site {
  const char* macro;
  const char* file;
  int line;
  const char* expression;
  bool stops;  // REQUIRE ends the test case where it fails
};
/// Counts an assertion that holds.
void pass(const site& where);
/// Reports an assertion that does not hold; `values` is its text with the values seen.
void fail(const site& where, const std::string& values);
/// Ends the test case, which fails.
void stop(const site& where, const std::string& text);
/// Prints a line, and goes on.
void warn(const site& where, const std::string& text);
/// Adds a line to the report of the next assertion that fails.
void info_once(const site& where, const std::string& text);

/// Adds a line to the report of each assertion that fails while it lives.
class scoped_info {
 public:
  scoped_info(const site& where, const std::string& text);
  ~scoped_info();
  scoped_info(const scoped_info&) = delete;
  scoped_info& operator=(const scoped_info&) = delete;

 private:
  void* message_;
};

/// True in the run of the test case that enters this section.
class section {
 public:
  section(const site& where, const char* name);
  ~section();
  section(const section&) = delete;
  section& operator=(const section&) = delete;
  explicit operator bool() const { return entered_; }

 private:
  void* section_;
  bool entered_;
};

/// Registers a test case; `type` is appended to the name.
struct registration {
  registration(void (*test)(), const char* file, int line, const char* name, const char* tags = "",
               const std::string& type = "");
};

std::string text_of_number(long long x);
std::string text_of_number(unsigned long long x);
std::string text_of_number(double x);
std::string text_of_pointer(const volatile void* x);
std::string text_of_char(char x);
/// "a := 1, b := 2" of "a, b".
std::string text_of_capture(const char* names, std::initializer_list<std::string> values);

// --- Values as text -----------------------------------------------------------------------------------------------------

template <class T>
std::string text_of(const T& x) {
  using type = std::remove_cv_t<T>;
  if constexpr (std::same_as<type, bool>) {
    return x ? "true" : "false";
  } else if constexpr (std::same_as<type, char>) {
    return text_of_char(x);
  } else if constexpr (std::is_enum_v<type>) {
    return text_of_number(static_cast<long long>(x));
  } else if constexpr (std::signed_integral<type>) {
    return text_of_number(static_cast<long long>(x));
  } else if constexpr (std::unsigned_integral<type>) {
    return text_of_number(static_cast<unsigned long long>(x));
  } else if constexpr (std::floating_point<type>) {
    return text_of_number(static_cast<double>(x));
  } else if constexpr (std::same_as<type, std::nullptr_t>) {
    return "nullptr";
  } else if constexpr (std::convertible_to<const T&, std::string_view>) {
    if constexpr (std::is_pointer_v<type>) {
      if (x == nullptr) return "nullptr";
    }
    return '"' + std::string(std::string_view(x)) + '"';
  } else if constexpr (std::is_pointer_v<type>) {
    return text_of_pointer(reinterpret_cast<const volatile void*>(x));
  } else if constexpr (requires { x.begin() != x.end(); }) {
    std::string all = "{";
    int count = 0;
    for (const auto& element : x) {
      all += count == 0 ? " " : ", ";
      if (++count > 64) {
        all += "...";
        break;
      }
      const auto value = element;  // a copy: nvcc 12.4 does not carry decltype(element) over to the host compiler
      all += text_of(value);
    }
    return all + " }";
  } else {
    return "{?}";
  }
}

/// What INFO("a " << b) collects: strings as they are, other values as text.
class text {
 public:
  template <class T>
  text& operator<<(const T& x) {
    if constexpr (std::convertible_to<const T&, std::string_view>)
      all_ += std::string_view(x);
    else
      all_ += text_of(x);
    return *this;
  }
  const std::string& all() const { return all_; }

 private:
  std::string all_;
};

template <class... T>
std::string captured(const char* names, const T&... values) {
  return text_of_capture(names, {text_of(values)...});
}

// --- Comparisons that remember their sides ------------------------------------------------------------------------------

template <class L, class R>
struct comparison {
  bool holds;
  const L& left;
  const char* sign;
  const R& right;
  std::string values() const { return text_of(left) + sign + text_of(right); }
};

template <class L>
struct operand {
  const L& left;

// A literal is no constant here, so these would warn of `size == 3` and of `half == 0`.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wsign-compare"
#pragma GCC diagnostic ignored "-Wconversion"
#define GIWA_TEST_COMPARE(sign)                                          \
  template <class R>                                                     \
  friend comparison<L, R> operator sign(const operand& a, const R& b) {  \
    return {static_cast<bool>(a.left sign b), a.left, " " #sign " ", b}; \
  }
  GIWA_TEST_COMPARE(==)
  GIWA_TEST_COMPARE(!=)
  GIWA_TEST_COMPARE(<)
  GIWA_TEST_COMPARE(<=)
  GIWA_TEST_COMPARE(>)
  GIWA_TEST_COMPARE(>=)
#undef GIWA_TEST_COMPARE
#pragma GCC diagnostic pop
};

/// `decompose{} <=> a == b` is (decompose{} <=> a) == b. Of the operators that bind so, g++ warns of no comparison
/// after this one.
struct decompose {
  template <class L>
  friend operand<L> operator<=>(decompose, const L& left) {
    return {left};
  }
};

template <class L, class R>
void check(const site& where, const comparison<L, R>& c) {
  if (c.holds)
    pass(where);
  else
    fail(where, c.values());
}
template <class L>
void check(const site& where, const operand<L>& single) {
  if (static_cast<bool>(single.left))
    pass(where);
  else
    fail(where, text_of(single.left));
}
inline void check_false(const site& where, bool x) {
  if (x)
    fail(where, "!true");
  else
    pass(where);
}

template <class...>
struct types {};

/// Registers one test case for each type of a list such as std::tuple; `test` makes one of a type.
template <template <class...> class List, class... T, class Test>
int register_types(const List<T...>*, const Test& test, const char* file, int line, const char* name, const char* tags,
                   std::initializer_list<const char*> names = {}) {
  int i = 0;
  const auto name_of = [&] {
    const std::size_t at = static_cast<std::size_t>(i++);
    return " - " + (at < names.size() ? std::string(names.begin()[at]) : text_of(at));
  };
  (registration(test.template operator()<T>(), file, line, name, tags, name_of()), ...);
  return i;
}

}  // namespace giwa_test

// --- The macros ---------------------------------------------------------------------------------------------------------

#define GIWA_TEST_JOIN_(a, b) a##b
#define GIWA_TEST_JOIN(a, b) GIWA_TEST_JOIN_(a, b)
#define GIWA_TEST_UNIQUE(name) GIWA_TEST_JOIN(name, __LINE__)
#define GIWA_TEST_SITE(macro, stops, expression) \
  ::giwa_test::site { macro, __FILE__, __LINE__, expression, stops }

#define CHECK(...) \
  ::giwa_test::check(GIWA_TEST_SITE("CHECK", false, #__VA_ARGS__), ::giwa_test::decompose{} <=> __VA_ARGS__)
#define REQUIRE(...) \
  ::giwa_test::check(GIWA_TEST_SITE("REQUIRE", true, #__VA_ARGS__), ::giwa_test::decompose{} <=> __VA_ARGS__)
#define CHECK_FALSE(...) \
  ::giwa_test::check_false(GIWA_TEST_SITE("CHECK_FALSE", false, #__VA_ARGS__), static_cast<bool>(__VA_ARGS__))
#define REQUIRE_FALSE(...) \
  ::giwa_test::check_false(GIWA_TEST_SITE("REQUIRE_FALSE", true, #__VA_ARGS__), static_cast<bool>(__VA_ARGS__))
#define STATIC_REQUIRE(...)                 \
  static_assert(__VA_ARGS__, #__VA_ARGS__); \
  ::giwa_test::pass(GIWA_TEST_SITE("STATIC_REQUIRE", true, #__VA_ARGS__))
#define STATIC_REQUIRE_FALSE(...) STATIC_REQUIRE(!(__VA_ARGS__))
#define SUCCEED(...) ::giwa_test::pass(GIWA_TEST_SITE("SUCCEED", false, ""))
#define FAIL(...) ::giwa_test::stop(GIWA_TEST_SITE("FAIL", true, ""), (::giwa_test::text{} << __VA_ARGS__).all())

// Another exception leaves the test case, which then fails.
#define GIWA_TEST_THROWS(macro, stops, expression, ...)                    \
  do {                                                                     \
    const auto giwa_test_site = GIWA_TEST_SITE(macro, stops, #expression); \
    bool giwa_test_thrown = false;                                         \
    try {                                                                  \
      static_cast<void>(expression);                                       \
    } catch (__VA_ARGS__) {                                                \
      giwa_test_thrown = true;                                             \
    }                                                                      \
    if (giwa_test_thrown)                                                  \
      ::giwa_test::pass(giwa_test_site);                                   \
    else                                                                   \
      ::giwa_test::fail(giwa_test_site, "no exception");                   \
  } while (false)
#define CHECK_THROWS(...) GIWA_TEST_THROWS("CHECK_THROWS", false, (__VA_ARGS__), ...)
#define REQUIRE_THROWS(...) GIWA_TEST_THROWS("REQUIRE_THROWS", true, (__VA_ARGS__), ...)
#define CHECK_THROWS_AS(expression, ...) GIWA_TEST_THROWS("CHECK_THROWS_AS", false, expression, const __VA_ARGS__&)
#define REQUIRE_THROWS_AS(expression, ...) GIWA_TEST_THROWS("REQUIRE_THROWS_AS", true, expression, const __VA_ARGS__&)
#define GIWA_TEST_NOTHROW(macro, stops, ...)                       \
  do {                                                             \
    static_cast<void>(__VA_ARGS__);                                \
    ::giwa_test::pass(GIWA_TEST_SITE(macro, stops, #__VA_ARGS__)); \
  } while (false)
#define CHECK_NOTHROW(...) GIWA_TEST_NOTHROW("CHECK_NOTHROW", false, __VA_ARGS__)
#define REQUIRE_NOTHROW(...) GIWA_TEST_NOTHROW("REQUIRE_NOTHROW", true, __VA_ARGS__)

#define INFO(...)                                                                                     \
  const ::giwa_test::scoped_info GIWA_TEST_UNIQUE(giwa_test_info_)(GIWA_TEST_SITE("INFO", false, ""), \
                                                                   (::giwa_test::text{} << __VA_ARGS__).all())
#define CAPTURE(...)                                                                                     \
  const ::giwa_test::scoped_info GIWA_TEST_UNIQUE(giwa_test_info_)(GIWA_TEST_SITE("CAPTURE", false, ""), \
                                                                   ::giwa_test::captured(#__VA_ARGS__, __VA_ARGS__))
#define UNSCOPED_INFO(...) \
  ::giwa_test::info_once(GIWA_TEST_SITE("UNSCOPED_INFO", false, ""), (::giwa_test::text{} << __VA_ARGS__).all())
#define WARN(...) ::giwa_test::warn(GIWA_TEST_SITE("WARN", false, ""), (::giwa_test::text{} << __VA_ARGS__).all())

#define SECTION(name)                                                                                              \
  if (const ::giwa_test::section GIWA_TEST_UNIQUE(giwa_test_section_)(GIWA_TEST_SITE("SECTION", false, ""), name); \
      GIWA_TEST_UNIQUE(giwa_test_section_))

#define TEST_CASE(...)                                                                                               \
  static void GIWA_TEST_UNIQUE(giwa_test_case_)();                                                                   \
  static const ::giwa_test::registration GIWA_TEST_UNIQUE(giwa_test_registered_)(&GIWA_TEST_UNIQUE(giwa_test_case_), \
                                                                                 __FILE__, __LINE__, __VA_ARGS__);   \
  static void GIWA_TEST_UNIQUE(giwa_test_case_)()

#define GIWA_TEST_OF_TYPES(name, tags, list, ...)                                                                 \
  template <class TestType>                                                                                       \
  static void GIWA_TEST_UNIQUE(giwa_test_case_)();                                                                \
  struct GIWA_TEST_UNIQUE(giwa_test_of_) {                                                                        \
    template <class TestType>                                                                                     \
    auto operator()() const {                                                                                     \
      return &GIWA_TEST_UNIQUE(giwa_test_case_)<TestType>;                                                        \
    }                                                                                                             \
  };                                                                                                              \
  [[maybe_unused]] static const int GIWA_TEST_UNIQUE(giwa_test_registered_) =                                     \
      ::giwa_test::register_types(static_cast<const list*>(nullptr), GIWA_TEST_UNIQUE(giwa_test_of_){}, __FILE__, \
                                  __LINE__, name, tags, {__VA_ARGS__});                                           \
  template <class TestType>                                                                                       \
  static void GIWA_TEST_UNIQUE(giwa_test_case_)()

/// Types, each in parentheses where it has a comma.
#define TEMPLATE_TEST_CASE(name, tags, ...)                                                                   \
  using GIWA_TEST_UNIQUE(giwa_test_types_) = ::giwa_test::types<GIWA_TEST_EACH(GIWA_TEST_BARE, __VA_ARGS__)>; \
  GIWA_TEST_OF_TYPES(name, tags, GIWA_TEST_UNIQUE(giwa_test_types_), GIWA_TEST_EACH(GIWA_TEST_NAME, __VA_ARGS__))
/// A std::tuple of types.
#define TEMPLATE_LIST_TEST_CASE(name, tags, ...)          \
  using GIWA_TEST_UNIQUE(giwa_test_types_) = __VA_ARGS__; \
  GIWA_TEST_OF_TYPES(name, tags, GIWA_TEST_UNIQUE(giwa_test_types_))

#define GIWA_TEST_NAME(type) #type
// (a<1, 2>) without its parentheses, float as it is.
#define GIWA_TEST_BARE(type) GIWA_TEST_VANISH_(GIWA_TEST_KEEP type)
#define GIWA_TEST_KEEP(...) GIWA_TEST_KEEP __VA_ARGS__
#define GIWA_TEST_VANISH_(...) GIWA_TEST_VANISH__(__VA_ARGS__)
#define GIWA_TEST_VANISH__(...) GIWA_TEST_NO##__VA_ARGS__
#define GIWA_TEST_NOGIWA_TEST_KEEP
// macro(a), macro(b), ... of up to 256 arguments.
#define GIWA_TEST_EACH(macro, ...) __VA_OPT__(GIWA_TEST_4(GIWA_TEST_EACH_(macro, __VA_ARGS__)))
#define GIWA_TEST_EACH_(macro, first, ...) macro(first) __VA_OPT__(, GIWA_TEST_AGAIN GIWA_TEST_NONE(macro, __VA_ARGS__))
#define GIWA_TEST_AGAIN() GIWA_TEST_EACH_
#define GIWA_TEST_NONE ()
#define GIWA_TEST_4(...) GIWA_TEST_3(GIWA_TEST_3(GIWA_TEST_3(GIWA_TEST_3(__VA_ARGS__))))
#define GIWA_TEST_3(...) GIWA_TEST_2(GIWA_TEST_2(GIWA_TEST_2(GIWA_TEST_2(__VA_ARGS__))))
#define GIWA_TEST_2(...) GIWA_TEST_1(GIWA_TEST_1(GIWA_TEST_1(GIWA_TEST_1(__VA_ARGS__))))
#define GIWA_TEST_1(...) __VA_ARGS__

#endif
