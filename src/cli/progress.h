// How far a long run is, on standard error.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>

namespace fp8attn::cli {

// A bar that is redrawn in place on a terminal; elsewhere a line now and then, none in a run that is short.
class Progress {
 public:
  Progress(std::string title, std::size_t steps);
  ~Progress();  // clears the bar
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // The next step begins.
  void step(const std::string& what);
  // A line that stays, above the bar.
  void note(const std::string& line);
  // Makes room for a line on standard output.
  void clear() const;

 private:
  void draw() const;

  std::string title_, what_;
  std::size_t steps_, begun_ = 0;
  bool terminal_;
  std::chrono::steady_clock::time_point last_line_ = std::chrono::steady_clock::now();
};

}  // namespace fp8attn::cli
