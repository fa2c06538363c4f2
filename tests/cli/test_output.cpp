#include "cli/output_file.h"
#include "cli/table.h"
#include "cli_test.h"

namespace fp8attn::cli {
namespace {

class Output : public CliTest {
 protected:
  std::ptrdiff_t files_in_folder() const {
    return std::distance(std::filesystem::directory_iterator(path("")), std::filesystem::directory_iterator());
  }
};

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
  EXPECT_EQ(files_in_folder(), 1);
}

TEST_F(Output, LeavesOtherFilesAlone) {
  const std::string name = path("result"), other = write("result.partial", "mine");
  OutputFile first("--out", name), second("--out", name);
  first.write("first");
  second.write("second");
  EXPECT_EQ(read_text(name), "second");
  EXPECT_EQ(read_text(other), "mine");
}

TEST_F(Output, WritesThroughLinks) {
  const std::string target = write("target", "old");
  std::filesystem::create_symlink("target", path("link"));
  std::filesystem::create_symlink("new", path("dangling"));
  OutputFile("--out", path("link")).write("a");
  OutputFile("--out", path("dangling")).write("b");
  EXPECT_TRUE(std::filesystem::is_symlink(path("link")) && std::filesystem::is_symlink(path("dangling")));
  EXPECT_EQ(read_text(target), "a");
  EXPECT_EQ(read_text(path("new")), "b");
}

TEST_F(Output, KeepsPermissions) {
  using std::filesystem::perms;
  const std::string name = write("result", "old");
  std::filesystem::permissions(name, perms::owner_read | perms::owner_write);
  OutputFile("--out", name).write("new");
  EXPECT_EQ(std::filesystem::status(name).permissions(), perms::owner_read | perms::owner_write);
}

TEST_F(Output, RefusesPlacesThatCannotBeWritten) {
  EXPECT_NE(message_of([&] { OutputFile("--out", path("no/such/folder")); }).find("--out"), std::string::npos);
  EXPECT_NE(message_of([&] { OutputFile("--out", path("")); }).find("directory"), std::string::npos);
  EXPECT_NE(message_of([&] { OutputFile("--out", "/dev/null"); }).find("regular file"), std::string::npos);
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
