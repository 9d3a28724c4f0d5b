// SPDX-License-Identifier: MIT
// The version of giwa: the one place that states it, read by the code and by CMake.
#ifndef GIWA_VERSION_HPP
#define GIWA_VERSION_HPP

#define GIWA_VERSION_MAJOR 0
#define GIWA_VERSION_MINOR 1
#define GIWA_VERSION_PATCH 0

/// One ordered number: 0.1.0 is 100, 1.2.3 is 10203.
#define GIWA_VERSION (GIWA_VERSION_MAJOR * 10000 + GIWA_VERSION_MINOR * 100 + GIWA_VERSION_PATCH)

#endif
