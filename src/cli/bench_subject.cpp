#include "cli/bench_subject.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <exception>
#include <new>

#include "cli/bench_quantiser.h"
#include "cli/cudnn.h"

namespace fp8attn::cli {
namespace {

class Ours : public BenchSubject {
 public:
  Ours(const Layer& layer, const Recipe* recipe, const AttentionOptions& options)
      : attention_(layer, recipe, options) {}

  Support support() const { return attention_.support(); }
  void allocate_workspace() { attention_.allocate_workspace(); }
  void launch() override { attention_.launch(); }
  HostTensor out() const override { return attention_.out(); }
  DType out_dtype() const override { return attention_.output_dtype(); }
  std::string version() const override { return ""; }

 private:
  Attention attention_;
};

Preparation prepare_ours(const BenchCase& item, const Layer& layer, AttentionOptions options) {
  options.causal = item.causal;
  options.v_layout = item.v_layout;
  options.p_mode = item.p_mode;
  const Recipe* recipe = item.recipe.empty() ? nullptr : &find_recipe(item.recipe);
  auto ours = std::make_unique<Ours>(layer, recipe, options);
  if (const Support support = ours->support(); !support) {
    return {nullptr, fmt::format("{}", fmt::join(support.reasons, "; "))};
  }
  ours->allocate_workspace();
  return {std::move(ours), ""};
}

}  // namespace

Preparation prepare(const BenchCase& item, const Layer& layer, const AttentionOptions& options) {
  if (item.op != BenchOp::kPrefill) return {quantiser_subject(item, layer.q, options.device), ""};
  if (item.library == BenchLibrary::kFp8attn) return prepare_ours(item, layer, options);
  if (options.device.kind != DeviceKind::kCuda) return {nullptr, "cuDNN runs on CUDA devices only"};
  try {
    return {cudnn_subject(item, layer, options.device), ""};
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    return {nullptr, error.what()};
  }
}

}  // namespace fp8attn::cli
