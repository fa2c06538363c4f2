#include "cli/safetensors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/errors.h"
#include "cli/json_text.h"

namespace fp8attn::cli {
namespace {

using nlohmann::json;

constexpr std::uint64_t kLengthBytes = 8;
constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  // the limit of the format

// Bytes of one element of every dtype of the format; those the program does not use are still legal beside ours.
std::optional<std::uint64_t> dtype_bytes(const std::string& dtype) {
  static const std::map<std::string, std::uint64_t> kBytes = {
      {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"U16", 2}, {"I16", 2}, {"F16", 2},
      {"BF16", 2}, {"U32", 4}, {"I32", 4}, {"F32", 4},     {"U64", 8},     {"I64", 8}, {"F64", 8}};
  const auto found = kBytes.find(dtype);
  if (found == kBytes.end()) return std::nullopt;
  return found->second;
}

std::optional<DType> dtype_from_name(const std::string& name) {
  if (name == "F8_E4M3") return DType::kE4M3;
  if (name == "BF16") return DType::kBF16;
  if (name == "F16") return DType::kFP16;
  if (name == "F32") return DType::kF32;
  return std::nullopt;
}

const char* file_name_of(DType dtype) {
  switch (dtype) {
    case DType::kE4M3: return "F8_E4M3";
    case DType::kBF16: return "BF16";
    case DType::kFP16: return "F16";
    case DType::kI32: return "I32";
    case DType::kI64: return "I64";
    case DType::kU8: return "U8";
    case DType::kF32: break;
  }
  return "F32";
}

// A non-negative integer that fits in 63 bits.
std::optional<std::uint64_t> natural(const json& value) {
  if (!value.is_number_unsigned()) return std::nullopt;
  const auto number = value.get<std::uint64_t>();
  if (number > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) return std::nullopt;
  return number;
}

// Bytes of a tensor, nothing where that overflows.
std::optional<std::uint64_t> byte_count(const std::vector<std::int64_t>& shape, std::uint64_t element_bytes) {
  std::uint64_t bytes = element_bytes;
  for (const std::int64_t dim : shape) {
    if (__builtin_mul_overflow(bytes, static_cast<std::uint64_t>(dim), &bytes)) return std::nullopt;
  }
  return bytes;
}

}  // namespace

SafetensorsFile::SafetensorsFile(std::string path) : path_(std::move(path)) {
  parse_header(read_header());
  check_ranges();
}

std::string SafetensorsFile::read_header() {
  std::ifstream file(path_, std::ios::binary | std::ios::ate);
  if (!file) throw usage_error(path_, "no readable file of this name", "a .safetensors file");
  const std::streamoff end = file.tellg();
  // A directory opens, but has no length.
  if (end < 0 || end == std::numeric_limits<std::streamoff>::max()) {
    throw usage_error(path_, "something that is not a regular file", "a .safetensors file");
  }
  const auto size = static_cast<std::uint64_t>(end);
  if (size < kLengthBytes) {
    throw usage_error(path_, fmt::format("{} bytes, cut short in the header length", size),
                      fmt::format("at least {}", kLengthBytes));
  }
  unsigned char raw[kLengthBytes];
  file.seekg(0).read(reinterpret_cast<char*>(raw), kLengthBytes);
  std::uint64_t length = 0;
  for (int i = 7; i >= 0; --i) length = length << 8 | raw[i];
  if (length > kMaxHeaderBytes) {
    throw usage_error(path_, fmt::format("a file whose first {} bytes are no header length", kLengthBytes),
                      fmt::format("a .safetensors file (a header of at most {} bytes)", kMaxHeaderBytes));
  }
  if (length > size - kLengthBytes) {
    throw usage_error(path_, fmt::format("{} bytes, cut short in the header", size),
                      fmt::format("{} bytes of header after the first {}", length, kLengthBytes));
  }
  data_offset_ = kLengthBytes + length;
  data_size_ = size - data_offset_;
  std::string text(length, '\0');
  file.read(text.data(), static_cast<std::streamsize>(length));
  if (!file) throw usage_error(path_, "a read error in the header", "a readable file");
  return text;
}

void SafetensorsFile::parse_header(const std::string& text) {
  const json header = parse_json(path_, "a header", text);
  if (!header.is_object()) throw usage_error(path_, "a header that is no JSON object", "names mapped to tensors");
  for (const auto& [name, value] : header.items()) {
    if (name == "__metadata__") {
      if (!value.is_object()) throw usage_error(path_, "__metadata__ that is no object", "strings mapped to strings");
      for (const auto& [key, text_value] : value.items()) {
        if (!text_value.is_string()) {
          throw usage_error(path_, fmt::format("__metadata__ '{}': {}", shortened(key), brief(text_value)), "a string");
        }
        metadata_[key] = text_value.get<std::string>();
      }
      continue;
    }
    const auto fail = [&](const std::string& got, const std::string& expected) {
      throw usage_error(fmt::format("{}: tensor '{}'", path_, shortened(name)), got, expected);
    };
    if (!value.is_object() || !value.contains("dtype") || !value["dtype"].is_string() || !value.contains("shape") ||
        !value["shape"].is_array() || !value.contains("data_offsets") || !value["data_offsets"].is_array() ||
        value["data_offsets"].size() != 2) {
      fail(brief(value), "an object of dtype (string), shape (array) and data_offsets (array of two)");
    }
    Entry entry;
    entry.dtype = value["dtype"].get<std::string>();
    for (const json& dim : value["shape"]) {
      const auto extent = natural(dim);
      if (!extent) fail("shape " + brief(value["shape"]), "non-negative integers");
      entry.shape.push_back(static_cast<std::int64_t>(*extent));
    }
    const auto begin = natural(value["data_offsets"][0]), end = natural(value["data_offsets"][1]);
    if (!begin || !end || *begin > *end) {
      fail("data_offsets " + brief(value["data_offsets"]), "[begin, end] with 0 <= begin <= end");
    }
    entry.begin = *begin;
    entry.end = *end;
    const auto element_bytes = dtype_bytes(entry.dtype);
    if (!element_bytes) fail("dtype " + shortened(entry.dtype), "a dtype of the format");
    const auto bytes = byte_count(entry.shape, *element_bytes);
    if (!bytes || *bytes != entry.end - entry.begin) {
      fail(fmt::format("data_offsets {} ({} bytes)", brief(value["data_offsets"]), entry.end - entry.begin),
           fmt::format("the bytes of {} {}", entry.dtype, shape_text(entry.shape)));
    }
    entries_[name] = std::move(entry);
  }
}

void SafetensorsFile::check_ranges() const {
  std::vector<std::pair<std::string, const Entry*>> sorted;
  for (const auto& [name, entry] : entries_) sorted.emplace_back(name, &entry);
  std::sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) {
    return std::pair(a.second->begin, a.second->end) < std::pair(b.second->begin, b.second->end);
  });
  std::uint64_t covered = 0;
  for (const auto& [name, entry] : sorted) {
    if (entry->begin != covered) {
      throw usage_error(fmt::format("{}: tensor '{}'", path_, shortened(name)),
                        fmt::format("data_offsets from {}", entry->begin),
                        fmt::format("{}: tensors that follow each other without overlap or hole", covered));
    }
    covered = entry->end;
    if (covered > data_size_) {
      throw usage_error(fmt::format("{}: tensor '{}'", path_, shortened(name)),
                        fmt::format("data up to byte {} of {}: the file is cut short", covered, data_size_),
                        fmt::format("at least {} bytes of file", data_offset_ + covered));
    }
  }
  if (covered != data_size_) {
    throw usage_error(path_, fmt::format("{} bytes after the last tensor", data_size_ - covered), "none");
  }
}

std::vector<std::string> SafetensorsFile::names() const {
  std::vector<std::string> names;
  for (const auto& [name, entry] : entries_) names.push_back(name);
  return names;
}

HostTensor SafetensorsFile::read(const std::string& name) const {
  const auto found = entries_.find(name);
  if (found == entries_.end()) {
    throw usage_error(path_, fmt::format("no tensor '{}'", name),
                      entries_.empty() ? "a file with tensors" : fmt::format("one of {}", fmt::join(names(), ", ")));
  }
  const Entry& entry = found->second;
  const auto dtype = dtype_from_name(entry.dtype);
  if (!dtype) {
    throw usage_error(fmt::format("{}: tensor '{}'", path_, shortened(name)), "dtype " + entry.dtype,
                      "one of F8_E4M3, BF16, F16, F32");
  }
  HostTensor tensor(*dtype, entry.shape);
  std::ifstream file(path_, std::ios::binary);
  file.seekg(static_cast<std::streamoff>(data_offset_ + entry.begin));
  file.read(reinterpret_cast<char*>(tensor.bytes.data()), static_cast<std::streamsize>(tensor.bytes.size()));
  if (!file) throw usage_error(path_, fmt::format("a read error in tensor '{}'", name), "a readable file");
  return tensor;
}

std::string serialize_safetensors(const std::vector<std::pair<std::string, HostTensor>>& tensors,
                                  const std::map<std::string, std::string>& metadata) {
  json header = json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::uint64_t offset = 0;
  for (const auto& [name, tensor] : tensors) {
    const std::uint64_t end = offset + tensor.bytes.size();
    header[name] = {{"dtype", file_name_of(tensor.dtype)}, {"shape", tensor.shape}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // aligns the data
  std::string file;
  for (int i = 0; i < 8; ++i) file.push_back(static_cast<char>(text.size() >> (8 * i) & 0xFF));
  file += text;
  for (const auto& [name, tensor] : tensors) {
    file.append(reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size());
  }
  return file;
}

}  // namespace fp8attn::cli
