#!/usr/bin/env python3
"""Bring the generated parts of README.md up to date, or check that they are.

A generated part lies between two comments:

    <!-- begin file examples/NAME.cpp -->      the file, as a code block
    <!-- begin output info --markdown -->      what `fp8attn info --markdown` prints
    <!-- begin speed bench/results/NAME.json --> a section with the figures of `fp8attn bench --json NAME.json`; nothing
                                               where there is no such file
    <!-- end -->

Usage: tools/update_readme.py [--check] [--build DIR]     (DIR: a build with every option at its default, and CUDA)
"""

import argparse
import difflib
import json
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PART = re.compile(r"(?P<begin><!-- begin (?P<kind>file|output|speed) (?P<argument>[^\n]+?) -->\n).*?(?P<end><!-- end -->)", re.S)
LANGUAGES = {".cpp": "cpp", ".txt": "cmake"}


# What a column of the table of speeds shows: its title and the fields of its rows.
COLUMNS = [
    ("e4m3, packed V", {"dtype": "e4m3", "v_layout": "packed", "p_mode": "default"}),
    ("e4m3, packed V, fast P", {"dtype": "e4m3", "v_layout": "packed", "p_mode": "fast"}),
    ("e4m3, row-major V", {"dtype": "e4m3", "v_layout": "row-major", "p_mode": "default"}),
    ("bf16", {"dtype": "bf16"}),
]
TOKENS_IN_ALL, HIDDEN = 16384, 2048


def speed(path):
    if not path.exists():
        return ""
    rows = [row for row in json.loads(path.read_text(encoding="utf-8"))
            if row["op"] == "prefill" and row.get("library", "fp8attn") == "fp8attn" and not row.get("unsupported")
            and row["heads_kv"] == row["heads_q"]
            and row["seqlen_kv"] == row["seqlen_q"] and row["head_dim_v"] == row["head_dim_qk"]
            and row["batch"] * row["seqlen_q"] == TOKENS_IN_ALL and row["heads_q"] * row["head_dim_qk"] == HIDDEN]

    def cell(fields):
        found = [row for row in rows if all(row[name] == value for name, value in fields.items())]
        return f"{found[-1]['sustained_tflops']:.0f} ({found[-1]['ratio']:.2f})" if found else "-"

    def values(field):
        return ", ".join(sorted({str(row[field]) for row in rows}))

    yardsticks = [row["yardstick_tflops"] for row in rows]
    dates = sorted({row["date"][:10] for row in rows})
    lines = [
        "## Speed",
        "",
        f"Sustained TFLOP/s, and in brackets their ratio to Y, on one {values('device')}: {TOKENS_IN_ALL} tokens in all, "
        f"heads times head dim {HIDDEN}. Measured by `fp8attn bench` on {' and '.join(dates)} at commit "
        f"{values('commit')}; all its figures are in `{path.relative_to(ROOT)}`.",
        "",
        "Y is what a loop of nothing but 8-bit tensor-core products reaches on the same device in the same run: "
        f"{min(yardsticks):.0f}{'' if min(yardsticks) == max(yardsticks) else f' to {max(yardsticks):.0f}'} TFLOP/s.",
        "",
        "| head dim | mask | tokens | " + " | ".join(title for title, _ in COLUMNS) + " |",
        "|---" * 3 + "|---:" * len(COLUMNS) + "|",
    ]
    for dim in (64, 128):
        for causal in (False, True):
            for tokens in (1024, 4096, 16384):
                shape = {"head_dim_qk": dim, "causal": causal, "seqlen_q": tokens}
                cells = [str(dim), "causal" if causal else "none", str(tokens)]
                cells += [cell(shape | fields) for _, fields in COLUMNS]
                lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def content(match, build):
    if match["kind"] == "speed":
        return speed(ROOT / match["argument"])
    if match["kind"] == "file":
        path = ROOT / match["argument"]
        return f"```{LANGUAGES.get(path.suffix, '')}\n{path.read_text(encoding='utf-8').strip()}\n```\n"
    command = [str(build / "fp8attn"), *match["argument"].split()]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip() + "\n"


def main():
    parser = argparse.ArgumentParser(description="Update the generated parts of README.md.")
    parser.add_argument("--check", action="store_true", help="change nothing; fail where README.md is out of date")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build", help="build directory (default: build)")
    arguments = parser.parse_args()

    readme = ROOT / "README.md"
    old = readme.read_text(encoding="utf-8")
    new, count = PART.subn(lambda match: match["begin"] + content(match, arguments.build) + match["end"], old)
    if count != old.count("<!-- begin ") or count == 0:
        sys.exit(f"README.md: {old.count('<!-- begin ')} parts begin, {count} are complete")
    if new == old:
        print(f"README.md: {count} generated parts, up to date")
        return
    if arguments.check:
        sys.stdout.writelines(difflib.unified_diff(old.splitlines(True), new.splitlines(True), "README.md", "generated"))
        sys.exit("README.md is out of date: run tools/update_readme.py")
    readme.write_text(new, encoding="utf-8")
    print("README.md: updated")


if __name__ == "__main__":
    main()
