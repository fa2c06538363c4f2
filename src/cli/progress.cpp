#include "cli/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>

namespace fp8attn::cli {
namespace {

// Standard error may be closed; then nobody sees the progress, and that is all.
void put(const std::string& text) { std::fputs(text.c_str(), stderr); }

constexpr std::chrono::seconds kBetweenLines{5};

}  // namespace

Progress::Progress(std::string title, std::size_t steps)
    : title_(std::move(title)), steps_(steps), terminal_(isatty(STDERR_FILENO) != 0) {}

Progress::~Progress() { clear(); }

void Progress::step(const std::string& what) {
  ++begun_;
  what_ = what;
  if (terminal_) {
    clear();
    draw();
    return;
  }
  const auto now = std::chrono::steady_clock::now();
  if (now - last_line_ < kBetweenLines) return;
  last_line_ = now;
  put(fmt::format("{} {}/{}: {}\n", title_, begun_, steps_, what_));
}

void Progress::note(const std::string& line) {
  clear();
  put(line + '\n');
  if (terminal_ && begun_ > 0) draw();
}

void Progress::draw() const {
  constexpr std::size_t kWidth = 24;
  const std::size_t filled = steps_ == 0 ? kWidth : (begun_ - 1) * kWidth / steps_;
  put(fmt::format("{} [{}{}] {}/{} {}", title_, std::string(filled, '#'), std::string(kWidth - filled, '.'), begun_,
                  steps_, what_));
  std::fflush(stderr);
}

void Progress::clear() const {
  if (!terminal_) return;
  put("\r\x1b[K");
  std::fflush(stderr);
}

}  // namespace fp8attn::cli
