// Dispatch: rows of the variants table, devices, workspaces, and what the library says about itself.
#include <gtest/gtest.h>

#include <cstdio>
#include <set>
#include <string>
#include <vector>

#include "api/dispatch.h"
#include "api/validate.h"
#include "api/variants.h"
#include "fp8attn/backend.h"
#include "fp8attn/prefill.h"

namespace fp8attn {
namespace {

PrefillVariant row(const char* name, DType dtype, int head_dim, VLayout layout, PMode mode = PMode::kDefault,
                   const char* left_out_by = nullptr) {
  return {name, DeviceKind::kCuda, dtype, head_dim, head_dim, layout, mode, left_out_by, nullptr, nullptr};
}

constexpr Device kDevice = {DeviceKind::kCuda, 0};

const std::vector<PrefillVariant> kTable = {
    {"cpu", DeviceKind::kCpu, DType::kE4M3, 0, 0, VLayout::kRowMajor, PMode::kDefault, nullptr, nullptr, nullptr},
    row("e4m3-64", DType::kE4M3, 64, VLayout::kRowMajor),
    row("e4m3-128", DType::kE4M3, 128, VLayout::kRowMajor),
    row("e4m3-128-exact", DType::kE4M3, 128, VLayout::kRowMajor, PMode::kExact),
    row("e4m3-128-packed", DType::kE4M3, 128, VLayout::kPacked, PMode::kDefault, "FP8ATTN_HEAD_DIMS"),
    row("bf16-256", DType::kBF16, 256, VLayout::kRowMajor),
    {"bf16-192", DeviceKind::kCuda, DType::kBF16, 192, 128, VLayout::kRowMajor, PMode::kDefault, nullptr, nullptr,
     nullptr},
    row("bf16-64", DType::kBF16, 64, VLayout::kRowMajor),
};

PrefillProblem problem(DeviceKind device, DType dtype, std::int64_t d_qk, std::int64_t d_v,
                       VLayout layout = VLayout::kRowMajor, PMode mode = PMode::kDefault) {
  PrefillProblem problem;
  problem.q = TensorView::contiguous(nullptr, dtype, {1, 8, 2, d_qk}, {device, 0});
  problem.k = problem.q;
  problem.v = layout == VLayout::kPacked ? TensorView::contiguous(nullptr, dtype, {1, 2, d_v, 16}, {device, 0})
                                         : TensorView::contiguous(nullptr, dtype, {1, 8, 2, d_v}, {device, 0});
  problem.out = MutableTensorView::contiguous(nullptr, DType::kBF16, {1, 8, 2, d_v}, {device, 0});
  problem.v_layout = layout;
  problem.p_mode = mode;
  return problem;
}

std::string selected(const PrefillProblem& problem) {
  const Selection selection = select_variant(problem, kTable);
  EXPECT_EQ(selection.variant == nullptr, selection.reasons.size() == 1);
  return selection.variant != nullptr ? selection.variant->name : selection.reasons.front().text();
}

TEST(SelectVariant, PicksTheRowOfTheProblem) {
  using enum DeviceKind;
  EXPECT_EQ(selected(problem(kCpu, DType::kE4M3, 80, 24)), "cpu");
  EXPECT_EQ(selected(problem(kCuda, DType::kE4M3, 64, 64)), "e4m3-64");
  EXPECT_EQ(selected(problem(kCuda, DType::kE4M3, 128, 128)), "e4m3-128");
  EXPECT_EQ(selected(problem(kCuda, DType::kE4M3, 128, 128, VLayout::kRowMajor, PMode::kExact)), "e4m3-128-exact");
}

TEST(SelectVariant, PModeMattersForE4M3OnCudaOnly) {
  using enum DeviceKind;
  EXPECT_EQ(selected(problem(kCpu, DType::kE4M3, 64, 64, VLayout::kRowMajor, PMode::kFast)), "cpu");
  EXPECT_EQ(selected(problem(kCuda, DType::kBF16, 64, 64, VLayout::kRowMajor, PMode::kFast)), "bf16-64");
}

TEST(SelectVariant, PicksTheSmallestHeadDimsThatHoldTheProblems) {
  using enum DeviceKind;
  EXPECT_EQ(selected(problem(kCuda, DType::kE4M3, 16, 64)), "e4m3-64");
  EXPECT_EQ(selected(problem(kCuda, DType::kE4M3, 80, 16)), "e4m3-128");
  EXPECT_EQ(selected(problem(kCuda, DType::kE4M3, 64, 80)), "e4m3-128");
  EXPECT_EQ(selected(problem(kCuda, DType::kE4M3, 48, 48, VLayout::kRowMajor, PMode::kExact)), "e4m3-128-exact");
  EXPECT_EQ(selected(problem(kCuda, DType::kBF16, 64, 64)), "bf16-64");
  EXPECT_EQ(selected(problem(kCuda, DType::kBF16, 80, 80)), "bf16-192");
  EXPECT_EQ(selected(problem(kCuda, DType::kBF16, 192, 144)), "bf16-256");
}

TEST(SelectVariant, TheDtypeIsThatOfTheKeys) {
  PrefillProblem mixed = problem(DeviceKind::kCuda, DType::kE4M3, 64, 64);
  mixed.q.dtype = DType::kBF16;
  EXPECT_EQ(selected(mixed), "e4m3-64");
}

TEST(SelectVariant, KnowsRaggedAndPagedShapes) {
  PrefillProblem ragged = problem(DeviceKind::kCuda, DType::kE4M3, 128, 80);
  ragged.q = TensorView::contiguous(nullptr, DType::kE4M3, {8, 2, 128}, kDevice);
  ragged.v = TensorView::contiguous(nullptr, DType::kE4M3, {8, 2, 80}, kDevice);
  EXPECT_EQ(selected(ragged), "e4m3-128");
  ragged.v = TensorView::contiguous(nullptr, DType::kE4M3, {3, 64, 2, 144}, kDevice);
  EXPECT_TRUE(selected(ragged).starts_with("q.shape: got head dims 128 (q, k) and 144 (v)"));
}

TEST(SelectVariant, SaysWhatExists) {
  using enum DeviceKind;
  EXPECT_EQ(selected(problem(kCuda, DType::kF32, 64, 64)), "q.dtype: got f32 on cuda, expected e4m3 or bf16");
  EXPECT_EQ(selected(problem(kCuda, DType::kBF16, 64, 64, VLayout::kPacked)),
            "v_layout: got packed with bf16 on cuda, expected row-major");
  EXPECT_EQ(
      selected(problem(kCuda, DType::kE4M3, 144, 64)),
      "q.shape: got head dims 144 (q, k) and 64 (v) with e4m3 on cuda, expected multiples of 16 up to 64 and 64 or "
      "128 and 128");
  EXPECT_EQ(
      selected(problem(kCuda, DType::kE4M3, 64, 40)),
      "q.shape: got head dims 64 (q, k) and 40 (v) with e4m3 on cuda, expected multiples of 16 up to 64 and 64 or "
      "128 and 128");
  EXPECT_EQ(selected(problem(kCuda, DType::kE4M3, 128, 128, VLayout::kRowMajor, PMode::kFast)),
            "p_mode: got fast with e4m3 on cuda, expected default or exact");
  EXPECT_EQ(selected(problem(kCuda, DType::kE4M3, 128, 128, VLayout::kPacked)),
            "variant: got e4m3-128-packed, left out of this build, expected a build whose CMake option "
            "FP8ATTN_HEAD_DIMS includes it");
}

TEST(SelectVariant, LeavesADeviceWithoutRowsToTheDeviceCheck) {
  const Selection selection = select_variant(problem(DeviceKind::kCuda, DType::kE4M3, 64, 64), {kTable.data(), 1});
  EXPECT_EQ(selection.variant, nullptr);
  EXPECT_TRUE(selection.reasons.empty());
}

TEST(Variants, CpuRowsComeFirstAndRowsWithoutALauncherSayWhy) {
  bool cuda_seen = false;
  std::set<std::string> names;
  for (const PrefillVariant& variant : prefill_variants()) {
    EXPECT_TRUE(names.insert(variant.name).second) << variant.name;
    cuda_seen |= variant.device == DeviceKind::kCuda;
    EXPECT_EQ(cuda_seen, variant.device == DeviceKind::kCuda) << variant.name;
    EXPECT_EQ(variant.launch == nullptr, variant.left_out_by != nullptr) << variant.name;
    EXPECT_TRUE(variant.launch == nullptr || variant.workspace_size != nullptr) << variant.name;
  }
  EXPECT_TRUE(names.contains("cpu-e4m3-packed"));
}

TEST(Workspace, Rules) {
  alignas(kWorkspaceAlignment) static char memory[2 * kWorkspaceAlignment];
  const auto reasons = [](void* data, std::size_t size, std::size_t needed) {
    return to_support(validate(Workspace{data, size}, needed, {})).reasons;
  };
  using Texts = std::vector<std::string>;
  EXPECT_EQ(reasons(nullptr, 0, 0), Texts());
  EXPECT_EQ(reasons(memory, 512, 512), Texts());
  EXPECT_EQ(reasons(memory, 511, 512),
            Texts({"workspace.size: got 511 bytes, expected at least 512 bytes, as workspace_size() says"}));
  EXPECT_EQ(reasons(nullptr, 512, 512),
            Texts({"workspace.data: got a null pointer, expected 512 bytes on the tensors' device"}));
  const Texts misaligned = reasons(memory + 128, 512, 512);
  ASSERT_EQ(misaligned.size(), 1u);
  EXPECT_TRUE(misaligned.front().ends_with("expected an address that is a multiple of 256 bytes"));
}

TEST(Prefill, NothingToDoReturns) {
  PrefillProblem empty = problem(DeviceKind::kCpu, DType::kE4M3, 64, 64);
  empty.q.shape[1] = empty.out.shape[1] = 0;
  empty.k.shape[1] = empty.v.shape[1] = 0;
  EXPECT_EQ(workspace_size(empty), 0u);
  EXPECT_NO_THROW(prefill(empty));
}

TEST(Devices, CpuIsFirstAndAlwaysThere) {
  const std::vector<BackendInfo> backends = list_backends();
  ASSERT_EQ(backends.size(), 2u);
  EXPECT_EQ(backends[0].kind, DeviceKind::kCpu);
  EXPECT_TRUE(backends[0].available);
  EXPECT_EQ(backends[0].usable, std::vector<bool>{true});
  EXPECT_FALSE(backends[0].devices.front().empty());
  EXPECT_EQ(backends[1].kind, DeviceKind::kCuda);
  EXPECT_EQ(backends[1].devices.size(), backends[1].usable.size());
  EXPECT_FALSE(backends[1].detail.empty());
}

TEST(Devices, TheDefaultIsUsable) {
  const BackendInfo cuda = list_backends()[1];
  const Device device = default_device();
  EXPECT_EQ(device.kind == DeviceKind::kCuda, cuda.available);
  EXPECT_TRUE(!cuda.available || cuda.usable.at(device.index));
  EXPECT_FALSE(device_reason("q.device", device).has_value());
}

// Without the CUDA backend, and with it for a device that is not there.
TEST(Devices, AMissingDeviceIsTheReason) {
  PrefillProblem absent = problem(DeviceKind::kCuda, DType::kE4M3, 64, 64);
  const bool built = list_backends()[1].detail.find("FP8ATTN_CUDA") == std::string::npos;
  absent.q.shape[1] = absent.out.shape[1] = absent.k.shape[1] = absent.v.shape[1] = 0;
  for (Device* device : {&absent.q.device, &absent.k.device, &absent.v.device, &absent.out.device}) device->index = 99;
  const Support support = supports(absent);
  ASSERT_FALSE(support.ok);
  EXPECT_TRUE(support.reasons.front().starts_with("q.device: got cuda:99")) << support.reasons.front();
  const char* expected = built ? "compute capability 9.0" : "FP8ATTN_CUDA";
  EXPECT_NE(support.reasons.front().find(expected), std::string::npos) << support.reasons.front();
  EXPECT_THROW(prefill(absent), Error);
}

TEST(Version, HasThreeNumbers) {
  int major = -1, minor = -1, patch = -1, end = 0;
  const std::string text = version();
  EXPECT_EQ(std::sscanf(text.c_str(), "%d.%d.%d%n", &major, &minor, &patch, &end), 3);
  EXPECT_EQ(end, static_cast<int>(text.size()));
}

}  // namespace
}  // namespace fp8attn
