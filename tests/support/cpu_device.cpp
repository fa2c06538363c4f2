#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <new>
#include <unordered_map>

#include "test_device.h"

namespace fp8attn::test {
namespace {

std::size_t round_up(std::size_t value, std::size_t multiple) { return (value + multiple - 1) / multiple * multiple; }

class CpuDevice final : public TestDevice {
 public:
  Device device() const override { return {DeviceKind::kCpu, 0}; }

  void* allocate(std::size_t bytes, std::size_t alignment) override {
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    const std::size_t usable = round_up(bytes, page);
    void* base = mmap(nullptr, usable + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) throw std::bad_alloc();
    auto* guard = static_cast<std::uint8_t*>(base) + usable;
    if (mprotect(guard, page, PROT_NONE) != 0) throw std::bad_alloc();
    void* memory = guard - round_up(bytes, alignment);
    mappings_[memory] = {base, usable + page};
    return memory;
  }

  void free(void* memory) override {
    const auto mapping = mappings_.at(memory);
    mappings_.erase(memory);
    munmap(mapping.base, mapping.bytes);
  }

  void upload(void* target, const void* source, std::size_t bytes) override { copy(target, source, bytes); }
  void download(void* target, const void* source, std::size_t bytes) override { copy(target, source, bytes); }

 private:
  struct Mapping {
    void* base;
    std::size_t bytes;
  };

  static void copy(void* target, const void* source, std::size_t bytes) {
    if (bytes > 0) std::memcpy(target, source, bytes);
  }

  std::unordered_map<void*, Mapping> mappings_;
};

}  // namespace

std::unique_ptr<TestDevice> make_cpu_device() { return std::make_unique<CpuDevice>(); }

}  // namespace fp8attn::test
