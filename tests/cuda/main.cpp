// The tests that need a Hopper GPU. Exit status 77 where there is none.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <string>

#include "class_summary.h"
#include "cuda_device.h"
#include "fp8attn/backend.h"
#include "merge_tests.h"
#include "mla_tests.h"
#include "prefill_tests.h"
#include "watchdog.h"

namespace {

constexpr int kSkipped = 77;
constexpr std::chrono::seconds kLimit{60};
constexpr int kSanitizerSlowdown = 20;

std::string reason_to_skip() {
  using namespace fp8attn;
  if (default_device().kind == DeviceKind::kCuda) return "";
  for (const BackendInfo& backend : list_backends()) {
    if (backend.kind == DeviceKind::kCuda) return backend.detail;
  }
  return "this build has no CUDA backend";
}

}  // namespace

int main(int argc, char** argv) {
  using namespace fp8attn::test;
  ::testing::InitGoogleTest(&argc, argv);
  register_merge_tests("CudaMerge", fp8attn::DeviceKind::kCuda, make_default_cuda_device);
  register_mla_tests("CudaMlaDecode", fp8attn::DeviceKind::kCuda, make_default_cuda_device);
  register_prefill_tests("CudaPrefill", fp8attn::DeviceKind::kCuda, make_default_cuda_device);
  if (::testing::GTEST_FLAG(list_tests)) return RUN_ALL_TESTS();
  if (const std::string reason = reason_to_skip(); !reason.empty()) {
    std::printf("fp8attn_cuda_tests: skipped: %s\n", reason.c_str());
    return kSkipped;
  }
  watch_tests(under_sanitizer() ? kLimit * kSanitizerSlowdown : kLimit);
  print_summary_by_class();
  return RUN_ALL_TESTS();
}
