#include "cli/safetensors.h"
#include "cli_test.h"

namespace fp8attn::cli {
namespace {

class Safetensors : public CliTest {
 protected:
  // The message about a file of this header and that many bytes of data; empty where it is accepted.
  std::string refusal(const std::string& header, std::size_t data_bytes) const {
    std::string bytes(8, '\0');
    for (int i = 0; i < 8; ++i) bytes[i] = static_cast<char>(static_cast<std::uint64_t>(header.size()) >> (8 * i));
    const std::string file = write("file", bytes + header + std::string(data_bytes, 'x'));
    return message_of([&] { SafetensorsFile{file}; });
  }
};

TEST_F(Safetensors, RoundTripKeepsEveryDtypeShapeAndByte) {
  HostTensor codes(DType::kE4M3, {2, 3});
  for (int i = 0; i < 6; ++i) codes.bytes[i] = static_cast<std::byte>(40 * i + 7);
  const Tensors tensors = {{"codes", codes},
                           {"a.b", normal({1, 2, 3, 4}, DType::kBF16, 1)},
                           {"half", normal({5}, DType::kFP16, 2)},
                           {"none", HostTensor(DType::kBF16, {0, 4})},
                           {"scalar", normal({}, DType::kF32, 3)}};
  const SafetensorsFile file(write_safetensors("f", tensors, {{"causal", "true"}, {"quote\"", "\n"}}));
  EXPECT_EQ(file.metadata(), (std::map<std::string, std::string>{{"causal", "true"}, {"quote\"", "\n"}}));
  EXPECT_EQ(file.names(), (std::vector<std::string>{"a.b", "codes", "half", "none", "scalar"}));
  for (const auto& [name, tensor] : tensors) {
    const HostTensor read = file.read(name);
    EXPECT_EQ(read.dtype, tensor.dtype) << name;
    EXPECT_EQ(read.shape, tensor.shape) << name;
    EXPECT_EQ(read.bytes, tensor.bytes) << name;
  }
}

TEST_F(Safetensors, ReadsAFileWrittenByHand) {
  const std::string header = R"({"b":{"dtype":"F32","shape":[1],"data_offsets":[2,6]},)"
                             R"("a":{"shape":[1,1],"data_offsets":[0,2],"dtype":"BF16"}}  )";
  const std::string length = {static_cast<char>(header.size()), 0, 0, 0, 0, 0, 0, 0};
  const std::string data = {0x00, 0x40, 0x00, 0x00, char(0xA0), 0x40};  // bf16 2, then float32 5
  const SafetensorsFile file(write("f", length + header + data));
  EXPECT_EQ(element(file.read("a").bytes.data(), DType::kBF16, 0), 2.0f);
  EXPECT_EQ(element(file.read("b").bytes.data(), DType::kF32, 0), 5.0f);
  EXPECT_EQ(file.read("a").shape, (std::vector<std::int64_t>{1, 1}));
}

TEST_F(Safetensors, RefusesAFileCutShortAnywhere) {
  const std::string whole =
      serialize_safetensors({{"q", normal({1, 2}, DType::kF32, 1)}, {"k", normal({3}, DType::kBF16, 2)}});
  for (std::size_t length = 0; length < whole.size(); ++length) {
    const std::string file = write("f", whole.substr(0, length));
    EXPECT_NE(message_of([&] { SafetensorsFile{file}; }), "") << length << " of " << whole.size() << " bytes";
  }
  const std::string file = write("f", whole);
  EXPECT_EQ(message_of([&] { SafetensorsFile{file}; }), "");
}

TEST_F(Safetensors, RefusesAHeaderLengthBeyondTheFormat) {
  const std::string file = write("f", std::string(8, char(0xFF)) + "{}");
  EXPECT_NE(message_of([&] { SafetensorsFile{file}; }).find("no header length"), std::string::npos);
}

struct BadHeader {
  const char* header;
  std::size_t data_bytes;
  const char* part;  // of the message
};

TEST_F(Safetensors, RefusesMalformedHeaders) {
  const BadHeader cases[] = {
      {"not json", 0, "JSON"},
      {"[]", 0, "no JSON object"},
      {R"({"a":1})", 0, "dtype (string)"},
      {R"({"a":{"dtype":"F32","shape":[1]}})", 4, "data_offsets"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0]}})", 4, "array of two"},
      {R"({"a":{"dtype":"F7","shape":[4],"data_offsets":[0,4]}})", 4, "dtype F7"},
      {R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", 4, "non-negative"},
      {R"({"a":{"dtype":"F32","shape":[1.5],"data_offsets":[0,4]}})", 4, "non-negative"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", 4, "begin <= end"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4, "the bytes of F32 [2]"},
      {R"({"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]}})", 0, "the bytes of"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 4, "cut short"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", 8, "hole"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[2,6]}})",
       6, "overlap"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 5, "1 bytes after the last tensor"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"I32","shape":[1],"data_offsets":[0,4]}})",
       4, "twice"},
      {R"({"__metadata__":{"a":1}})", 0, "a string"},
      {R"({"__metadata__":"a"})", 0, "__metadata__"},
  };
  for (const auto& [header, data_bytes, part] : cases) {
    EXPECT_NE(refusal(header, data_bytes).find(part), std::string::npos)
        << header << "\nsays: " << refusal(header, data_bytes) << "\nwithout: " << part;
  }
  EXPECT_EQ(refusal(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 4), "");
}

// Values that would fill the screen, or the stack, are cut in messages.
TEST_F(Safetensors, RefusesDeepHeadersAndQuotesBriefly) {
  const std::string deep = std::string(100000, '[') + std::string(100000, ']');
  EXPECT_NE(refusal(R"({"a":)" + deep + "}", 0).find("nested more than 16"), std::string::npos);
  EXPECT_NE(refusal(std::string(100000, '['), 0).find("nested more than 16"), std::string::npos);
  std::string objects;
  for (int i = 0; i < 100000; ++i) objects += R"({"a":)";
  EXPECT_NE(refusal(objects, 0).find("nested more than 16"), std::string::npos);
  const std::string wide(100000, 'x');
  for (const std::string& header :
       {R"({"a":")" + wide + "\"}", R"({"a":{"dtype":")" + wide + R"(","shape":[],"data_offsets":[0,0]}})",
        "{\"" + wide + "\":1}", R"({"__metadata__":{"a":[")" + wide + "\"]}}", "\"" + wide}) {
    EXPECT_NE(refusal(header, 0), "");
    EXPECT_LT(refusal(header, 0).size(), 600u);
  }
}

TEST_F(Safetensors, NamesWhatIsThereForAMissingTensor) {
  const SafetensorsFile file(
      write_safetensors("f", {{"q", normal({1}, DType::kF32, 1)}, {"key", normal({1}, DType::kF32, 2)}}));
  const std::string message = message_of([&] { file.read("k"); });
  EXPECT_NE(message.find("'k'"), std::string::npos) << message;
  EXPECT_NE(message.find("key, q"), std::string::npos) << message;
}

TEST_F(Safetensors, RefusesToReadOtherDtypes) {
  const std::string header = R"({"a":{"dtype":"F64","shape":[1],"data_offsets":[0,8]}})";
  const std::string length = {static_cast<char>(header.size()), 0, 0, 0, 0, 0, 0, 0};
  const SafetensorsFile file(write("f", length + header + std::string(8, 'x')));
  EXPECT_NE(message_of([&] { file.read("a"); }).find("dtype F64"), std::string::npos);
}

TEST_F(Safetensors, RefusesFoldersAndMissingFiles) {
  EXPECT_NE(message_of([&] { SafetensorsFile{path("")}; }).find("regular file"), std::string::npos);
  EXPECT_NE(message_of([&] { SafetensorsFile{path("nothing")}; }).find("no readable file"), std::string::npos);
}

}  // namespace
}  // namespace fp8attn::cli
