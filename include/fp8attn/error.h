// The one exception type of fp8attn.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

namespace fp8attn {

// Thrown for every bad argument, unsupported combination and failed device call. Nothing has been launched or
// written when a bad argument is reported.
class Error : public std::runtime_error {
 public:
  // operation: the entry point ("prefill"); argument: what is wrong ("k.shape"); got: the value that was passed;
  // expected: what is accepted. what() is "prefill: k.shape: got [2, 5], expected [2, *, *, 128]".
  Error(std::string operation, std::string argument, std::string got, std::string expected)
      : std::runtime_error(operation + ": " + argument + ": got " + got + ", expected " + expected),
        operation_(std::move(operation)),
        argument_(std::move(argument)),
        got_(std::move(got)),
        expected_(std::move(expected)) {}

  const std::string& operation() const noexcept { return operation_; }
  const std::string& argument() const noexcept { return argument_; }
  const std::string& got() const noexcept { return got_; }
  const std::string& expected() const noexcept { return expected_; }

 private:
  std::string operation_, argument_, got_, expected_;
};

}  // namespace fp8attn
