# What every target of ours has in common: C++20, hidden symbols, and in developer builds warnings as errors.
function(toki_target target)
  target_compile_features(${target} PUBLIC cxx_std_20)
  set_target_properties(${target} PROPERTIES CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
  if(NOT TOKI_DEVELOPER)
    return()
  endif()
  target_compile_definitions(${target} PRIVATE $<$<CONFIG:Debug>:_GLIBCXX_ASSERTIONS>)
  # -Wmismatched-new-delete and -Wrestrict give false positives in GCC 12, on Asio's coroutine frames and on string concatenation.
  target_compile_options(${target} PRIVATE -Werror -Wall -Wextra -Wpedantic -Wconversion -Wsign-conversion -Wshadow
    -Wnon-virtual-dtor -Woverloaded-virtual -Wold-style-cast -Wcast-align -Wdouble-promotion -Wformat=2
    -Wimplicit-fallthrough -Wno-missing-field-initializers -Wno-mismatched-new-delete
    $<$<CXX_COMPILER_ID:GNU>:-Wduplicated-cond;-Wlogical-op;-Wno-restrict>)
endfunction()

# A library of ours: fit for shared ones as well, and as fast in them, because nobody replaces our functions.
function(toki_library target)
  toki_target(${target})
  set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE ON)
  target_compile_options(${target} PRIVATE -fno-semantic-interposition)
endfunction()

# NAME.pc for pkg-config, with paths relative to itself, so that the installed tree can be moved.
function(toki_pkg_config name)
  set(folder /${CMAKE_INSTALL_LIBDIR}/pkgconfig)
  file(RELATIVE_PATH up ${folder} /)
  string(REGEX REPLACE "/$" "" prefix "\${pcfiledir}/${up}")
  configure_file(cmake/${name}.pc.in ${name}.pc @ONLY)
  install(FILES ${CMAKE_CURRENT_BINARY_DIR}/${name}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig
    COMPONENT libtoki-dev)
endfunction()
