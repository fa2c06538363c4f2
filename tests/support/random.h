// Random numbers by position: element i of stream s of a seed is always the same, in any order and on any thread.
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>

namespace fp8attn::test {

// Mixes 64 bits (the finaliser of splitmix64).
constexpr std::uint64_t mix(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

class Random {
 public:
  constexpr Random(std::uint64_t seed, std::uint64_t stream) : key_(mix(mix(seed) ^ stream)) {}

  constexpr std::uint64_t bits(std::uint64_t i) const { return mix(key_ + i); }

  // In (0, 1).
  constexpr double uniform(std::uint64_t i) const { return (static_cast<double>(bits(i) >> 11) + 0.5) * 0x1p-53; }

  // Mean 0, variance 1 (Box and Muller), from the two halves of 64 random bits.
  float normal(std::uint64_t i) const {
    const std::uint64_t random = bits(i);
    const float radius = (static_cast<float>(random >> 40) + 0.5f) * 0x1p-24f;
    const float angle = static_cast<float>(random & 0xFFFFFFu) * 0x1p-24f;
    return std::sqrt(-2.0f * std::log(radius)) * std::cos(2.0f * std::numbers::pi_v<float> * angle);
  }

 private:
  std::uint64_t key_;
};

}  // namespace fp8attn::test
