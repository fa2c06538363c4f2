// The subcommands. Each adds its options to the program and, when it is the one that the user named, leaves in `run`
// what it does: an error there is reported after the command line has been accepted.
#pragma once

#include <CLI/App.hpp>
#include <functional>

namespace fp8attn::cli {

void add_info(CLI::App& program, std::function<void()>* run);
void add_attend(CLI::App& program, std::function<void()>* run);
void add_compare(CLI::App& program, std::function<void()>* run);
void add_bench(CLI::App& program, std::function<void()>* run);

}  // namespace fp8attn::cli
