# SPDX-License-Identifier: MIT
# giwa::nccl: giwa and NCCL, for <giwa/nccl.hpp>. Defined where NCCL is found: in a usual place, or below NCCL_ROOT, a variable of CMake
# or of the environment. That of a Python package is what python3 -c "import nvidia.nccl; print(list(nvidia.nccl.__path__)[0])" prints.

find_path(GIWA_NCCL_INCLUDE_DIR nccl.h HINTS ${NCCL_ROOT} $ENV{NCCL_ROOT} PATH_SUFFIXES include)
find_library(GIWA_NCCL_LIBRARY NAMES nccl libnccl.so.2 NAMES_PER_DIR HINTS ${NCCL_ROOT} $ENV{NCCL_ROOT} PATH_SUFFIXES lib lib64)
mark_as_advanced(GIWA_NCCL_INCLUDE_DIR GIWA_NCCL_LIBRARY)
if(GIWA_NCCL_INCLUDE_DIR AND GIWA_NCCL_LIBRARY AND NOT TARGET giwa::nccl)
  add_library(giwa::nccl INTERFACE IMPORTED)
  target_include_directories(giwa::nccl SYSTEM INTERFACE ${GIWA_NCCL_INCLUDE_DIR})
  target_link_libraries(giwa::nccl INTERFACE giwa::giwa ${GIWA_NCCL_LIBRARY})
endif()
