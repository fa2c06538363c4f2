// One thing that is wrong with a call, as validation and dispatch report it.
#pragma once

#include <string>
#include <vector>

#include "fp8attn/backend.h"
#include "fp8attn/error.h"

namespace fp8attn {

struct Reason {
  std::string argument, got, expected;

  std::string text() const { return argument + ": got " + got + ", expected " + expected; }
};

inline Support to_support(const std::vector<Reason>& reasons) {
  Support support;
  support.ok = reasons.empty();
  for (const Reason& reason : reasons) support.reasons.push_back(reason.text());
  return support;
}

inline void throw_first(const char* operation, const std::vector<Reason>& reasons) {
  if (reasons.empty()) return;
  throw Error(operation, reasons.front().argument, reasons.front().got, reasons.front().expected);
}

}  // namespace fp8attn
