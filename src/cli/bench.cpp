// `fp8attn bench`: time and error over the shapes of a file of cases.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <memory>
#include <new>
#include <nlohmann/json.hpp>
#include <optional>
#include <regex>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "cli/bench_batch.h"
#include "cli/bench_cases.h"
#include "cli/bench_data.h"
#include "cli/bench_mla.h"
#include "cli/bench_subject.h"
#include "cli/bench_timing.h"
#include "cli/commands.h"
#include "cli/common_options.h"
#include "cli/cublaslt.h"
#include "cli/cuda_device.h"
#include "cli/errors.h"
#include "cli/format.h"
#include "cli/json_text.h"
#include "cli/output_file.h"
#include "cli/progress.h"
#include "cli/utc_now.h"
#include "cli/yardstick.h"
#include "fp8attn_commit.h"

namespace fp8attn::cli {
namespace {

using nlohmann::ordered_json;

constexpr double kWarmMs = 60, kTimedMs = 120;  // of the yardstick and of cuBLASLt

struct Options {
  std::string cases, filter, device, arithmetic, json;
  bool mla = false;
};

struct Measurement {
  Timing timing;
  double rel_l2 = 0;
  DType out_dtype = DType::kF32;
  std::string version;  // of a library that is not this one
};

std::optional<double> ratio_of(double figure, const std::optional<double>& yardstick) {
  return yardstick ? std::optional(figure / *yardstick) : std::nullopt;
}

double relative_l2(const HostTensor& want, const HostTensor& got) {
  const HostTensor a = convert(want, DType::kF32);
  const auto* expected = reinterpret_cast<const float*>(a.bytes.data());
  const auto* values = reinterpret_cast<const float*>(got.bytes.data());
  double difference = 0, norm = 0;
  for (std::int64_t i = 0; i < a.count(); ++i) {
    difference += (double{values[i]} - expected[i]) * (double{values[i]} - expected[i]);
    norm += double{expected[i]} * expected[i];
  }
  return std::sqrt(difference / norm);
}

double tflops(const BenchCase& item, double milliseconds) { return item.flop() / milliseconds * 1e-9; }

// Tensors and exact attention of the case before, which the next one often shares.
class Inputs {
 public:
  const Layer& layer(const BenchCase& item) {
    if (tensors_ != item.tensors()) {
      tensors_.clear();  // the next line may find too little memory
      layer_ = random_layer(item);
      tensors_ = item.tensors();
      mask_.reset();
    }
    return layer_;
  }
  // A few rows: exact attention of all would take longer than the benchmark.
  const Reference& exact(const BenchCase& item, const AttentionOptions& options) {
    layer(item);
    if (mask_ != item.causal) {
      exact_ = exact_attention(layer_, options, sample_rows(item.seqlen_q, 64, 8, 4));
      mask_ = item.causal;
    }
    return exact_;
  }

 private:
  std::string tensors_;
  Layer layer_;
  std::optional<bool> mask_;
  Reference exact_;
};

// The run of one command: where it measures and where it reports.
class Bench {
 public:
  Bench(const Options& options, AttentionOptions attention, std::vector<BenchCase> cases)
      : attention_(attention), cases_(std::move(cases)), text_(options.json == "-" ? stderr : stdout) {
    if (!options.json.empty() && options.json != "-") file_ = std::make_unique<OutputFile>("--json", options.json);
    for (const BenchCase& item : cases_) name_width_ = std::max(name_width_, item.name().size());
  }

  void run() {
    Progress progress("bench", cases_.size());
    fmt::print(text_, "device  {}\ncommit  {}\n", device(), kFp8attnCommit);
    if (on_cuda()) print_yardsticks();
    print_header();
    std::size_t left_out = 0;
    for (const BenchCase& item : cases_) {
      progress.step(item.name());
      const std::string problem = run_case(item, &progress);
      if (problem.empty()) continue;
      if (item.library == BenchLibrary::kFp8attn) ++left_out;
      rows_.push_back(row(item, problem));
      progress.clear();
      fmt::print(text_, "{:<{}}  not supported: {}\n", item.name(), name_width_, problem);
    }
    if (on_cuda()) fmt::print(text_, "\nY after the run: {:.0f} TFLOP/s\n", yardstick());
    print_legend();
    if (text_ == stderr) fmt::print("{}\n", pretty(rows_));
    if (file_) file_->write(pretty(rows_) + '\n');
    // Another library that is absent is no fault of this one.
    if (left_out != 0) {
      throw std::runtime_error(fmt::format("{} of {} cases cannot run here", left_out, cases_.size()));
    }
  }

 private:
  bool on_cuda() const { return attention_.device.kind == DeviceKind::kCuda; }

  std::string device() const {
    const std::string name = device_name(attention_.device);
    return on_cuda() ? name : fmt::format("{}, {}", name, name_of(attention_.arithmetic));
  }

  double yardstick() const { return measure_yardstick_tflops(attention_.device.index, kWarmMs, kTimedMs); }

  void print_yardsticks() {
    yardstick_ = yardstick();
    fmt::print(text_, "Y       {:.0f} TFLOP/s (tensor-only e4m3 loop, sustained)\n", *yardstick_);
    copy_ = cuda_copy_gbps(attention_.device.index);
    fmt::print(text_, "        {:.0f} GB/s (a copy within the device's memory)\n", *copy_);
    const CublasLtResult library = measure_cublaslt_tflops(attention_.device.index, kWarmMs, kTimedMs);
    if (library.problem.empty()) {
      cublaslt_ = library.tflops;
      fmt::print(text_, "        {:.0f} TFLOP/s (cuBLASLt, e4m3, 8192 x 8192 x 8192, sustained)\n", library.tflops);
    } else {
      fmt::print(text_, "        cuBLASLt not present: {}\n", library.problem);
    }
  }

  // Returns why the case cannot run, "" where it did.
  std::string run_case(const BenchCase& item, Progress* progress) {
    Measurement measured;
    const std::string problem = measure_case(item, &measured);
    if (!problem.empty()) return problem;
    rows_.push_back(row(item, measured));
    if (file_) file_->write(pretty(rows_) + '\n');
    progress->clear();
    print_row(item, measured);
    return "";
  }

  std::string measure_case(const BenchCase& item, Measurement* measured) try {
    const auto [subject, problem] =
        item.is_batch() ? prepare_batch(item, attention_) : prepare(item, inputs_.layer(item), attention_);
    if (subject == nullptr) return problem;
    measured->timing = measure(attention_.device, [&] { subject->launch(); });
    measured->rel_l2 = error_of(item, *subject);
    measured->out_dtype = subject->out_dtype();
    measured->version = subject->version();
    return "";
  } catch (const std::bad_alloc&) {
    return kTooLarge;
  } catch (const std::length_error&) {  // more bytes than any vector holds
    return kTooLarge;
  }

  double error_of(const BenchCase& item, const BenchSubject& subject) {
    if (const std::optional<double> error = subject.error()) return *error;
    if (item.op != BenchOp::kPrefill) return relative_l2(inputs_.layer(item).q, subject.out());
    AttentionOptions exact = attention_;
    exact.causal = item.causal;
    return errors_of(inputs_.exact(item, exact), subject.out(), nullptr).rel_l2;
  }

  // Y and the ratio to it belong to GPUs.
  void print_header() const {
    const auto line = [&](auto name, auto a, auto b, auto c, auto d, auto e, auto ratio, auto error) {
      fmt::print(text_, "{:<{}}  {:>9}  {:>9}  {:>8}  {:>9}  {:>7}{}  {:>8}\n", name, name_width_, a, b, c, d, e,
                 on_cuda() ? fmt::format("  {:>6}", ratio) : "", error);
    };
    fmt::print(text_, "\n");
    line("", "burst", "sustained", "burst", "sustained", "", "sust.", "");
    line("case", "ms", "ms", "TFLOP/s", "TFLOP/s", "GB/s", "/ Y", "rel L2");
  }

  void print_row(const BenchCase& item, const Measurement& measured) const {
    const double burst = measured.timing.burst_ms, sustained = measured.timing.sustained_ms;
    const bool computes = item.op == BenchOp::kPrefill;
    const auto speed = [&](double milliseconds) {
      return computes ? fmt::format("{:.4g}", tflops(item, milliseconds)) : "-";
    };
    const double gbps = item.bytes() / sustained * 1e-6;
    const auto ratio = computes ? ratio_of(tflops(item, sustained), yardstick_) : ratio_of(gbps, copy_);
    fmt::print(text_, "{:<{}}  {:>9.4f}  {:>9.4f}  {:>8}  {:>9}  {:>7.4g}{}  {:>8}\n", item.name(), name_width_, burst,
               sustained, speed(burst), speed(sustained), gbps, ratio ? fmt::format("  {:>6.3f}", *ratio) : "",
               error_text(measured.rel_l2));
    std::fflush(text_);
  }

  void print_legend() const {
    fmt::print(
        text_,
        "\nburst: about 8 ms of launches after a pause. sustained: at least 120 ms of launches after 60 ms of them.\n"
        "TFLOP/s: of the products that the mask shows; causal with as many queries as keys: half of all.\n"
        "GB/s: q, k, v and out once each, sustained. rel L2: against float64 attention of the same tensors, a "
        "sample of rows.\n");
    if (on_cuda()) {
      fmt::print(
          text_,
          "quantize and pack_v: GB/s of what is read and written, and its ratio to that of a copy, in place of Y; rel "
          "L2 against the input.\n"
          "Y: what a loop of nothing but 8-bit tensor-core products reaches on this device, sustained, in this "
          "run.\n");
    }
  }

  // What a row says of its case, and where it ran; no figures.
  ordered_json row(const BenchCase& item) const {
    const bool has_p_mode = item.has_p_modes() && item.library == BenchLibrary::kFp8attn;
    const bool is_dense = item.layout == BatchLayout::kDense;
    const ordered_json none;
    return {{"op", item.recipe.empty() ? name_of(item.op) : "quantized_prefill"},
            {"library", name_of(item.library)},
            {"library_version", none},
            {"backend", name_of(attention_.device.kind)},
            {"device", device()},
            {"commit", kFp8attnCommit},
            {"date", utc_now()},
            {"dtype", name_of(item.dtype)},
            {"kv_dtype", item.kv_dtype == item.dtype ? none : ordered_json(name_of(item.kv_dtype))},
            {"out_dtype", none},
            {"cache", none},
            {"batch", item.batch},
            {"heads_q", item.heads_q},
            {"heads_kv", item.heads_kv},
            {"seqlen_q", item.seqlen_q},
            {"seqlen_kv", item.seqlen_kv},
            {"head_dim_qk", item.head_dim_qk},
            {"head_dim_v", item.head_dim_v},
            {"layout", is_dense ? none : ordered_json(name_of(item.layout))},
            {"page_size", item.page_size == 0 ? none : ordered_json(item.page_size)},
            {"lengths", is_dense ? none : ordered_json(name_of(item.lengths))},
            {"causal", item.causal},
            {"window_left", item.window_left < 0 ? none : ordered_json(item.window_left)},
            {"v_layout", name_of(item.v_layout)},
            {"p_mode", has_p_mode ? ordered_json(name_of(item.p_mode)) : ordered_json()},
            {"recipe", item.recipe.empty() ? none : ordered_json(item.recipe)},
            {"granularity", item.op == BenchOp::kQuantize ? ordered_json(name_of(item.granularity)) : none},
            {"unsupported", none},
            {"burst_ms", none},
            {"sustained_ms", none},
            {"burst_tflops", none},
            {"sustained_tflops", none},
            {"gbps", none},
            {"yardstick_tflops", yardstick_ ? ordered_json(*yardstick_) : none},
            {"copy_gbps", copy_ ? ordered_json(*copy_) : none},
            {"cublaslt_tflops", cublaslt_ ? ordered_json(*cublaslt_) : none},
            {"ratio", none},
            {"rel_l2", none}};
  }

  ordered_json row(const BenchCase& item, const std::string& problem) const {
    ordered_json result = row(item);
    result["unsupported"] = problem;
    return result;
  }

  ordered_json row(const BenchCase& item, const Measurement& measured) const {
    const double burst = measured.timing.burst_ms, sustained = measured.timing.sustained_ms;
    const double speed = tflops(item, sustained), gbps = item.bytes() / sustained * 1e-6;
    ordered_json result = row(item);
    if (!measured.version.empty()) result["library_version"] = measured.version;
    result["out_dtype"] = name_of(measured.out_dtype);
    result["burst_ms"] = burst;
    result["sustained_ms"] = sustained;
    result["gbps"] = gbps;
    std::optional<double> ratio = ratio_of(gbps, copy_);
    if (item.op == BenchOp::kPrefill) {
      result["burst_tflops"] = tflops(item, burst);
      result["sustained_tflops"] = speed;
      ratio = ratio_of(speed, yardstick_);
    }
    if (ratio) result["ratio"] = *ratio;
    result["rel_l2"] = measured.rel_l2;
    return result;
  }

  AttentionOptions attention_;
  std::vector<BenchCase> cases_;
  std::FILE* text_;
  std::unique_ptr<OutputFile> file_;
  std::size_t name_width_ = 4;
  std::optional<double> yardstick_, copy_, cublaslt_;
  Inputs inputs_;
  ordered_json rows_ = ordered_json::array();
};

// Cases that share tensors and mask become neighbours, so that Inputs makes each once.
std::vector<BenchCase> grouped(std::vector<BenchCase> cases) {
  std::map<std::string, std::size_t> order;  // of the first case with these tensors
  for (const BenchCase& item : cases) order.emplace(item.tensors(), order.size());
  std::stable_sort(cases.begin(), cases.end(), [&](const BenchCase& a, const BenchCase& b) {
    return std::tuple(order.at(a.tensors()), a.causal, a.window_left) <
           std::tuple(order.at(b.tensors()), b.causal, b.window_left);
  });
  return cases;
}

std::vector<BenchCase> chosen_cases(const Options& options, Device device) {
  const std::string fallback = device.kind == DeviceKind::kCuda ? "quick" : "cpu";
  std::vector<BenchCase> cases = load_cases(options.cases.empty() ? fallback : options.cases);
  if (options.filter.empty()) return cases;
  std::vector<BenchCase> chosen;
  try {
    const std::regex pattern(options.filter);
    for (const BenchCase& item : cases) {
      if (std::regex_search(item.name(), pattern)) chosen.push_back(item);
    }
  } catch (const std::regex_error& error) {
    throw usage_error("--filter", fmt::format("'{}' ({})", options.filter, error.what()), "a regular expression");
  }
  if (chosen.empty()) {
    throw usage_error("--filter", fmt::format("'{}', which matches no case", options.filter),
                      fmt::format("part of a name such as '{}'", cases.empty() ? "" : cases.front().name()));
  }
  return chosen;
}

void run_bench(const Options& options) {
  AttentionOptions attention;
  attention.device = parse_device(options.device);
  attention.arithmetic = parse_arithmetic(options.arithmetic, attention.device, CpuArithmetic::kFloat32);
  Bench(options, attention, grouped(chosen_cases(options, attention.device))).run();
}

}  // namespace

void add_bench(CLI::App& program, std::function<void()>* run) {
  auto* command = program.add_subcommand("bench", "Time and error over many shapes, beside what the device can do");
  auto options = std::make_shared<Options>();
  const auto add = [&](const char* name, std::string* value, const char* description) {
    return command->add_option(name, *value, description)->check(not_empty());
  };
  add("--cases", &options->cases,
      "prefill, table, batches, decode, quantize, quick or cpu, or a file like those in bench/cases (default: quick on "
      "a GPU, "
      "else "
      "cpu)");
  add("--filter", &options->filter, "Only cases whose name matches this regular expression");
  add_device_option(*command, &options->device);
  add("--arithmetic", &options->arithmetic, "Of the CPU: float32 (default), float64, emulated, emulated13");
  add("--json", &options->json, "Write the rows as a JSON array to this file, or to - (standard output)");
  auto* mla = command->add_flag("--mla", options->mla, "MLA decode instead of prefill, over its own shapes");
  mla->disable_flag_override()->excludes(command->get_option("--cases"));
  command->callback([options, run] {
    *run = [options] {
      if (!options->mla) return run_bench(*options);
      run_bench_mla({options->filter, options->device, options->arithmetic, options->json});
    };
  });
}

}  // namespace fp8attn::cli
