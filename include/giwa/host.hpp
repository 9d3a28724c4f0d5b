// SPDX-License-Identifier: MIT
// Door: for_all on the CPU. A host compiler is enough.
#ifndef GIWA_HOST_HPP
#define GIWA_HOST_HPP

#include <giwa/grid/host_for_all.hpp>
#include <giwa/grid/host_loop.hpp>

#endif
