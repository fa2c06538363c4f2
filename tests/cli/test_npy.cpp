#include "cli/npy.h"
#include "cli_test.h"

namespace fp8attn::cli {
namespace {

class Npy : public CliTest {
 protected:
  static std::string file_bytes(int major, const std::string& header, const std::string& data) {
    std::string bytes = "\x93NUMPY";
    bytes += {static_cast<char>(major), '\0'};
    for (int i = 0; i < (major == 1 ? 2 : 4); ++i) bytes.push_back(static_cast<char>(header.size() >> (8 * i)));
    return bytes + header + data;
  }
  std::string refusal(const std::string& bytes) const {
    const std::string file = write("f.npy", bytes);
    return message_of([&] { read_npy(file); });
  }
};

TEST_F(Npy, RoundTripKeepsDtypeShapeAndBytes) {
  for (const DType dtype : {DType::kF32, DType::kFP16}) {
    for (const auto& shape : {std::vector<std::int64_t>{2, 3, 4}, {7}, {}, {0, 3}}) {
      const HostTensor tensor = normal(shape, dtype, 1);
      const std::string bytes = serialize_npy(tensor);
      const HostTensor read = read_npy(write("f.npy", bytes));
      EXPECT_EQ(read.dtype, dtype);
      EXPECT_EQ(read.shape, shape);
      EXPECT_EQ(read.bytes, tensor.bytes);
      EXPECT_EQ((bytes.size() - tensor.bytes.size()) % 64, 0u) << "the data is not aligned";
    }
  }
}

TEST_F(Npy, WritesBf16AsFloat32) {
  const HostTensor tensor = normal({4}, DType::kBF16, 1);
  EXPECT_EQ(read_npy(write("f.npy", serialize_npy(tensor))).bytes, convert(tensor, DType::kF32).bytes);
}

TEST_F(Npy, ReadsFilesWrittenByHandInEveryVersion) {
  const std::string two("\0\0\0\x40", 4);
  for (const int version : {1, 2, 3}) {
    for (const char* header : {"{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }   \n",
                               "{'shape':(1,1),\"fortran_order\":False,'descr':'<f4'}"}) {
      const HostTensor tensor = read_npy(write("f.npy", file_bytes(version, header, two)));
      EXPECT_EQ(tensor.count(), 1) << header;
      EXPECT_EQ(element(tensor.bytes.data(), tensor.dtype, 0), 2.0f) << header;
    }
  }
}

TEST_F(Npy, RefusesAFileCutShortAnywhere) {
  const std::string whole = serialize_npy(normal({2, 3}, DType::kF32, 1));
  for (std::size_t length = 0; length < whole.size(); ++length) {
    EXPECT_NE(refusal(whole.substr(0, length)), "") << length << " of " << whole.size() << " bytes";
  }
  EXPECT_EQ(refusal(whole), "");
  EXPECT_NE(refusal(whole + 'x').find("25 bytes of data"), std::string::npos);
}

TEST_F(Npy, RefusesOtherVersions) {
  std::string bytes = serialize_npy(normal({1}, DType::kF32, 1));
  for (const auto& [major, minor, text] : {std::tuple{4, 0, "4.0"}, {0, 1, "0.1"}, {1, 1, "1.1"}}) {
    bytes[6] = static_cast<char>(major);
    bytes[7] = static_cast<char>(minor);
    EXPECT_NE(refusal(bytes).find(text), std::string::npos) << text;
  }
}

TEST_F(Npy, RefusesOtherContent) {
  const std::pair<const char*, const char*> cases[] = {
      {"{'descr': '<f4', 'fortran_order': True, 'shape': (1,), }", "Fortran"},
      {"{'descr': '<f8', 'fortran_order': False, 'shape': (1,), }", "'<f8'"},
      {"{'descr': '>f4', 'fortran_order': False, 'shape': (1,), }", "'>f4'"},
      {"{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,), }", "structured"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }", "cut short"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (-1,), }", "malformed"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387904, 4), }", "fits the file"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,), }", "63 bits"},
      {"{'descr': '<f4', 'fortran_order': False, }", "malformed"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (1,)", "malformed"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (1,), 'more': 1}", "'more'"},
      {"{'descr': '<f4', 'fortran_order': 0, 'shape': (1,), }", "malformed"},
      {"", "malformed"},
  };
  for (const auto& [header, part] : cases) {
    const std::string message = refusal(file_bytes(1, header, "\0\0\0\x40"));
    EXPECT_NE(message.find(part), std::string::npos) << header << "\nsays: " << message;
  }
  EXPECT_NE(refusal("PK\x03\x04 something else").find("NUMPY"), std::string::npos);
}

}  // namespace
}  // namespace fp8attn::cli
