# Installs the build into a scratch prefix, moves it elsewhere, then configures, builds and runs a project that knows
# fp8attn from find_package() only and enables no language but C++.
function(run)
  execute_process(COMMAND ${ARGV} COMMAND_ECHO STDOUT RESULT_VARIABLE result)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "failed (${result}): ${ARGV}")
  endif()
endfunction()

file(REMOVE_RECURSE "${WORK_DIR}")
run("${CMAKE_COMMAND}" --install "${BUILD_DIR}" --prefix "${WORK_DIR}/staged" --config "${CONFIG}")
file(RENAME "${WORK_DIR}/staged" "${WORK_DIR}/prefix")

file(GLOB_RECURSE package_files "${WORK_DIR}/prefix/*.cmake")
if(NOT package_files)
  message(FATAL_ERROR "no CMake package was installed")
endif()
foreach(file IN LISTS package_files)
  file(READ "${file}" text)
  foreach(tree IN ITEMS "${SOURCE_DIR}" "${WORK_DIR}/staged")
    string(FIND "${text}" "${tree}" position)
    if(NOT position EQUAL -1)
      message(FATAL_ERROR "${file} names ${tree}: the package cannot be moved")
    endif()
  endforeach()
endforeach()

run("${CMAKE_COMMAND}" -S "${CONSUMER_DIR}" -B "${WORK_DIR}/build" -G "${GENERATOR}"
    "-DCMAKE_BUILD_TYPE=${CONFIG}" "-DCMAKE_CXX_COMPILER=${CXX_COMPILER}" "-DCMAKE_PREFIX_PATH=${WORK_DIR}/prefix"
    "-DCMAKE_RUNTIME_OUTPUT_DIRECTORY=${WORK_DIR}/bin" "-DEXPECTED_VERSION=${VERSION}")
run("${CMAKE_COMMAND}" --build "${WORK_DIR}/build" --config "${CONFIG}")
find_program(consumer consumer PATHS "${WORK_DIR}/bin" PATH_SUFFIXES "${CONFIG}" REQUIRED NO_DEFAULT_PATH)
run("${consumer}")
if(PROGRAM)
  run("${WORK_DIR}/prefix/${PROGRAM}" info)
endif()
