// A file that the program writes at the end of a long computation.
#pragma once

#include <string>

namespace fp8attn::cli {

// Opened before the computation, so that a place that cannot be written to is reported at once. The bytes go to a file
// beside it that takes its name when it is complete; until then an older file of that name stays as it was.
class OutputFile {
 public:
  // option: the argument that named the path. Throws Error where the path cannot be written.
  OutputFile(std::string option, std::string path);
  ~OutputFile();  // removes an incomplete file
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  // Replaces what the file holds. Throws std::runtime_error where writing fails.
  void write(const std::string& bytes);

 private:
  std::string path_, partial_;
};

}  // namespace fp8attn::cli
