# Installation: headers, the library, the program, and a CMake package, so that another project needs only
# find_package(fp8attn) and fp8attn::fp8attn. The package does not depend on where it is installed.
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

install(TARGETS fp8attn EXPORT fp8attnTargets
        ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}"
        LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}"
        RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/fp8attn" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}"
        FILES_MATCHING PATTERN "*.h")
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION "${CMAKE_INSTALL_DOCDIR}")
if(FP8ATTN_CLI)
  file(RELATIVE_PATH bin_to_lib "${CMAKE_INSTALL_FULL_BINDIR}" "${CMAKE_INSTALL_FULL_LIBDIR}")
  set_target_properties(fp8attn_cli PROPERTIES INSTALL_RPATH "$ORIGIN/${bin_to_lib}")  # for a shared library
  install(TARGETS fp8attn_cli RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
endif()

set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/fp8attn")
install(EXPORT fp8attnTargets NAMESPACE fp8attn:: DESTINATION "${package_dir}")

# A static library leaves its own libraries to whoever links it.
get_target_property(library_type fp8attn TYPE)
set(package_dependencies "")
if(library_type STREQUAL "STATIC_LIBRARY")
  string(APPEND package_dependencies "find_dependency(OpenMP COMPONENTS CXX)\n")
  if(FP8ATTN_CUDA)
    string(APPEND package_dependencies "find_dependency(CUDAToolkit 12.8)\n")
  endif()
endif()
configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/fp8attnConfig.cmake.in"
                              "${PROJECT_BINARY_DIR}/fp8attnConfig.cmake" INSTALL_DESTINATION "${package_dir}")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/fp8attnConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/fp8attnConfig.cmake" "${PROJECT_BINARY_DIR}/fp8attnConfigVersion.cmake"
        DESTINATION "${package_dir}")
