// Tests that run on whichever device they are registered for.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "prefill_run.h"
#include "test_device.h"

namespace fp8attn::test {

// The device that a test runs on, made when the test starts. Null skips the test.
using DeviceMaker = std::function<std::unique_ptr<TestDevice>()>;

// What a test does on its device, and its verdict.
using Judge = std::function<::testing::AssertionResult(TestDevice&)>;

class DeviceTest : public ::testing::Test {
 public:
  DeviceTest(DeviceMaker make_device, Judge judge) : make_device_(std::move(make_device)), judge_(std::move(judge)) {}

  void TestBody() override {
    const std::unique_ptr<TestDevice> device = make_device_();
    if (device == nullptr) GTEST_SKIP() << "no device to run on";
    try {
      EXPECT_TRUE(judge_(*device));
    } catch (const Error& error) {
      if (is_left_out(error)) GTEST_SKIP() << error.what();
      throw;
    }
  }

 private:
  DeviceMaker make_device_;
  Judge judge_;
};

class Registrar {
 public:
  Registrar(const char* suite, DeviceKind device, DeviceMaker make_device)
      : suite_(suite), cpu_(device == DeviceKind::kCpu), make_device_(std::move(make_device)) {}

  bool cpu() const { return cpu_; }

  void add(const std::string& name, Judge judge) {
    ::testing::RegisterTest(suite_, name.c_str(), nullptr, nullptr, __FILE__, __LINE__,
                            [make_device = make_device_, judge = std::move(judge)]() -> DeviceTest* {
                              return new DeviceTest(make_device, judge);  // GoogleTest deletes it
                            });
  }

 private:
  const char* suite_;
  const bool cpu_;
  const DeviceMaker make_device_;
};

}  // namespace fp8attn::test
