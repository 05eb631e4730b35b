# find_package(toki [COMPONENTS toki http]) gives
#
#   toki::toki           the library: shared where BUILD_SHARED_LIBS is on, else static
#   toki::http           with the component http: for Asio programs; static
#   toki::toki_shared    one of them by name, for projects that want the other of BUILD_SHARED_LIBS; the
#   toki::toki_static    static one where SQLiteCpp is found
include(CMakeFindDependencyMacro)

set(toki_FOUND FALSE)
set(toki_toki_FOUND TRUE)
if(EXISTS ${CMAKE_CURRENT_LIST_DIR}/toki-http.cmake)
  set(toki_http_FOUND TRUE)
endif()
foreach(component IN LISTS toki_FIND_COMPONENTS)
  if(toki_${component}_FOUND OR NOT toki_FIND_REQUIRED_${component})
    continue()
  elseif(component STREQUAL "http")
    set(toki_NOT_FOUND_MESSAGE "its component http is not installed here: it was built with TOKI_BUILD_HTTP=OFF")
  else()
    set(toki_NOT_FOUND_MESSAGE "it has no component '${component}'; there are: toki, http")
  endif()
  return()
endforeach()

find_dependency(Threads)
include(${CMAKE_CURRENT_LIST_DIR}/toki-shared.cmake)
# SQLiteCpp is a static library in Debian and its target has no namespace: where it was not found the
# linker, not CMake, would miss it.
if(BUILD_SHARED_LIBS)
  find_package(SQLiteCpp QUIET)
else()
  find_dependency(SQLiteCpp)
endif()
if(SQLiteCpp_FOUND)
  include(${CMAKE_CURRENT_LIST_DIR}/toki-static.cmake)
  # A program in C is linked by the C compiler, which does not bring what C++ needs.
  get_property(toki_languages GLOBAL PROPERTY ENABLED_LANGUAGES)
  if(NOT "CXX" IN_LIST toki_languages)
    set_property(TARGET toki::toki_static APPEND PROPERTY INTERFACE_LINK_LIBRARIES stdc++ m)
  endif()
endif()

if(NOT TARGET toki::toki)
  add_library(toki::toki INTERFACE IMPORTED)
  if(BUILD_SHARED_LIBS)
    target_link_libraries(toki::toki INTERFACE toki::toki_shared)
  else()
    target_link_libraries(toki::toki INTERFACE toki::toki_static)
  endif()
endif()

if("http" IN_LIST toki_FIND_COMPONENTS AND toki_http_FOUND)
  find_dependency(Boost 1.81)
  find_dependency(fmt)
  find_dependency(simdjson)
  find_dependency(OpenSSL 3)
  include(${CMAKE_CURRENT_LIST_DIR}/toki-http.cmake)
endif()
set(toki_FOUND TRUE)
