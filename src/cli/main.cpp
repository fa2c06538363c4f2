// The program `fp8attn`. Exit status: 0 done, 2 a mistake in the command line or the input, 1 anything else.
#include <fmt/format.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <functional>
#include <iostream>
#include <new>
#include <stdexcept>
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

// Unlike fmt::print, which throws, it ignores that standard error may be closed.
int fail(const CLI::App& program, int status, const std::string& message) {
  std::fputs((prefix_of(program) + message + '\n').c_str(), stderr);
  return status;
}

int usage_mistake(const CLI::App& program, const std::string& message) {
  return fail(program, kBadInput, fmt::format("{}\n{}see --help", message, prefix_of(program)));
}

// A first word that is no command; CLI11 would only say that a command is missing.
bool names_no_command(const CLI::App& program, const std::string& word) {
  if (word.starts_with("-")) return false;
  const auto commands = program.get_subcommands([](const CLI::App*) { return true; });
  return std::none_of(commands.begin(), commands.end(),
                      [&](const CLI::App* command) { return command->get_name() == word; });
}

std::string command_names(const CLI::App& program) {
  std::string names;
  for (const CLI::App* command : program.get_subcommands([](const CLI::App*) { return true; })) {
    names += (names.empty() ? "" : ", ") + command->get_name();
  }
  return names;
}

// `status`, unless what was printed did not arrive.
int flush_output(const CLI::App& program, int status) {
  errno = 0;
  std::cout.flush();
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0 && std::cout) return status;
  return fail(program, kFailed, fmt::format("standard output: {}", errno == 0 ? "write error" : std::strerror(errno)));
}

int run_command(const CLI::App& program, const std::function<void()>& run) {
  try {
    run();
  } catch (const fp8attn::Error& error) {
    return fail(program, kBadInput, message_of(error));
  } catch (const std::bad_alloc&) {
    return fail(program, kFailed, fp8attn::cli::kTooLarge);
  } catch (const std::length_error&) {  // more bytes than any vector holds
    return fail(program, kFailed, "the tensors are too large for any machine");
  } catch (const std::exception& error) {
    const char* place = std::ferror(stdout) != 0 ? "standard output: " : "";  // fmt::print throws when a buffer is full
    return fail(program, kFailed, place + std::string(error.what()));
  }
  return 0;
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
  if (argc < 2) {
    std::fputs(program.help().c_str(), stderr);
    return kBadInput;
  }
  if (names_no_command(program, argv[1])) {
    return usage_mistake(program, fmt::format("got '{}', expected one of {}", argv[1], command_names(program)));
  }
  try {
    program.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() != 0) return usage_mistake(program, error.what());
    return flush_output(program, program.exit(error));  // --help, --version
  } catch (const std::exception& error) {               // of a conversion within CLI11
    return usage_mistake(program, fmt::format("a value that cannot be read ({})", error.what()));
  }
  const int status = run_command(program, run);
  return status == 0 ? flush_output(program, 0) : status;
}
