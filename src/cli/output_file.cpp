#include "cli/output_file.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <stdexcept>

#include "cli/errors.h"

namespace fp8attn::cli {

OutputFile::OutputFile(std::string option, std::string path) : path_(std::move(path)), partial_(path_ + ".partial") {
  const auto fail = [&](const std::string& why) {
    return usage_error(option, fmt::format("'{}' ({})", path_, why), "a path that can be written");
  };
  std::error_code ignored;
  if (std::filesystem::is_directory(path_, ignored)) throw fail("a directory");
  if (!std::ofstream(partial_, std::ios::binary)) throw fail(std::strerror(errno));
}

OutputFile::~OutputFile() { std::remove(partial_.c_str()); }

void OutputFile::write(const std::string& bytes) {
  std::ofstream file(partial_, std::ios::binary | std::ios::trunc);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.close();
  if (!file || std::rename(partial_.c_str(), path_.c_str()) != 0) {
    throw std::runtime_error(fmt::format("{}: {}", path_, std::strerror(errno)));
  }
}

}  // namespace fp8attn::cli
