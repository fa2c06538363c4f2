# FP8ATTN_BENCH_CUDNN: cuDNN's attention as rows of `fp8attn bench`. It takes two sets of headers; cuDNN itself is
# looked for when the program runs.
find_program(FP8ATTN_PYTHON python3)
mark_as_advanced(FP8ATTN_PYTHON)
set(python_packages "")
if(FP8ATTN_PYTHON)
  execute_process(
    COMMAND "${FP8ATTN_PYTHON}" -c
            "import site, sysconfig; print(sysconfig.get_path('purelib') + ';' + site.getusersitepackages())"
    OUTPUT_VARIABLE python_packages OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
find_path(FP8ATTN_CUDNN_INCLUDE_DIR cudnn.h HINTS ${CUDAToolkit_INCLUDE_DIRS} ${python_packages}
          PATH_SUFFIXES include nvidia/cudnn/include)
find_path(FP8ATTN_CUDNN_FRONTEND_INCLUDE_DIR cudnn_frontend.h HINTS ${python_packages} PATH_SUFFIXES include)
mark_as_advanced(FP8ATTN_CUDNN_INCLUDE_DIR FP8ATTN_CUDNN_FRONTEND_INCLUDE_DIR)

set(cudnn_missing "")
if(NOT FP8ATTN_CUDNN_INCLUDE_DIR)
  string(APPEND cudnn_missing " cudnn.h (cuDNN 9, or pip install nvidia-cudnn-cu${CUDAToolkit_VERSION_MAJOR})")
endif()
if(NOT FP8ATTN_CUDNN_FRONTEND_INCLUDE_DIR)
  string(APPEND cudnn_missing " cudnn_frontend.h (pip install nvidia-cudnn-frontend)")
endif()
set(cudnn_default ON)
if(cudnn_missing)
  set(cudnn_default OFF)
endif()
option(FP8ATTN_BENCH_CUDNN "Rows of cuDNN in `fp8attn bench` (needs its headers and those of its frontend)"
       ${cudnn_default})
set(cudnn_advice "Where they are in a folder of their own, name its parent in CMAKE_PREFIX_PATH.")
if(FP8ATTN_BENCH_CUDNN AND cudnn_missing)
  message(FATAL_ERROR "FP8ATTN_BENCH_CUDNN is ON but these were not found:${cudnn_missing}. ${cudnn_advice}")
elseif(NOT FP8ATTN_BENCH_CUDNN AND cudnn_missing)
  message(STATUS "`fp8attn bench` without cuDNN; not found:${cudnn_missing}. ${cudnn_advice}")
endif()
