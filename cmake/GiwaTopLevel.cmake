# SPDX-License-Identifier: MIT
# Defaults of giwa's own build, set before project().

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Debug, Release, RelWithDebInfo or MinSizeRel")
endif()

set_property(GLOBAL PROPERTY TARGET_MESSAGES OFF) # make's "Built target demo" would stand below the demo's last lines
