# SPDX-License-Identifier: MIT
# The target `docs` builds the site, build/docs/html/index.html: the pages, the examples and the reference. It checks all links.

find_program(GIWA_DOXYGEN doxygen)
mark_as_advanced(GIWA_DOXYGEN)
find_package(Python3 COMPONENTS Interpreter QUIET)
if(GIWA_DOXYGEN AND Python3_FOUND)
  set(GIWA_DOCS_DIR ${PROJECT_BINARY_DIR}/docs)
  # Files that pages link to, other than pages and examples, are copied.
  file(GLOB GIWA_DOCS_FILES RELATIVE ${PROJECT_SOURCE_DIR} CONFIGURE_DEPENDS LICENSE docs/results/*.csv docs/results/*.json
    docs/results/*.txt docs/results/*.xml)
  file(GLOB GIWA_DOCS_PICTURES RELATIVE ${PROJECT_SOURCE_DIR} CONFIGURE_DEPENDS docs/pictures docs/plots)
  list(JOIN GIWA_DOCS_FILES " " GIWA_DOCS_FILES)
  list(JOIN GIWA_DOCS_PICTURES " " GIWA_DOCS_PICTURES)
  configure_file(cmake/Doxyfile.in ${GIWA_DOCS_DIR}/Doxyfile @ONLY)
  add_custom_target(docs
    COMMAND ${CMAKE_COMMAND} -E rm -rf ${GIWA_DOCS_DIR}/html
    COMMAND ${GIWA_DOXYGEN} ${GIWA_DOCS_DIR}/Doxyfile
    COMMAND ${Python3_EXECUTABLE} .ci/check_links.py ${GIWA_DOCS_DIR}/html
    COMMAND ${CMAKE_COMMAND} -E echo "giwa: the site is ${GIWA_DOCS_DIR}/html/index.html"
    WORKING_DIRECTORY ${PROJECT_SOURCE_DIR} VERBATIM USES_TERMINAL)
else()
  add_custom_target(docs
    COMMAND ${CMAKE_COMMAND} -E echo "giwa: the site needs doxygen (tried: 1.9.4) and python3 (Debian: apt-get install doxygen python3). Install them and configure again."
    COMMAND ${CMAKE_COMMAND} -E false VERBATIM)
endif()
