// A folder for a test's files, and runs of the program.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <map>
#include <random>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "cli/host_tensor.h"
#include "cli/safetensors.h"
#include "fp8attn/error.h"

namespace fp8attn::cli {

struct Outcome {
  int status = -1;
  std::string out, err;
};

inline std::string read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

class CliTest : public ::testing::Test {
 protected:
  CliTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "fp8attn-cli-XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
    folder_ = pattern;
  }
  ~CliTest() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name) const { return folder_ + "/" + name; }

  std::string write(const std::string& name, const std::string& bytes) const {
    std::ofstream(path(name), std::ios::binary) << bytes;
    return path(name);
  }

  using Tensors = std::vector<std::pair<std::string, HostTensor>>;
  std::string write_safetensors(const std::string& name, const Tensors& tensors,
                                const std::map<std::string, std::string>& metadata = {}) const {
    return write(name, serialize_safetensors(tensors, metadata));
  }

  // Runs the program in the test's folder.
  Outcome run(const std::string& arguments) const { return run_command("'" FP8ATTN_PROGRAM "' " + arguments); }

  // Runs a shell command in the test's folder.
  Outcome run_command(const std::string& command) const {
    const int status = std::system(("cd '" + folder_ + "' && { " + command + "; } >.out 2>.err </dev/null").c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read_text(path(".out")), read_text(path(".err"))};
  }

  // Runs the program and expects it to refuse: exit status 2, and every one of `parts` in the message.
  void expect_refused(const std::string& arguments, std::initializer_list<const char*> parts) const {
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.status, 2) << arguments << '\n' << outcome.err;
    for (const char* part : parts) {
      EXPECT_NE(outcome.err.find(part), std::string::npos)
          << arguments << "\nsays: " << outcome.err << "\nwithout: " << part;
    }
    EXPECT_EQ(outcome.out, "") << arguments;
  }

 private:
  std::string folder_;
};

// Standard normal values.
inline HostTensor normal(std::vector<std::int64_t> shape, DType dtype, unsigned seed) {
  HostTensor tensor(DType::kF32, std::move(shape));
  std::mt19937 generator(seed);
  std::normal_distribution<float> distribution;
  auto* values = reinterpret_cast<float*>(tensor.bytes.data());
  for (std::int64_t i = 0; i < tensor.count(); ++i) values[i] = distribution(generator);
  return convert(tensor, dtype);
}

// What the Error thrown by `call` says; empty where it throws none.
template <class Call>
std::string message_of(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

}  // namespace fp8attn::cli
