// Reading and writing .safetensors files: 8 bytes of little-endian header length, a JSON header that maps names to
// dtype, shape and byte range, then the bytes. Format: https://huggingface.co/docs/safetensors ("Format").
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "cli/host_tensor.h"

namespace fp8attn::cli {

// The header of a file, checked as a whole against the file's length; tensors are read on demand.
class SafetensorsFile {
 public:
  // Throws Error for a file that cannot be read, is cut short, or whose header is malformed: wrong JSON, unknown dtype,
  // byte ranges that overlap, leave holes, exceed the file or do not fit shape and dtype.
  explicit SafetensorsFile(std::string path);

  std::vector<std::string> names() const;
  bool contains(const std::string& name) const { return entries_.contains(name); }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

  // Throws Error for a name that is not in the file (the message lists those that are) and for a dtype other than
  // F8_E4M3, BF16, F16 and F32.
  HostTensor read(const std::string& name) const;

 private:
  struct Entry {
    std::string dtype;
    std::vector<std::int64_t> shape;
    std::uint64_t begin = 0, end = 0;  // bytes from the end of the header
  };
  std::string read_header();
  void parse_header(const std::string& text);
  void check_ranges() const;

  std::string path_;
  std::uint64_t data_offset_ = 0, data_size_ = 0;
  std::map<std::string, Entry> entries_;
  std::map<std::string, std::string> metadata_;
};

// The bytes of a file that holds `tensors`.
std::string serialize_safetensors(const std::vector<std::pair<std::string, HostTensor>>& tensors,
                                  const std::map<std::string, std::string>& metadata = {});

}  // namespace fp8attn::cli
