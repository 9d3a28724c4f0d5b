// SPDX-License-Identifier: MIT
// The concept of a communicator: what several ranks need to exchange tensors.
#ifndef GIWA_MULTI_COMMUNICATOR_HPP
#define GIWA_MULTI_COMMUNICATOR_HPP

#include <giwa/base/status.hpp>

namespace giwa::inline GIWA_ABI {

namespace detail {
/// What an exchange does, for the concept.
struct any_exchange {
  template <class Link>
  status operator()(const Link& link) const {
    if (const status s = link.send(static_cast<const void*>(nullptr), int64{}, int{}); !s.ok()) return s;
    return link.receive(static_cast<void*>(nullptr), int64{}, int{});
  }
};
}  // namespace detail

/// The ranks of a group, as one of them sees them, for calls at `Where`: a stream, or giwa::host. nccl_communicator is one
/// for GPUs, host_communicator one for threads.
/// - `int rank() const`, `int size() const`: the number of this rank, and how many there are.
/// - `status exchange(where, body) const`: begins an exchange. It calls `status body(const auto& link)` once, which calls
///   `link.send(const void* data, int64 bytes, int to)` for all that it sends and then `link.receive(void* data, int64
///   bytes, int from)` for all that it receives. Both return a status. What one rank sends to another arrives in the order
///   in which it was sent, and each receive has the size of its send. The exchange begins after the work that `where` has so
///   far, and does not hold up what follows.
/// - `status wait(where) const`: later work of `where` waits until the last exchange is done.
///
/// All ranks call exchange() equally often for each pair of them that has something to send.
template <class Communicator, class Where>
concept communicator = requires(const Communicator& c, const Where& where) {
  { c.rank() } -> stdlib::same_as<int>;
  { c.size() } -> stdlib::same_as<int>;
  { c.exchange(where, detail::any_exchange{}) } -> stdlib::same_as<status>;
  { c.wait(where) } -> stdlib::same_as<status>;
};

/// Ranks in two dimensions, for head_parallel_attention_forward() and _backward(): `mesh{heads, ring}`. `heads`
/// connects the ranks that exchange heads, `ring` those around which keys and values travel. Rank r of `ring` and h of
/// `heads` is rank r heads.size() + h of the mesh. With ncclCommSplit() the color of `heads` is rank / heads.size(),
/// that of `ring` rank % heads.size(). Both communicators must live as long as the mesh.
template <class Heads, class Ring>
struct mesh {
  const Heads& heads;  ///< between ranks with neighbouring tokens
  const Ring& ring;    ///< between ranks with the same heads

  /// A mesh of two communicators.
  mesh(const Heads& of_heads, const Ring& of_ring) : heads(of_heads), ring(of_ring) {}
  /// The number of this rank in the mesh.
  int rank() const { return ring.rank() * heads.size() + heads.rank(); }
  /// How many ranks the mesh has.
  int size() const { return ring.size() * heads.size(); }
};

namespace detail {
template <class Comm>
inline constexpr bool is_mesh = false;
template <class Heads, class Ring>
inline constexpr bool is_mesh<mesh<Heads, Ring>> = true;

/// The communicator of the ranks that exchange heads.
template <class Comm>
const auto& heads_of(const Comm& comm) {
  if constexpr (is_mesh<Comm>)
    return comm.heads;
  else
    return comm;
}

template <class Comm, class Where>
inline constexpr bool is_communicator_or_mesh = communicator<Comm, Where>;
template <class Heads, class Ring, class Where>
inline constexpr bool is_communicator_or_mesh<mesh<Heads, Ring>, Where> =
    communicator<Heads, Where> && communicator<Ring, Where>;
}  // namespace detail

/// What head-parallel attention takes: a communicator, or a mesh of two.
template <class Comm, class Where>
concept communicator_or_mesh = detail::is_communicator_or_mesh<Comm, Where>;

}  // namespace giwa::inline GIWA_ABI

#endif
