# Writes the header OUT with the commit of SOURCE_DIR, or COMMIT where that is set. Run at every build; the file is
# touched only when its text changes.
cmake_minimum_required(VERSION 3.25)
set(commit "${COMMIT}")
if(NOT commit)
  set(commit unknown)
  find_package(Git QUIET)
  if(GIT_FOUND)
    execute_process(COMMAND "${GIT_EXECUTABLE}" -C "${SOURCE_DIR}" rev-parse --short=12 HEAD
                    OUTPUT_VARIABLE head OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
    if(NOT failed)
      set(commit "${head}")
      execute_process(COMMAND "${GIT_EXECUTABLE}" -C "${SOURCE_DIR}" status --porcelain --untracked-files=no
                      OUTPUT_VARIABLE changes ERROR_QUIET)
      if(changes)
        string(APPEND commit "-dirty")
      endif()
    endif()
  endif()
endif()
file(CONFIGURE OUTPUT "${OUT}" CONTENT
  "// Generated at build time.\n#pragma once\ninline constexpr const char* kFp8attnCommit = \"@commit@\";\n" @ONLY)
