// SPDX-License-Identifier: MIT
// The header that binds NCCL; compiling it is the test, where NCCL is installed.
#include <giwa/nccl.hpp>

static_assert(giwa::communicator<giwa::nccl_communicator, cudaStream_t>);
static_assert(giwa::communicator<giwa::nccl_communicator, giwa::stream>);
static_assert(giwa::communicator<giwa::host_communicator, giwa::host_t>);
static_assert(!giwa::communicator<giwa::host_communicator, cudaStream_t>);
