// SPDX-License-Identifier: MIT
// The exchange of head-parallel attention: from all heads of some tokens to all tokens of some heads, and back.
#ifndef GIWA_MULTI_HEAD_EXCHANGE_HPP
#define GIWA_MULTI_HEAD_EXCHANGE_HPP

#include <giwa/attention/problem/workspace.hpp>
#include <giwa/multi/communicator.hpp>
#include <giwa/multi/ring_exchange.hpp>
#include <giwa/multi/slice_tokens.hpp>

namespace giwa::inline GIWA_ABI::detail {

/// A tensor by tokens and by heads. Absent if `own` has no heads.
template <class T>
struct head_tensor {
  tensor_view<T, 4> own;                             // (batch, tokens of this rank, heads, size), any strides
  tensor_view<stdlib::remove_const_t<T>, 4> all;     // (batch, tokens, heads / ranks, size), contiguous
  tensor_view<stdlib::remove_const_t<T>, 4> packed;  // (batch, tokens of this rank, heads / ranks, size) for rank 0

  constexpr bool present() const { return own.extent(2) > 0; }
  /// The heads of a rank.
  tensor_view<T, 4> heads_of(int rank) const {
    index<4> sizes = own.extents();
    sizes[2] = all.extent(2);
    return {own.data() == nullptr ? nullptr : own.data() + rank * sizes[2] * own.stride(2), sizes, own.strides()};
  }
  auto packed_for(int rank) const {
    auto p = packed;
    return decltype(p)(p.data() == nullptr ? nullptr : p.data() + rank * p.size(), p.extents());
  }
};

/// Carves the memory of a tensor, or counts it; a tensor without heads needs none.
template <class T>
constexpr head_tensor<T> take_heads(workspace_layout& layout, const tensor_view<T, 4>& own, int64 tokens, int ranks) {
  using element = stdlib::remove_const_t<T>;
  const index<4> e = own.extents();
  const int64 heads = e[2] / ranks;
  const auto elements = [&](int64 rows, int64 of_heads) {
    return saturated_product(saturated_product(e[0], rows), saturated_product(of_heads, e[3]));
  };
  element* const all = layout.take<element>(elements(tokens, heads));
  element* const packed = layout.take<element>(elements(e[1], e[2]));
  return {own, {all, {e[0], tokens, heads, e[3]}}, {packed, {e[0], e[1], heads, e[3]}}};
}

/// The tokens of the ranks that exchange heads: of all ranks, or of a group of them in a mesh.
struct head_group {
  const sequence_slices& slices;
  int number, size, ranks;  // of the group, its ranks, and all ranks

  template <class Comm>
  static head_group of(const Comm& comm, const sequence_slices& slices) {
    const int size = heads_of(comm).size();
    return {slices, comm.rank() / size, size, comm.size()};
  }
  /// The positions in the whole sequence.
  constexpr token_slice tokens() const { return slices.of_groups(size).of(number, ranks / size); }
  /// Which of the group's tokens rank `rank` of the group has.
  token_slice of(int rank) const {
    const token_slice all = tokens();
    token_slice own = slices.of(number * size + rank, ranks);
    own.ranges[0].first -= all.ranges[0].first;
    own.ranges[1].first -= all.ranges[1].first - all.ranges[0].count;
    return own;
  }
};

/// A tensor of one rank without memory, for take_heads() to count; `bytes`: of a row of a head.
constexpr tensor_view<unsigned char, 4> bytes_of_rank(int64 batch, int64 rows, int64 heads, int64 bytes) {
  return {nullptr, {batch, rows, heads, bytes}, {0, 0, 0, 1}};
}

/// The part of a workspace behind what was taken of it.
inline tensor_view<unsigned char, 1> rest_of(const tensor_view<unsigned char, 1>& workspace,
                                             const workspace_layout& taken) {
  const int64 begin = round_up(taken.bytes, workspace_layout::alignment);
  if (begin >= workspace.size()) return {};
  return {workspace.data() + begin, {workspace.size() - begin}};
}

/// What all tensors of a call have in common.
template <class Where, class Comm>
struct head_exchange {
  const Where& where;
  const Comm& comm;
  const head_group& group;

  token_slice slice_of(int rank) const { return group.of(rank); }

  /// Fills `all` of every tensor from `own` of all ranks.
  template <class... Tensors>
  status to_heads(const Tensors&... tensors) const {
    status s;
    static_cast<void>(((s = pack(tensors), s.ok()) && ...));
    if (!s.ok() || comm.size() == 1) return s;
    s = exchange(
        [&](const auto& link, int peer) {
          return all_of([&](const auto& t) { return send_packed(t, link, peer); }, tensors...);
        },
        [&](const auto& link, int peer) {
          return all_of([&](const auto& t) { return receive_rows(t, link, peer); }, tensors...);
        });
    return s;
  }
  /// Fills `own` of every tensor from `all` of all ranks, or adds that to it, in fp32.
  template <class... Tensors>
  status to_tokens(bool adds, const Tensors&... tensors) const {
    status s;
    if (comm.size() > 1)
      s = exchange(
          [&](const auto& link, int peer) {
            return all_of([&](const auto& t) { return send_rows(t, link, peer); }, tensors...);
          },
          [&](const auto& link, int peer) {
            return all_of([&](const auto& t) { return receive_packed(t, link, peer); }, tensors...);
          });
    static_cast<void>((s.ok() && ... && (s = unpack(adds, tensors), s.ok())));
    return s;
  }

 private:
  template <class Call, class... Tensors>
  static status all_of(const Call& call, const Tensors&... tensors) {
    status s;
    static_cast<void>(((s = call(tensors), s.ok()) && ...));
    return s;
  }
  template <class Send, class Receive>
  status exchange(const Send& send, const Receive& receive) const {
    const status begun = comm.exchange(where, [&](const auto& link) {
      status s;
      for (int i = 1; i < comm.size() && s.ok(); ++i) s = send(link, (comm.rank() + i) % comm.size());
      for (int i = 1; i < comm.size() && s.ok(); ++i) s = receive(link, (comm.rank() + comm.size() - i) % comm.size());
      return s;
    });
    return begun.ok() ? comm.wait(where) : begun;
  }

  /// The heads of each rank next to each other; this rank's go to their tokens.
  template <class T>
  status pack(const head_tensor<T>& t) const {
    if (!t.present()) return {};
    status s = gather_tokens(where, slice_of(comm.rank()), t.heads_of(comm.rank()), t.all);
    for (int r = 0; r < comm.size() && s.ok(); ++r)
      if (r != comm.rank()) s = copy_rows<Where, stdlib::remove_const_t<T>>(where, t.heads_of(r), t.packed_for(r));
    return s;
  }
  template <class T>
  status unpack([[maybe_unused]] bool adds, const head_tensor<T>& t) const {
    if (!t.present()) return {};
    if constexpr (stdlib::same_as<T, float>)
      if (adds) return unpack_and_add(t);
    status s = slice_tokens(where, slice_of(comm.rank()), t.all, t.heads_of(comm.rank()));
    for (int r = 0; r < comm.size() && s.ok(); ++r)
      if (r != comm.rank()) s = copy_rows<Where, T>(where, t.packed_for(r), t.heads_of(r));
    return s;
  }
  status unpack_and_add(const head_tensor<float>& t) const {
    const token_slice slice = slice_of(comm.rank());
    status s;
    for (int i = 0; i < 2 && s.ok(); ++i)
      s = add_rows(where, slice.rows(i).of(t.heads_of(comm.rank())), slice.ranges[i].of(t.all));
    for (int r = 0; r < comm.size() && s.ok(); ++r)
      if (r != comm.rank()) s = add_rows(where, t.heads_of(r), t.packed_for(r));
    return s;
  }
  /// The rows of a rank's slice in `all`, and in `packed`, which has them in the same order.
  template <class T, class Link>
  status send_rows(const head_tensor<T>& t, const Link& link, int peer) const {
    const auto send = [&](const T* x, int64 bytes) { return link.send(x, bytes, peer); };
    status s;
    for (int i = 0; i < 2 && s.ok() && t.present(); ++i) s = for_sequences(t.all, slice_of(peer).ranges[i], send);
    return s;
  }
  template <class T, class Link>
  status receive_rows(const head_tensor<T>& t, const Link& link, int peer) const {
    const auto receive = [&](stdlib::remove_const_t<T>* x, int64 bytes) { return link.receive(x, bytes, peer); };
    status s;
    for (int i = 0; i < 2 && s.ok() && t.present(); ++i) s = for_sequences(t.all, slice_of(peer).ranges[i], receive);
    return s;
  }
  template <class T, class Link>
  status send_packed(const head_tensor<T>& t, const Link& link, int peer) const {
    const auto send = [&](const T* x, int64 bytes) { return link.send(x, bytes, peer); };
    status s;
    for (int i = 0; i < 2 && s.ok() && t.present(); ++i)
      s = for_sequences(t.packed_for(peer), slice_of(comm.rank()).rows(i), send);
    return s;
  }
  template <class T, class Link>
  status receive_packed(const head_tensor<T>& t, const Link& link, int peer) const {
    const auto receive = [&](T* x, int64 bytes) { return link.receive(x, bytes, peer); };
    status s;
    for (int i = 0; i < 2 && s.ok() && t.present(); ++i)
      s = for_sequences(t.packed_for(peer), slice_of(comm.rank()).rows(i), receive);
    return s;
  }
};

/// A mask, or a score modifier, of all heads for a call on some of them.
template <class Mask>
struct head_mask {
  Mask mask;
  int first_head;

  static constexpr bool any_range = mask_traits<Mask>::any_range;
  static constexpr bool one_range = mask_traits<Mask>::one_range;
  GIWA_HOST_DEVICE constexpr attention_coord whole(attention_coord c) const {
    c.head += first_head;
    return c;
  }
  GIWA_HOST_DEVICE constexpr int first_key(attention_coord c) const
    requires has_first_key<Mask>
  {
    return mask.first_key(whole(c));
  }
  GIWA_HOST_DEVICE constexpr int last_key(attention_coord c) const
    requires has_last_key<Mask>
  {
    return mask.last_key(whole(c));
  }
  GIWA_HOST_DEVICE constexpr bool operator()(attention_coord c) const { return mask(whole(c)); }
  GIWA_HOST_DEVICE constexpr tile_keep classify(score_tile t) const
    requires requires { mask.classify(t); }
  {
    t.head += first_head;
    return mask.classify(t);
  }
};
template <class Score>
struct head_score {
  Score score;
  int first_head;

  GIWA_HOST_DEVICE constexpr attention_coord whole(attention_coord c) const {
    c.head += first_head;
    return c;
  }
  GIWA_HOST_DEVICE float operator()(float x, attention_coord c) const { return score(x, whole(c)); }
  GIWA_HOST_DEVICE dual<float> value_and_slope(float x, attention_coord c) const
    requires has_slope<Score>
  {
    return detail::value_and_slope(score, x, whole(c));
  }
};
/// The mask as it is, if all heads have the same one.
template <class Mask>
auto mask_of_heads(const Mask& mask, int first_head) {
  if constexpr (mask_traits<Mask>::any_head)
    return mask;
  else
    return head_mask<Mask>{mask, first_head};
}
template <class Score>
auto score_of_heads(const Score& score, int first_head) {
  if constexpr (is_plain_score<Score>)
    return score;
  else
    return head_score<Score>{score, first_head};
}

/// lse (batch, heads, rows) as a tensor (batch, rows, heads, 1), and back.
template <class T>
tensor_view<T, 4> tensor_of_lse(const tensor_view<T, 3>& x) {
  if (x.data() == nullptr && x.size() == 0 && x.extent(1) == 0) return {};
  return {x.data(), {x.extent(0), x.extent(2), x.extent(1), 1}, {x.stride(0), x.stride(2), x.stride(1), 1}};
}
template <class T>
tensor_view<T, 3> lse_of_tensor(const tensor_view<T, 4>& x) {
  return {x.data(), {x.extent(0), x.extent(2), x.extent(1)}, {x.stride(0), x.stride(2), x.stride(1)}};
}

}  // namespace giwa::inline GIWA_ABI::detail

#endif
