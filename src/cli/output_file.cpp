#include "cli/output_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <stdexcept>

#include "cli/errors.h"

namespace fp8attn::cli {
namespace {

namespace fs = std::filesystem;

// Where `path` leads when the links in its last part are followed, whether something is there or not.
fs::path followed(fs::path path) {
  constexpr int kMostLinks = 40;
  std::error_code error;
  for (int i = 0; i < kMostLinks && fs::is_symlink(fs::symlink_status(path, error)); ++i) {
    path = path.parent_path() / fs::read_symlink(path, error);  // an absolute target replaces the folder
  }
  return path;
}

// Creates a file beside `path` under a name that nothing else has. Empty where that fails, with errno.
std::string create_beside(const std::string& path) {
  for (int i = 0;; ++i) {
    const std::string name = fmt::format("{}.{}-{}.partial", path, getpid(), i);
    const int file = open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file >= 0) {
      struct stat old;
      if (stat(path.c_str(), &old) == 0) static_cast<void>(fchmod(file, old.st_mode & 07777));
      close(file);
      return name;
    }
    if (errno != EEXIST) return {};
  }
}

}  // namespace

OutputFile::OutputFile(std::string option, std::string path) : path_(followed(path).string()) {
  const auto fail = [&](const std::string& why) {
    return usage_error(option, fmt::format("'{}' ({})", path, why), "a path that can be written");
  };
  std::error_code ignored;
  const fs::file_status status = fs::status(path_, ignored);
  if (fs::is_directory(status)) throw fail("a directory");
  if (fs::exists(status) && !fs::is_regular_file(status)) throw fail("not a regular file");
  if (fs::exists(status) && access(path_.c_str(), W_OK) != 0) throw fail(std::strerror(errno));
  partial_ = create_beside(path_);
  if (partial_.empty()) throw fail(std::strerror(errno));
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
