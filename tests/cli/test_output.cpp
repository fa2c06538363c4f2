#include "cli/output_file.h"
#include "cli/table.h"
#include "cli_test.h"

namespace fp8attn::cli {
namespace {

class Output : public CliTest {};

TEST_F(Output, ReplacesTheFileOnlyWhenComplete) {
  const std::string name = write("result", "old");
  {
    const OutputFile abandoned("--out", name);
    EXPECT_EQ(read_text(name), "old");
  }
  EXPECT_EQ(read_text(name), "old");
  {
    OutputFile file("--out", name);
    file.write("first");
    EXPECT_EQ(read_text(name), "first");
    file.write("second");
  }
  EXPECT_EQ(read_text(name), "second");
  EXPECT_FALSE(std::filesystem::exists(name + ".partial"));
}

TEST_F(Output, RefusesPlacesThatCannotBeWritten) {
  EXPECT_NE(message_of([&] { OutputFile("--out", path("no/such/folder")); }).find("--out"), std::string::npos);
  EXPECT_NE(message_of([&] { OutputFile("--out", path("")); }).find("directory"), std::string::npos);
}

TEST(TableText, AlignsNumbersRightAndTextLeft) {
  Table table({"name", "value"});
  table.add({"a", "1"});
  table.add({"long name", "-"});
  EXPECT_EQ(table.text("  "),
            "  name       value\n"
            "  ---------  -----\n"
            "  a              1\n"
            "  long name      -\n");
  EXPECT_EQ(table.markdown(), "| name | value |\n|---|---|\n| a | 1 |\n| long name | - |\n");
}

}  // namespace
}  // namespace fp8attn::cli
