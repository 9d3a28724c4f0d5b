// SPDX-License-Identifier: MIT
// Which of the last arguments of a call are its mask, its score modifier and its options.
#ifndef GIWA_ATTENTION_PROBLEM_LAST_ARGUMENTS_HPP
#define GIWA_ATTENTION_PROBLEM_LAST_ARGUMENTS_HPP

#include <giwa/attention/problem/masks.hpp>
#include <giwa/attention/problem/options.hpp>
#include <giwa/attention/problem/score.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// The last arguments of a call, (mask, score, options), any of which may be left out. Options may stand in the place of
/// the mask or of the score modifier: parameters of these have the type of the options by default, so braces are options
/// there. A mask that is options stands for full, a score modifier for plain_score.
template <class Options, class Mask, class Score>
class last_arguments {
 public:
  GIWA_HOST_DEVICE constexpr last_arguments(const Mask& mask, const Score& score, const Options& options)
      : mask_(mask), score_(score), options_(options) {}

  /// The mask, and the score modifier.
  ///@{
  GIWA_HOST_DEVICE constexpr decltype(auto) mask() const {
    if constexpr (mask_is_options)
      return full{};
    else
      return (mask_);
  }
  GIWA_HOST_DEVICE constexpr decltype(auto) score() const {
    if constexpr (score_is_options)
      return plain_score{};
    else
      return (score_);
  }
  ///@}
  /// The options that are given, or defaults.
  GIWA_HOST_DEVICE constexpr const Options& options() const {
    if constexpr (mask_is_options)
      if (has_values(mask_)) return mask_;
    if constexpr (score_is_options)
      if (has_values(score_)) return score_;
    return options_;
  }
  /// Whether options are given at most once.
  GIWA_HOST_DEVICE constexpr status check() const {
    int count = has_values(options_) ? 1 : 0;
    if constexpr (mask_is_options) count += has_values(mask_) ? 1 : 0;
    if constexpr (score_is_options) count += has_values(score_) ? 1 : 0;
    if (count <= 1) return {};
    return status::invalid("options", "options are given more than once; pass one list of options", bound::at_most, 1,
                           count);
  }

 private:
  static constexpr bool mask_is_options = stdlib::same_as<Mask, Options>,
                        score_is_options = stdlib::same_as<Score, Options>;
  const Mask& mask_;
  const Score& score_;
  const Options& options_;
};

/// The type of a mask or a score modifier, from an argument that may be options.
template <class Argument, class Options, class Default>
using argument_or = stdlib::conditional_t<stdlib::same_as<Argument, Options>, Default, Argument>;

/// Refuses a mask or a score modifier that is none, such as the options of another call.
template <class Options, class Mask, class Score>
GIWA_HOST_DEVICE constexpr void require_last_arguments() {
  require_mask_and_score<argument_or<Mask, Options, full>, argument_or<Score, Options, plain_score>>();
}

}  // namespace giwa::inline GIWA_ABI::detail

#endif
