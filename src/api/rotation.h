// The random signs and the shape of the orthonormal matrix of QuantizeRecipe::hadamard.
#pragma once

#include <array>
#include <cstdint>

namespace fp8attn {

inline constexpr int kMaxRotatedChannels = 256;

// Bit c % 32 of word c / 32: whether channel c changes its sign before it is multiplied by the Hadamard matrix.
using RotationSigns = std::array<std::uint32_t, kMaxRotatedChannels / 32>;

// 32 random bits a word (the finaliser of MurmurHash3, of the seed and the word's number).
constexpr RotationSigns rotation_signs(std::uint32_t seed) {
  RotationSigns signs{};
  for (std::uint32_t i = 0; i < signs.size(); ++i) {
    std::uint32_t x = seed * 0x9E3779B9u + (i + 1) * 0x85EBCA6Bu;
    x = (x ^ (x >> 16)) * 0x85EBCA6Bu;
    x = (x ^ (x >> 13)) * 0xC2B2AE35u;
    signs[i] = x ^ (x >> 16);
  }
  return signs;
}

// Channels of the first Hadamard matrix; those behind it, if any, have one of their own.
constexpr std::int64_t first_rotated_block(std::int64_t channels) { return channels == 192 ? 128 : channels; }

constexpr bool can_rotate(std::int64_t channels) {
  return channels == 64 || channels == 128 || channels == 192 || channels == 256;
}

}  // namespace fp8attn
