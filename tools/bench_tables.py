"""Markdown tables and charts from the rows of `fp8attn bench --json` in bench/results/, and from bench/peers.json."""

import json
import pathlib

from svg_plot import line_chart

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"

BATCHES = "h200-batches.json"  # rows of bench/cases/batches.json, for a table of their own
BATCH_FIELDS = ["kv_dtype", "layout", "page_size", "lengths", "window_left"]  # none of them in a dense whole prompt

DEFAULTS = {"library": "fp8attn", "unsupported": None, "recipe": None, "date": ""}  # where rows lack a field
OURS = {"library": "fp8attn", "recipe": None}
PACKED, ROW_MAJOR = OURS | {"dtype": "e4m3", "v_layout": "packed"}, OURS | {"dtype": "e4m3", "v_layout": "row-major"}
CUDNN = {"library": "cudnn"}

# What a column shows: its title and the fields of its rows.
COLUMNS = [
    ("packed V", PACKED | {"p_mode": "default"}),
    ("packed V, exact P", PACKED | {"p_mode": "exact"}),
    ("packed V, fast P", PACKED | {"p_mode": "fast"}),
    ("row-major V", ROW_MAJOR | {"p_mode": "default"}),
    ("row-major V, exact P", ROW_MAJOR | {"p_mode": "exact"}),
    ("row-major V, fast P", ROW_MAJOR | {"p_mode": "fast"}),
    ("bf16", OURS | {"dtype": "bf16"}),
    ("cuDNN e4m3", CUDNN | {"dtype": "e4m3"}),
    ("cuDNN bf16", CUDNN | {"dtype": "bf16"}),
]
README_COLUMNS = [
    ("e4m3, packed V", COLUMNS[0][1]),
    ("e4m3, packed V, fast P", COLUMNS[2][1]),
    ("e4m3, row-major V", COLUMNS[3][1]),
    ("bf16", COLUMNS[6][1]),
]
DASHED = ("bf16", "cuDNN e4m3", "cuDNN bf16")
HEAD_DIMS = [(64, 64), (128, 128), (256, 256), (192, 128)]
TOKENS_IN_ALL, HIDDEN = 16384, 2048
WRONG = 0.1  # relative L2 error above which a result is wrong: 8-bit rounding alone stays below 0.05 on these data


def load(paths):
    """Rows of result files, each with its file under "source"."""
    rows = []
    for path in paths:
        content = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(content, list):
            rows += [DEFAULTS | row | {name: row.get(name) for name in BATCH_FIELDS} | {"source": path.name}
                     for row in content]
    return rows


def all_rows():
    """The oldest first: of several rows of one case the tables show the last."""
    return sorted(load(path for path in sorted(RESULTS.glob("*.json")) if path.name != BATCHES),
                  key=lambda row: row["date"])


def batch_rows():
    return load(path for path in [RESULTS / BATCHES] if path.exists())


def matches(row, fields):
    return all(row[name] == value for name, value in fields.items())


def has_dims(row, dims):
    return (row["head_dim_qk"], row["head_dim_v"]) == dims


def dims_text(dims):
    return str(dims[0]) if dims[0] == dims[1] else f"{dims[0]}/{dims[1]}"


def mask_text(causal):
    return "causal" if causal else "none"


def is_whole_prompt(row):
    """Dense batches with as many keys as queries, all of them or the causal ones visible."""
    return (row["op"] == "prefill" and row["seqlen_kv"] == row["seqlen_q"]
            and all(row[field] is None for field in BATCH_FIELDS))


def is_comparison_shape(row):
    """Rows of the tables by head dim: as many keys as queries and key/value heads as heads, TOKENS_IN_ALL in all."""
    if not is_whole_prompt(row):
        return False
    dims = (row["head_dim_qk"], row["head_dim_v"])
    width = 16 * 192 if dims == (192, 128) else HIDDEN
    return (row["heads_kv"] == row["heads_q"]
            and dims in HEAD_DIMS and row["heads_q"] * row["head_dim_qk"] == width
            and row["batch"] * row["seqlen_q"] == max(TOKENS_IN_ALL, row["seqlen_q"]))


def is_wrong(row):
    """A result with NaN in it has no error in the file."""
    return not row["unsupported"] and (row["rel_l2"] is None or row["rel_l2"] > WRONG)


def speed_cell(rows, fields):
    """ "1061 (0.63)", with a "!" where the result is wrong; "no" for a case that the build or the library does not
    support, "-" for one not measured."""
    found = [row for row in rows if matches(row, fields)]
    if not found:
        return "-"
    if found[-1]["unsupported"]:
        return "no"
    wrong = " !" if is_wrong(found[-1]) else ""
    return f"{found[-1]['sustained_tflops']:.0f} ({found[-1]['ratio']:.2f}){wrong}"


def markdown_table(labels, titles, lines):
    head = [f"| {' | '.join([*labels, *titles])} |", "|---" * len(labels) + "|---:" * len(titles) + "|"]
    return head + [f"| {' | '.join(cells)} |" for cells in lines]


def columns_of(rows):
    """COLUMNS, and one for each recipe by which 16-bit tensors are quantised within the call."""
    return COLUMNS + [(f"bf16 in, {recipe}", OURS | {"dtype": "bf16", "recipe": recipe, "p_mode": "default"})
                      for recipe in distinct(rows, "recipe")]


def distinct(rows, field):
    return sorted({str(row[field]) for row in rows if row.get(field) is not None})


def range_text(values):
    low, high = f"{min(values):.0f}", f"{max(values):.0f}"
    return low if low == high else f"{low} to {high}"


def readme_speed(path):
    """The README's section; "" where the file does not exist."""
    if not path.exists():
        return ""
    rows = [row for row in load([path]) if is_comparison_shape(row) and row["library"] == "fp8attn"]
    measured = [row for row in rows if not row["unsupported"]]
    lines = []
    for dims in HEAD_DIMS:
        for causal in (False, True):
            for tokens in (1024, 4096, 16384):
                shape = {"head_dim_qk": dims[0], "head_dim_v": dims[1], "causal": causal, "seqlen_q": tokens}
                if any(matches(row, shape) for row in measured):
                    lines.append([dims_text(dims), mask_text(causal), str(tokens)] +
                                 [speed_cell(rows, shape | fields) for _, fields in README_COLUMNS])
    dates = " and ".join(sorted({row["date"][:10] for row in measured}))
    heads = f"heads times head dim {HIDDEN}"
    if any(has_dims(row, (192, 128)) for row in measured):
        heads += " (16 heads at 192/128)"
    return "\n".join([
        "## Speed",
        "",
        f"Sustained TFLOP/s, and in brackets their ratio to Y, on one {', '.join(distinct(measured, 'device'))}: "
        f"{TOKENS_IN_ALL} tokens in all, {heads}. Measured by `fp8attn bench` on {dates} at commit "
        f"{', '.join(distinct(measured, 'commit'))}; all its figures are in `{path.relative_to(ROOT)}`, and "
        "`docs/performance.md` shows them beside other libraries.",
        "",
        "Y is what a loop of nothing but 8-bit tensor-core products reaches on the same device in the same run: "
        f"{range_text([row['yardstick_tflops'] for row in measured])} TFLOP/s.",
        "",
        *markdown_table(["head dim", "mask", "tokens"], [title for title, _ in README_COLUMNS], lines),
    ]) + "\n"


def runs():
    """One line a result file: device, date, commit, Y and cuBLASLt of the same run."""
    lines = []
    rows = all_rows() + batch_rows()
    for source in distinct(rows, "source"):
        own = [row for row in rows if row["source"] == source and not row["unsupported"]]
        values = {name: [row[name] for row in own if row.get(name)] for name in ("yardstick_tflops", "cublaslt_tflops")}
        lines.append([f"`bench/results/{source}`", ", ".join(distinct(own, "device")),
                      " and ".join(sorted({row["date"][:10] or "-" for row in own})),
                      ", ".join(distinct(own, "commit")),
                      *(range_text(found) if found else "not recorded" for found in values.values())])
    return "\n".join(markdown_table(["rows", "device", "date", "commit"],
                                    ["Y, TFLOP/s", "cuBLASLt e4m3, TFLOP/s"], lines)) + "\n"


def prefill_lines(rows, dims, columns):
    lines = []
    lengths = sorted({row["seqlen_q"] for row in rows if has_dims(row, dims)})
    for causal in (False, True):
        for tokens in lengths:
            shape = {"head_dim_qk": dims[0], "head_dim_v": dims[1], "causal": causal, "seqlen_q": tokens}
            cells = [speed_cell(rows, shape | fields) for _, fields in columns]
            lines.append([mask_text(causal), str(tokens), *cells])
    return lines


def titles_of(rows):
    return ", ".join(title for title, fields in columns_of(rows) if any(matches(row, fields) for row in rows))


def notes(rows):
    """What the cells say that are no figures, or figures of wrong results."""
    lines = []
    for reason in distinct(rows, "unsupported"):
        lines.append(f"* no ({titles_of([row for row in rows if row['unsupported'] == reason])}): {reason}")
    wrong = [row for row in rows if is_wrong(row)]
    if wrong:
        errors = ", ".join(sorted({"NaN" if row["rel_l2"] is None else f"{row['rel_l2']:.2f}" for row in wrong}))
        lines.append(f"* ! ({titles_of(wrong)}): the result is wrong, relative L2 error {errors}")
    return [*lines, ""] if lines else []


def prefill_table(rows, dims):
    rows = [row for row in rows if has_dims(row, dims)]
    columns = [column for column in columns_of(rows) if any(matches(row, column[1]) for row in rows)]
    table = markdown_table(["mask", "tokens"], [title for title, _ in columns], prefill_lines(rows, dims, columns))
    return [*table, "", *notes(rows)]


def plot_path(dims):
    return ROOT / "docs" / "plots" / f"prefill-d{dims_text(dims).replace('/', '-')}.svg"


def prefill():
    """A chart and a table a head dim."""
    rows = [row for row in all_rows() if is_comparison_shape(row)]
    charts = plots()
    lines = []
    for dims in HEAD_DIMS:
        if not any(has_dims(row, dims) for row in rows):
            continue
        lines += [f"### Head dim {dims_text(dims)}", ""]
        if plot_path(dims) in charts:
            lines += [f"![Sustained TFLOP/s over tokens, head dim {dims_text(dims)}](plots/{plot_path(dims).name})", ""]
        lines += prefill_table(rows, dims)
    return "\n".join(lines)


def grouped_heads():
    """Rows with fewer key/value heads than heads; "" where there are none."""
    rows = [row for row in all_rows() if is_whole_prompt(row) and row["heads_kv"] != row["heads_q"]]
    lines = []
    for heads in sorted({(row["heads_q"], row["heads_kv"]) for row in rows}):
        own = [row for row in rows if (row["heads_q"], row["heads_kv"]) == heads]
        for dims in sorted({(row["head_dim_qk"], row["head_dim_v"]) for row in own}):
            lines += [f"### {heads[0]} heads, {heads[1]} key/value heads, head dim {dims_text(dims)}", "",
                      *prefill_table(own, dims)]
    return "\n".join(lines)


def plots():
    """{path: text} of every chart."""
    rows = [row for row in all_rows() if is_comparison_shape(row) and not row["unsupported"]]
    columns = columns_of(rows)
    charts = {}
    for dims in HEAD_DIMS:
        own = [row for row in rows if has_dims(row, dims)]
        panels = []
        for causal in (False, True):
            series = {title: {row["seqlen_q"]: row["sustained_tflops"] for row in own
                              if row["causal"] == causal and matches(row, fields)} for title, fields in columns}
            panels.append((f"mask: {mask_text(causal)}", series))
        if own:
            charts[plot_path(dims)] = line_chart(f"Head dim {dims_text(dims)}", "sustained TFLOP/s",
                                                 [title for title, _ in columns], panels, DASHED)
    return charts
