// A vector's content on a test device.
#pragma once

#include <cstddef>
#include <vector>

#include "test_device.h"

namespace fp8attn::test {

template <class T>
class DeviceVector {
 public:
  DeviceVector(TestDevice& device, const std::vector<T>& host)
      : count_(host.size()), buffer_(device, count_ * sizeof(T)) {
    if (count_ > 0) buffer_.upload(host.data());
  }

  T* data() const { return static_cast<T*>(buffer_.data()); }
  std::vector<T> download() const {
    std::vector<T> host(count_);
    if (count_ > 0) buffer_.download(host.data());
    return host;
  }

 private:
  std::size_t count_;
  Buffer buffer_;
};

}  // namespace fp8attn::test
