// SPDX-License-Identifier: MIT
// The door to the CPU: for_all and softmax on giwa::host. A host compiler is enough.
#ifndef GIWA_HOST_HPP
#define GIWA_HOST_HPP

#include <giwa/grid/elementwise.hpp>
#include <giwa/grid/host_for_all.hpp>
#include <giwa/grid/host_loop.hpp>
#include <giwa/softmax/host_rows.hpp>
#include <giwa/softmax/host_softmax.hpp>

#endif
