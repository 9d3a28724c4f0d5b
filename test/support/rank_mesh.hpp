// SPDX-License-Identifier: MIT
// A mesh of the ranks of one communicator, whose rows and columns are parts of it.
#ifndef GIWA_TEST_SUPPORT_RANK_MESH_HPP
#define GIWA_TEST_SUPPORT_RANK_MESH_HPP

#include <giwa/multi/communicator.hpp>

namespace giwa_test {

/// Some ranks of a communicator, at equal distances: a row or a column of a mesh.
template <class Comm>
struct part_of_ranks {
  const Comm& all;
  int first, stride, count;

  int rank() const { return (all.rank() - first) / stride; }
  int size() const { return count; }
  template <class Where, class Body>
  giwa::status exchange(const Where& where, const Body& body) const {
    return all.exchange(where, [&](const auto& link) { return body(part_link<decltype(link)>{link, first, stride}); });
  }
  template <class Where>
  giwa::status wait(const Where& where) const {
    return all.wait(where);
  }

 private:
  template <class Link>
  struct part_link {
    Link& link;
    int first, stride;
    giwa::status send(const void* data, giwa::int64 bytes, int to) const {
      return link.send(data, bytes, first + to * stride);
    }
    giwa::status receive(void* data, giwa::int64 bytes, int from) const {
      return link.receive(data, bytes, first + from * stride);
    }
  };
};

/// Calls run(mesh) for a mesh of all ranks, `heads` of which exchange heads.
template <class Comm, class Run>
giwa::status on_mesh(const Comm& all, int heads, const Run& run) {
  const int rank = all.rank();
  const part_of_ranks<Comm> of_heads{all, rank / heads * heads, 1, heads},
      of_ring{all, rank % heads, heads, all.size() / heads};
  return run(giwa::mesh(of_heads, of_ring));
}

}  // namespace giwa_test

#endif
