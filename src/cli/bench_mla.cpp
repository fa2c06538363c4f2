#include "cli/bench_mla.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdio>
#include <memory>
#include <new>
#include <nlohmann/json.hpp>
#include <optional>
#include <regex>

#include "cli/bench_mla_cases.h"
#include "cli/bench_timing.h"
#include "cli/errors.h"
#include "cli/format.h"
#include "cli/json_text.h"
#include "cli/output_file.h"
#include "cli/progress.h"
#include "cli/recipe.h"
#include "cli/utc_now.h"
#include "cli/yardstick.h"
#include "fp8attn_commit.h"

namespace fp8attn::cli {
namespace {

using nlohmann::ordered_json;

constexpr double kWarmMs = 60, kTimedMs = 120;  // of the yardstick
constexpr double kReadGbps = 4650;              // what an H200 was measured to read
constexpr double kPeakGbps = 4800;              // what its data sheet says
constexpr double kPeakTflops = 1979;            // the same for dense e4m3; half of it for bf16

struct Figures {
  Timing timing;
  double rel_l2 = 0, burst_tflops = 0, tflops = 0, gbps = 0;
};

double peak_tflops(const MlaBenchCase& item) {
  return item.format == CacheFormat::kBF16 ? kPeakTflops / 2 : kPeakTflops;
}

class MlaBench {
 public:
  MlaBench(const MlaBenchOptions& options, AttentionOptions attention, std::vector<MlaBenchCase> cases)
      : attention_(attention), cases_(std::move(cases)), text_(options.json == "-" ? stderr : stdout) {
    if (!options.json.empty() && options.json != "-") file_ = std::make_unique<OutputFile>("--json", options.json);
    for (const MlaBenchCase& item : cases_) name_width_ = std::max(name_width_, item.name().size());
  }

  void run() {
    Progress progress("bench --mla", cases_.size());
    fmt::print(text_, "device  {}, {}\ncommit  {}\n", where(attention_), device_name(attention_.device),
               kFp8attnCommit);
    if (on_cuda()) {
      yardstick_ = measure_yardstick_tflops(attention_.device.index, kWarmMs, kTimedMs);
      fmt::print(text_, "Y       {:.0f} TFLOP/s (tensor-only e4m3 loop, sustained)\n", *yardstick_);
    }
    print_header();
    std::size_t left_out = 0;
    for (const MlaBenchCase& item : cases_) {
      progress.step(item.name());
      const std::string problem = run_case(item, &progress);
      if (problem.empty()) continue;
      ++left_out;
      progress.clear();
      fmt::print(text_, "{:<{}}  not supported: {}\n", item.name(), name_width_, problem);
    }
    print_legend();
    if (text_ == stderr) fmt::print("{}\n", pretty(rows_));
    if (file_) file_->write(pretty(rows_) + '\n');
    if (left_out == cases_.size()) throw std::runtime_error("no case can run here");
  }

 private:
  bool on_cuda() const { return attention_.device.kind == DeviceKind::kCuda; }

  // Returns why the case cannot run, "" where it did.
  std::string run_case(const MlaBenchCase& item, Progress* progress) try {
    MlaBenchCall call(item, attention_);
    if (const Support support = call.support(); !support) return fmt::format("{}", fmt::join(support.reasons, "; "));
    call.allocate_workspace();
    Figures figures;
    figures.timing = measure(attention_.device, [&] { call.launch(); });
    figures.rel_l2 = call.error();
    figures.burst_tflops = item.flop() / figures.timing.burst_ms * 1e-9;
    figures.tflops = item.flop() / figures.timing.sustained_ms * 1e-9;
    figures.gbps = item.bytes() / figures.timing.sustained_ms * 1e-6;
    rows_.push_back(row(item, figures));
    if (file_) file_->write(pretty(rows_) + '\n');
    progress->clear();
    print_row(item, figures);
    return "";
  } catch (const std::bad_alloc&) {
    return kTooLarge;
  }

  // Ratios belong to GPUs.
  void print_header() const {
    fmt::print(text_, "\n{:<{}}  {:>9}  {:>9}  {:>8}  {:>9}  {:>7}", "", name_width_, "burst", "sustained", "burst",
               "sustained", "");
    if (on_cuda()) fmt::print(text_, "  {:>6}  {:>6}  {:>6}  {:>6}", "sust.", "of", "", "");
    fmt::print(text_, "\n{:<{}}  {:>9}  {:>9}  {:>8}  {:>9}  {:>7}", "case", name_width_, "us", "us", "TFLOP/s",
               "TFLOP/s", "GB/s");
    if (on_cuda()) fmt::print(text_, "  {:>6}  {:>6}  {:>6}  {:>6}", "/ Y", "read", "MFU", "MBU");
    fmt::print(text_, "  {:>8}\n", "rel L2");
  }

  void print_row(const MlaBenchCase& item, const Figures& figures) const {
    fmt::print(text_, "{:<{}}  {:>9.1f}  {:>9.1f}  {:>8.4g}  {:>9.4g}  {:>7.4g}", item.name(), name_width_,
               figures.timing.burst_ms * 1e3, figures.timing.sustained_ms * 1e3, figures.burst_tflops, figures.tflops,
               figures.gbps);
    if (yardstick_) {
      fmt::print(text_, "  {:>6.3f}  {:>6.3f}  {:>6.3f}  {:>6.3f}", figures.tflops / *yardstick_,
                 figures.gbps / kReadGbps, figures.tflops / peak_tflops(item), figures.gbps / kPeakGbps);
    }
    fmt::print(text_, "  {:>8}\n", error_text(figures.rel_l2));
    std::fflush(text_);
  }

  void print_legend() const {
    fmt::print(text_,
               "\nburst: about 8 ms of launches after a pause. sustained: at least 120 ms of launches after 60 ms of "
               "them.\n"
               "GB/s: records that are read, q and out, sustained. rel L2: against float64 attention of the stored "
               "tokens,\n"
               "first sequence.\n");
    if (!on_cuda()) return;
    fmt::print(text_,
               "Y: what a loop of nothing but 8-bit tensor-core products reaches on this device in this run. of read: "
               "of the\n"
               "{} GB/s that an H200 reads at best. MFU, MBU: of the {} TFLOP/s (bf16: half) and {} GB/s of its data "
               "sheet.\n",
               kReadGbps, kPeakTflops, kPeakGbps);
  }

  ordered_json row(const MlaBenchCase& item, const Figures& figures) const {
    const ordered_json none;
    return {{"op", "mla_decode"},
            {"library", "fp8attn"},
            {"backend", name_of(attention_.device.kind)},
            {"device", device_name(attention_.device)},
            {"commit", kFp8attnCommit},
            {"date", utc_now()},
            {"cache", name_of(item.format)},
            {"batch", item.batch},
            {"heads_q", item.heads_q},
            {"seqlen_q", item.seqlen_q},
            {"seqlen_kv", item.tokens},
            {"topk", item.topk},
            {"uneven", item.uneven},
            {"page_size", item.page_size},
            {"burst_ms", figures.timing.burst_ms},
            {"sustained_ms", figures.timing.sustained_ms},
            {"burst_tflops", figures.burst_tflops},
            {"sustained_tflops", figures.tflops},
            {"gbps", figures.gbps},
            {"yardstick_tflops", yardstick_ ? ordered_json(*yardstick_) : none},
            {"ratio", yardstick_ ? ordered_json(figures.tflops / *yardstick_) : none},
            {"read_fraction", on_cuda() ? ordered_json(figures.gbps / kReadGbps) : none},
            {"mfu", on_cuda() ? ordered_json(figures.tflops / peak_tflops(item)) : none},
            {"mbu", on_cuda() ? ordered_json(figures.gbps / kPeakGbps) : none},
            {"rel_l2", figures.rel_l2}};
  }

  AttentionOptions attention_;
  std::vector<MlaBenchCase> cases_;
  std::FILE* text_;
  std::unique_ptr<OutputFile> file_;
  std::size_t name_width_ = 4;
  std::optional<double> yardstick_;
  ordered_json rows_ = ordered_json::array();
};

std::vector<MlaBenchCase> chosen_cases(const MlaBenchOptions& options, Device device) {
  std::vector<MlaBenchCase> chosen;
  const std::vector<MlaBenchCase> all = mla_bench_cases(device.kind);
  try {
    const std::regex pattern(options.filter);
    for (const MlaBenchCase& item : all) {
      if (std::regex_search(item.name(), pattern)) chosen.push_back(item);
    }
  } catch (const std::regex_error& error) {
    throw usage_error("--filter", fmt::format("'{}' ({})", options.filter, error.what()), "a regular expression");
  }
  if (chosen.empty()) {
    throw usage_error("--filter", fmt::format("'{}', which matches no case", options.filter),
                      fmt::format("part of a name such as '{}'", all.front().name()));
  }
  return chosen;
}

}  // namespace

void run_bench_mla(const MlaBenchOptions& options) {
  AttentionOptions attention;
  attention.device = parse_device(options.device);
  attention.arithmetic = parse_arithmetic(options.arithmetic, attention.device, CpuArithmetic::kFloat32);
  MlaBench(options, attention, chosen_cases(options, attention.device)).run();
}

}  // namespace fp8attn::cli
