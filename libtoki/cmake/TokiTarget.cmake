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
