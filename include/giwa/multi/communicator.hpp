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

}  // namespace giwa::inline GIWA_ABI

#endif
