"""Markdown tables of operations other than prefill, and of other libraries measured earlier (bench/peers.json)."""

import json

from bench_tables import (BATCH_FIELDS, HEAD_DIMS, ROOT, all_rows, batch_rows, dims_text, is_comparison_shape, is_wrong,
                          markdown_table, mask_text, matches)

# Figures of a row, with their titles and how they are written; a figure that no row has is left out.
FIGURES = [
    ("sustained_ms", "sustained, us", lambda value: f"{1000 * value:.1f}"),
    ("burst_ms", "burst, us", lambda value: f"{1000 * value:.1f}"),
    ("sustained_tflops", "TFLOP/s", lambda value: f"{value:.0f}"),
    ("ratio", "/ Y", lambda value: f"{value:.2f}"),
    ("mfu", "MFU", lambda value: f"{value:.2f}"),
    ("gbps", "GB/s", lambda value: f"{value:.0f}"),
    ("read_fraction", "of read", lambda value: f"{value:.2f}"),
    ("mbu", "MBU", lambda value: f"{value:.2f}"),
    ("rel_l2", "rel L2", lambda value: f"{value:.2e}"),
]
# What is the same for a whole run, or no property of the case.
RUN_FIELDS = {"op", "backend", "device", "commit", "date", "yardstick_tflops", "cublaslt_tflops", "burst_tflops",
              "source", "unsupported", "library_version", "copy_gbps", "recipe"}
MOVING = {"quantize", "pack_v"}  # operations that move bytes only: their ratio is to a copy within the device's memory
OURS = {"library": "fp8attn", "dtype": "e4m3", "v_layout": "packed", "p_mode": "default"}


def value(row, name):
    """A field as text: true and false as in JSON."""
    if row.get(name) is None:
        return "-"
    return json.dumps(row[name]) if isinstance(row[name], (bool, int)) else str(row[name])


def operation(op):
    """All rows of an operation: the fields in which they differ, then the figures. "" where there are none."""
    rows = [row for row in all_rows() if row["op"] == op]
    if not rows:
        return ""
    figures = [figure for figure in FIGURES if any(row.get(figure[0]) is not None for row in rows)]
    skipped = RUN_FIELDS | {name for name, _, _ in FIGURES}
    fields = [name for name in dict.fromkeys(name for row in rows for name in row) if name not in skipped]
    if op in MOVING:
        figures = [(name, "of a copy" if name == "ratio" else title, form) for name, title, form in figures]
    varying = [name for name in fields if len({value(row, name) for row in rows}) > 1]
    same = [f"{name} {value(rows[0], name)}" for name in fields if name not in varying and value(rows[0], name) != "-"]
    lines = []
    for row in rows:
        shown = ["no" if row["unsupported"] else "-" if row.get(name) is None else form(row[name])
                 for name, _, form in figures]
        lines.append([value(row, name) for name in varying] + shown)
    note = [f"The same in all rows: {', '.join(same)}.", ""] if same else []
    return "\n".join([*note, *markdown_table(varying, [title for _, title, _ in figures], lines)]) + "\n"


def flop(row):
    return row["sustained_tflops"] * row["sustained_ms"]


def dense_peer(row, rows):
    """The dense row without a window that has the same work and tensors otherwise; None where there is none."""
    same = {name: row[name] for name in ("library", "dtype", "kv_dtype", "heads_q", "heads_kv", "head_dim_qk",
                                         "head_dim_v", "v_layout", "p_mode", "causal")}
    dense = dict.fromkeys(name for name in BATCH_FIELDS if name != "kv_dtype")
    for other in rows:
        if matches(other, same | dense) and not other["unsupported"] and abs(flop(other) / flop(row) - 1) < 0.01:
            return other
    return None


def batch_line(row, rows):
    dtype = row["dtype"] if row["kv_dtype"] is None else f"{row['dtype']}, {row['kv_dtype']} keys"
    if "e4m3" in (row["dtype"], row["kv_dtype"]):
        dtype += ", packed V" if row["v_layout"] == "packed" else ", row-major V"
    layout = "dense" if row["layout"] is None else row["layout"]
    if row["page_size"] is not None:
        layout += f" {row['page_size']}"
    most = "up to " if row["lengths"] == "log-uniform" else ""
    mask = mask_text(row["causal"])
    if row["window_left"] is not None:
        mask += f", window {row['window_left']}"
    case = [dtype, layout, str(row["batch"]), f"{row['heads_q']}/{row['heads_kv']}", f"{most}{row['seqlen_q']}",
            f"{most}{row['seqlen_kv']}", mask]
    if row["unsupported"]:
        return case + ["no"] * 4
    wrong = " !" if is_wrong(row) else ""
    peer = None if row["layout"] is None else dense_peer(row, rows)
    share = "-" if peer is None else f"{row['sustained_tflops'] / peer['sustained_tflops']:.2f}"
    return case + [f"{row['sustained_tflops']:.0f}{wrong}", f"{row['ratio']:.2f}", share, f"{row['gbps']:.0f}"]


def batches():
    """Rows of BATCHES; "" where there are none."""
    rows = [row for row in batch_rows() if row["op"] == "prefill"]
    if not rows:
        return ""
    lines = [batch_line(row, rows) for row in rows]
    titles = ["TFLOP/s", "/ Y", "of dense", "GB/s"]
    reasons = [f"* no: {reason}" for reason in sorted({row["unsupported"] for row in rows if row["unsupported"]})]
    table = markdown_table(["dtype", "layout", "batch", "heads", "queries", "keys", "mask"], titles, lines)
    return "\n".join([*table, *([""] if reasons else []), *reasons]) + "\n"


def load_peers():
    return json.loads((ROOT / "bench" / "peers.json").read_text(encoding="utf-8"))


def conditions(peers, part):
    shapes = f" Shapes: {part['shapes']}." if "shapes" in part else ""
    return (f"One {peers['device']}, {peers['date']}, in runs of their own. Data: {peers['data']}. "
            f"Timing: {part['timing']}.{shapes}")


def peer_table(part, figure, ours_title):
    """Peers' TFLOP/s beside our default kernel's `figure`, by head dim, mask and length."""
    kernels = list(dict.fromkeys(row["kernel"] for row in part["rows"]))
    ours = [row for row in all_rows() if is_comparison_shape(row) and matches(row, OURS) and not row["unsupported"]]
    lines = []
    for dims in HEAD_DIMS:
        for causal in (False, True):
            for tokens in sorted({row["seqlen"] for row in part["rows"]}):
                shape = {"head_dim_qk": dims[0], "head_dim_v": dims[1], "causal": causal}
                found = {row["kernel"]: row["tflops"] for row in part["rows"]
                         if matches(row, shape | {"seqlen": tokens})}
                if not found:
                    continue
                own = [row[figure] for row in ours if matches(row, shape | {"seqlen_q": tokens})]
                lines.append([dims_text(dims), mask_text(causal), str(tokens)] +
                             [str(found.get(kernel, "-")) for kernel in kernels] +
                             [f"{own[-1]:.0f}" if own else "-"])
    return markdown_table(["head dim", "mask", "tokens"], [*kernels, ours_title], lines)


def peers_prefill():
    peers = load_peers()
    single, sustained = peers["single"], peers["sustained"]
    return "\n".join([
        "### Launches timed alone, TFLOP/s", "", conditions(peers, single), "",
        *peer_table(single, "burst_tflops", "ours: packed V, burst"), "",
        "### Sustained, TFLOP/s", "",
        f"{conditions(peers, sustained)} Y was {sustained['yardstick_tflops']} TFLOP/s in that run.", "",
        *peer_table(sustained, "sustained_tflops", "ours: packed V, sustained")]) + "\n"


def peers_accuracy():
    accuracy = load_peers()["accuracy"]
    lines = [[row["kernel"], row["data"], row["seqlen"], row["rel_l2"]] for row in accuracy["rows"]]
    return "\n".join([f"{accuracy['about']}:", "",
                      *markdown_table(["kernel", "data", "tokens"], ["error"], lines)]) + "\n"


def peers_mla():
    peers = load_peers()
    part = peers["mla_decode"]
    kernels = list(dict.fromkeys(row["kernel"] for row in part["rows"]))
    shape = lambda row: (row["batch"], row["heads_q"], row["seqlen_q"], row["seqlen_kv"])
    lines = []
    for case in dict.fromkeys(shape(row) for row in part["rows"]):
        times = {row["kernel"]: row["us"] for row in part["rows"] if shape(row) == case}
        lines.append([*map(str, case), *(str(times.get(kernel, "-")) for kernel in kernels)])
    table = markdown_table(["batch", "heads", "query tokens", "cached tokens"],
                           [f"{kernel}, us" for kernel in kernels], lines)
    return "\n".join([conditions(peers, part), "", *table]) + "\n"
