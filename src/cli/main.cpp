// The program `fp8attn`. Exit status: 0 done, 2 a mistake in the command line or the input, 1 anything else.
#include <fmt/format.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <exception>
#include <functional>
#include <string>

#include "cli/commands.h"
#include "cli/errors.h"
#include "fp8attn/backend.h"

namespace {

constexpr int kFailed = 1;
constexpr int kBadInput = 2;

// "fp8attn: attend: "
std::string prefix_of(const CLI::App& program) {
  const auto subcommands = program.get_subcommands();
  return subcommands.empty() ? "fp8attn: " : fmt::format("fp8attn: {}: ", subcommands.front()->get_name());
}

std::string message_of(const fp8attn::Error& error) {
  if (error.operation() != fp8attn::cli::kCommandLine) return error.what();
  return fmt::format("{}: got {}, expected {}", error.argument(), error.got(), error.expected());
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App program("8-bit attention for NVIDIA Hopper GPUs, and for every CPU", "fp8attn");
  program.set_version_flag("--version", fp8attn::version());
  program.require_subcommand(1);
  std::function<void()> run;
  fp8attn::cli::add_info(program, &run);
  fp8attn::cli::add_attend(program, &run);
  fp8attn::cli::add_compare(program, &run);
  fp8attn::cli::add_bench(program, &run);
  try {
    program.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return program.exit(error);  // --help, --version
    const std::string prefix = prefix_of(program);
    fmt::print(stderr, "{0}{1}\n{0}see --help\n", prefix, error.what());
    return kBadInput;
  }
  try {
    run();
  } catch (const fp8attn::Error& error) {
    fmt::print(stderr, "{}{}\n", prefix_of(program), message_of(error));
    return kBadInput;
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}{}\n", prefix_of(program), error.what());
    return kFailed;
  }
  return 0;
}
