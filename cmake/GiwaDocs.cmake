# SPDX-License-Identifier: MIT
# The target `docs` builds the site, build/docs/html/index.html: the pages, the examples and the reference. It checks all links.
# With the theme doxygen-awesome, which is not copied into this repository, the site fits a phone and has a dark mode.

find_program(GIWA_DOXYGEN doxygen)
find_file(GIWA_DOXYGEN_THEME doxygen-awesome.css PATH_SUFFIXES doxygen-awesome-css share/doxygen-awesome-css)
mark_as_advanced(GIWA_DOXYGEN GIWA_DOXYGEN_THEME)
find_package(Python3 COMPONENTS Interpreter QUIET)
if(GIWA_DOXYGEN AND Python3_FOUND)
  set(GIWA_DOCS_DIR ${PROJECT_BINARY_DIR}/docs)
  # Pictures, and files that pages link to other than pages and examples, are copied.
  file(GLOB GIWA_DOCS_FILES RELATIVE ${PROJECT_SOURCE_DIR} CONFIGURE_DEPENDS LICENSE docs/results/*.csv docs/results/*.json
    docs/results/*.txt docs/results/*.xml docs/pictures/* docs/plots/*)
  list(JOIN GIWA_DOCS_FILES " " GIWA_DOCS_FILES)
  set(GIWA_DOCS_SHEETS cmake/docs.css)
  set(GIWA_DOCS_LOOK "with the theme ${GIWA_DOXYGEN_THEME}")
  if(GIWA_DOXYGEN_THEME)
    string(PREPEND GIWA_DOCS_SHEETS "\"${GIWA_DOXYGEN_THEME}\" ")
  else()
    set(GIWA_DOCS_LOOK "in Doxygen's plain theme, which is not for phones and has no dark mode: doxygen-awesome.css is missing (Debian: apt-get install doxygen-awesome-css; elsewhere -DGIWA_DOXYGEN_THEME=FILE)")
  endif()
  configure_file(cmake/Doxyfile.in ${GIWA_DOCS_DIR}/Doxyfile @ONLY)
  add_custom_target(docs
    COMMAND ${CMAKE_COMMAND} -E rm -rf ${GIWA_DOCS_DIR}/html
    COMMAND ${Python3_EXECUTABLE} cmake/docs_menu.py ${GIWA_DOCS_DIR} ${PROJECT_VERSION}
    COMMAND ${GIWA_DOXYGEN} ${GIWA_DOCS_DIR}/Doxyfile
    COMMAND ${Python3_EXECUTABLE} cmake/search_index.py ${GIWA_DOCS_DIR}/html
    COMMAND ${Python3_EXECUTABLE} .ci/check_links.py ${GIWA_DOCS_DIR}/html
    COMMAND ${Python3_EXECUTABLE} .ci/check_reference.py ${GIWA_DOCS_DIR}/html
    COMMAND ${CMAKE_COMMAND} -E echo "giwa: the site is ${GIWA_DOCS_DIR}/html/index.html, ${GIWA_DOCS_LOOK}"
    WORKING_DIRECTORY ${PROJECT_SOURCE_DIR} VERBATIM USES_TERMINAL)
else()
  add_custom_target(docs
    COMMAND ${CMAKE_COMMAND} -E echo "giwa: the site needs doxygen (tried: 1.9.4) and python3 (Debian: apt-get install doxygen python3). Install them and configure again."
    COMMAND ${CMAKE_COMMAND} -E false VERBATIM)
endif()
