# The test public_headers: every public header compiles on its own, twice included, as plain C++20 with warnings as
# errors and no include path but include/ (so without CUDA's).
file(GLOB public_headers CONFIGURE_DEPENDS RELATIVE "${PROJECT_SOURCE_DIR}/include"
     "${PROJECT_SOURCE_DIR}/include/fp8attn/*.h")
if(NOT public_headers)
  message(FATAL_ERROR "no public headers under ${PROJECT_SOURCE_DIR}/include/fp8attn")
endif()

add_library(fp8attn_public_headers OBJECT EXCLUDE_FROM_ALL)
foreach(header IN LISTS public_headers)
  set(unit "${PROJECT_BINARY_DIR}/public_headers/${header}.cpp")
  file(CONFIGURE OUTPUT "${unit}" CONTENT "#include \"@header@\"\n#include \"@header@\"\n" @ONLY)
  target_sources(fp8attn_public_headers PRIVATE "${unit}")
endforeach()
target_compile_features(fp8attn_public_headers PRIVATE cxx_std_20)
target_include_directories(fp8attn_public_headers PRIVATE "${PROJECT_SOURCE_DIR}/include")
target_compile_options(fp8attn_public_headers PRIVATE -Wall -Wextra -Wpedantic -Werror)
set_target_properties(fp8attn_public_headers PROPERTIES CXX_EXTENSIONS OFF)

add_test(NAME public_headers
         COMMAND "${CMAKE_COMMAND}" --build "${PROJECT_BINARY_DIR}" --config $<CONFIG> --target fp8attn_public_headers)
set_tests_properties(public_headers PROPERTIES TIMEOUT 300)
