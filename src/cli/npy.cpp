#include "cli/npy.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cctype>
#include <cstring>
#include <fstream>
#include <limits>
#include <string_view>

#include "cli/errors.h"

namespace fp8attn::cli {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr std::size_t kAlignment = 64;

// The header: a Python dict literal of the keys descr, fortran_order and shape.
struct Header {
  std::string descr;
  bool fortran_order = false;
  std::vector<std::int64_t> shape;
};

// Reads the few Python literals that a header is made of.
class HeaderParser {
 public:
  HeaderParser(const std::string& path, std::string_view text) : path_(path), text_(text) {}

  Header parse() {
    Header header;
    bool has_descr = false, has_order = false, has_shape = false;
    expect('{');
    while (!accept('}')) {
      const std::string key = string();
      expect(':');
      if (key == "descr" && !has_descr) {
        has_descr = true;
        if (peek() == '[') fail("a structured dtype", "'<f4' or '<f2'");
        header.descr = string();
      } else if (key == "fortran_order" && !has_order) {
        has_order = true;
        header.fortran_order = boolean();
      } else if (key == "shape" && !has_shape) {
        has_shape = true;
        header.shape = tuple();
      } else {
        fail(fmt::format("the header key '{}'", key), "descr, fortran_order and shape, each once");
      }
      if (!accept(',') && peek() != '}') malformed();
    }
    if (peek() != '\0') malformed();
    if (!has_descr || !has_order || !has_shape) malformed();
    return header;
  }

 private:
  [[noreturn]] void fail(const std::string& got, const std::string& expected) const {
    throw usage_error(path_, got, expected);
  }
  [[noreturn]] void malformed() const {
    fail("a malformed header", "a dict of descr, fortran_order and shape, as NumPy writes it");
  }
  // The next character that is not a space, '\0' at the end.
  char peek() {
    while (position_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[position_]))) ++position_;
    return position_ < text_.size() ? text_[position_] : '\0';
  }
  bool accept(char wanted) {
    if (peek() != wanted || position_ == text_.size()) return false;
    ++position_;
    return true;
  }
  void expect(char wanted) {
    if (!accept(wanted)) malformed();
  }
  std::string string() {
    const char quote = peek();
    if (quote != '\'' && quote != '"') malformed();
    const std::size_t end = text_.find(quote, ++position_);
    if (end == std::string_view::npos) malformed();
    const std::string value(text_.substr(position_, end - position_));
    position_ = end + 1;
    return value;
  }
  bool boolean() {
    peek();
    for (const auto& [word, value] : {std::pair{std::string_view("True"), true}, {std::string_view("False"), false}}) {
      if (text_.substr(position_, word.size()) == word) {
        position_ += word.size();
        return value;
      }
    }
    malformed();
  }
  std::vector<std::int64_t> tuple() {
    std::vector<std::int64_t> dims;
    expect('(');
    while (!accept(')')) {
      if (!std::isdigit(static_cast<unsigned char>(peek()))) malformed();
      std::int64_t dim = 0;
      while (position_ < text_.size() && std::isdigit(static_cast<unsigned char>(text_[position_]))) {
        if (__builtin_mul_overflow(dim, std::int64_t{10}, &dim) ||
            __builtin_add_overflow(dim, text_[position_] - '0', &dim)) {
          fail("a shape beyond 63 bits", "a shape that fits the file");
        }
        ++position_;
      }
      dims.push_back(dim);
      if (!accept(',') && peek() != ')') malformed();
    }
    return dims;
  }

  const std::string& path_;
  std::string_view text_;
  std::size_t position_ = 0;
};

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) throw usage_error(path, "no readable file of this name", "a .npy file");
  const std::streamoff end = file.tellg();
  if (end < 0 || end == std::numeric_limits<std::streamoff>::max()) {
    throw usage_error(path, "something that is not a regular file", "a .npy file");
  }
  std::string bytes(static_cast<std::size_t>(end), '\0');
  file.seekg(0).read(bytes.data(), end);
  if (!file) throw usage_error(path, "a read error", "a readable file");
  return bytes;
}

// The text of the header; `bytes` loses everything before the data.
std::string split_header(const std::string& path, std::string_view* bytes) {
  const auto cut_short = [&](const char* where) {
    return usage_error(path, fmt::format("a file cut short in the {}", where), "a whole .npy file");
  };
  if (bytes->substr(0, kMagic.size()) != kMagic.substr(0, bytes->size())) {
    throw usage_error(path, "a file that does not begin with \\x93NUMPY", "a .npy file");
  }
  if (bytes->size() < kMagic.size() + 4) throw cut_short("preamble");
  const int major = static_cast<unsigned char>((*bytes)[6]), minor = static_cast<unsigned char>((*bytes)[7]);
  if (major < 1 || major > 3 || minor != 0) {
    throw usage_error(path, fmt::format("format version {}.{}", major, minor), "1.0, 2.0 or 3.0");
  }
  const std::size_t length_bytes = major == 1 ? 2 : 4;
  if (bytes->size() < 8 + length_bytes) throw cut_short("preamble");
  std::size_t length = 0;
  for (std::size_t i = length_bytes; i-- > 0;) length = length << 8 | static_cast<unsigned char>((*bytes)[8 + i]);
  bytes->remove_prefix(8 + length_bytes);
  if (bytes->size() < length) throw cut_short("header");
  const std::string text(bytes->substr(0, length));
  bytes->remove_prefix(length);
  return text;
}

}  // namespace

HostTensor read_npy(const std::string& path) {
  const std::string file = read_file(path);
  std::string_view bytes = file;
  const std::string text = split_header(path, &bytes);
  const Header header = HeaderParser(path, text).parse();
  if (header.descr != "<f4" && header.descr != "<f2") {
    throw usage_error(path, fmt::format("dtype '{}'", header.descr),
                      "'<f4' (float32) or '<f2' (float16); bf16 and e4m3 travel in .safetensors files");
  }
  if (header.fortran_order) {
    throw usage_error(path, "Fortran order", "C order (numpy.ascontiguousarray)");
  }
  const DType dtype = header.descr == "<f4" ? DType::kF32 : DType::kFP16;
  std::uint64_t size = static_cast<std::uint64_t>(size_of(dtype));
  for (const std::int64_t dim : header.shape) {
    if (__builtin_mul_overflow(size, static_cast<std::uint64_t>(dim), &size)) {
      throw usage_error(path, "shape " + shape_text(header.shape), "a shape that fits the file");
    }
  }
  if (size != bytes.size()) {
    throw usage_error(path,
                      fmt::format("{} bytes of data{}", bytes.size(), bytes.size() < size ? ": a file cut short" : ""),
                      fmt::format("{} for {} of shape {}", size, header.descr, shape_text(header.shape)));
  }
  HostTensor tensor(dtype, header.shape);
  if (size != 0) std::memcpy(tensor.bytes.data(), bytes.data(), size);
  return tensor;
}

std::string serialize_npy(const HostTensor& tensor) {
  const HostTensor stored = convert(tensor, tensor.dtype == DType::kFP16 ? DType::kFP16 : DType::kF32);
  const std::string shape = fmt::format("({}{})", fmt::join(stored.shape, ", "), stored.shape.size() == 1 ? "," : "");
  std::string header = fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': {}, }}",
                                   stored.dtype == DType::kFP16 ? "<f2" : "<f4", shape);
  const std::size_t unpadded = kMagic.size() + 4 + header.size() + 1;
  header.append((kAlignment - unpadded % kAlignment) % kAlignment, ' ');
  header.push_back('\n');
  std::string file(kMagic);
  file += {'\x01', '\x00', static_cast<char>(header.size() & 0xFF), static_cast<char>(header.size() >> 8)};
  file += header;
  file.append(reinterpret_cast<const char*>(stored.bytes.data()), stored.bytes.size());
  return file;
}

}  // namespace fp8attn::cli
