#include "watchdog.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <thread>

namespace fp8attn::test {
namespace {

class Watchdog final : public ::testing::EmptyTestEventListener {
 public:
  explicit Watchdog(std::chrono::seconds limit) : limit_(limit), thread_([this] { watch(); }) {}

  ~Watchdog() override {
    set("", false);
    thread_.join();
  }

  void OnTestStart(const ::testing::TestInfo& info) override {
    set(std::string(info.test_suite_name()) + "." + info.name(), true);
  }
  void OnTestEnd(const ::testing::TestInfo&) override { set("", true); }

 private:
  void set(const std::string& test, bool running) {
    const std::lock_guard lock(mutex_);
    test_ = test;
    running_ = running;
    ++changes_;
    changed_.notify_one();
  }

  void watch() {
    std::unique_lock lock(mutex_);
    while (running_) {
      const int seen = changes_;
      const auto moved_on = [&] { return changes_ != seen; };
      if (test_.empty()) {
        changed_.wait(lock, moved_on);
      } else if (!changed_.wait_for(lock, limit_, moved_on)) {
        std::fprintf(stderr, "watchdog: %s has run for more than %lld s\n", test_.c_str(),
                     static_cast<long long>(limit_.count()));
        std::fflush(nullptr);
        std::abort();
      }
    }
  }

  const std::chrono::seconds limit_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string test_;  // empty between tests
  int changes_ = 0;
  bool running_ = true;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace

void watch_tests(std::chrono::seconds limit) {
  ::testing::UnitTest::GetInstance()->listeners().Append(new Watchdog(limit));  // GoogleTest deletes it
}

}  // namespace fp8attn::test
