"""The tables and charts that tools/update_docs.py writes."""

import json
import pathlib
import sys
import tempfile
import unittest
import unittest.mock
import xml.etree.ElementTree

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))

import bench_tables
import bench_tables_other


def prefill_row(**fields):
    row = {"op": "prefill", "library": "fp8attn", "device": "G", "commit": "c", "date": "2026-01-02T03:04:05Z",
           "dtype": "e4m3", "batch": 16, "heads_q": 16, "heads_kv": 16, "seqlen_q": 1024, "seqlen_kv": 1024,
           "head_dim_qk": 128, "head_dim_v": 128, "causal": False, "v_layout": "packed", "p_mode": "default",
           "unsupported": None, "burst_tflops": 900.0, "sustained_tflops": 800.4, "yardstick_tflops": 1600.0,
           "ratio": 0.5, "rel_l2": 0.02}
    return row | fields


UNSUPPORTED = {"unsupported": "no kernel", "sustained_tflops": None, "ratio": None, "burst_tflops": None}
ROWS = [
    prefill_row(),
    prefill_row(causal=True, sustained_tflops=500.0),
    prefill_row(library="cudnn", v_layout="row-major", p_mode=None, sustained_tflops=700.0, ratio=0.44),
    prefill_row(head_dim_qk=256, head_dim_v=256, heads_q=8, heads_kv=8, **UNSUPPORTED),
    prefill_row(head_dim_qk=192, sustained_tflops=600.0),
    prefill_row(heads_q=32, heads_kv=8, sustained_tflops=400.0),
]
MLA = {"op": "mla_decode", "library": "fp8attn", "cache": "e4m3", "batch": 128, "heads_q": 16, "sustained_ms": 0.1331,
       "gbps": 2273.4, "mfu": 0.123}


class BenchTables(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        patch = unittest.mock.patch.object(bench_tables, "RESULTS", self.folder)
        patch.start()
        self.addCleanup(patch.stop)
        self.write(ROWS)

    def write(self, rows, name="rows.json"):
        (self.folder / name).write_text(json.dumps(rows), encoding="utf-8")

    def test_a_cell_is_that_of_its_row(self):
        text = bench_tables.prefill()
        self.assertIn("| mask | tokens | packed V | cuDNN e4m3 |", text)
        self.assertIn("| none | 1024 | 800 (0.50) | 700 (0.44) |", text)
        self.assertIn("| causal | 1024 | 500 (0.50) | - |", text)

    def test_the_newest_row_of_a_case_counts(self):
        self.write([prefill_row(date="2026-01-03T00:00:00Z", sustained_tflops=900.0), prefill_row()])
        self.assertIn("| none | 1024 | 900 (0.50) |", bench_tables.prefill())

    def test_head_dims_that_differ_have_a_section(self):
        self.assertIn("### Head dim 192/128\n", bench_tables.prefill())
        self.assertIn("| none | 1024 | 600 (0.50) |", bench_tables.prefill())

    def test_what_is_not_supported_is_shown_with_its_reason(self):
        text = bench_tables.prefill()
        self.assertIn("### Head dim 256\n", text)
        self.assertIn("| none | 1024 | no |", text)
        self.assertIn("* no (packed V): no kernel", text)
        self.assertNotIn("prefill-d256.svg", text)

    def test_a_wrong_result_is_marked(self):
        self.write([prefill_row(rel_l2=0.352)])
        text = bench_tables.prefill()
        self.assertIn("| none | 1024 | 800 (0.50) ! |", text)
        self.assertIn("* ! (packed V): the result is wrong, relative L2 error 0.35", text)
        self.write([prefill_row(rel_l2=None)])
        self.assertIn("relative L2 error NaN", bench_tables.prefill())

    def test_grouped_heads_have_a_table_of_their_own(self):
        self.assertNotIn("400", bench_tables.prefill())
        self.assertIn("### 32 heads, 8 key/value heads, head dim 128", bench_tables.grouped_heads())
        self.assertIn("400 (0.50)", bench_tables.grouped_heads())

    def test_rows_of_an_older_program_count_as_ours(self):
        old = prefill_row()
        del old["library"], old["unsupported"]
        self.write([old])
        self.assertIn("800 (0.50)", bench_tables.prefill())
        self.assertIn("not recorded", bench_tables.runs())

    def test_charts_are_well_formed_and_the_same_each_time(self):
        charts = bench_tables.plots()
        self.assertEqual(sorted(path.name for path in charts), ["prefill-d128.svg", "prefill-d192-128.svg"])
        self.assertEqual(charts, bench_tables.plots())
        for text in charts.values():
            xml.etree.ElementTree.fromstring(text)
        self.assertIn("cuDNN e4m3", charts[bench_tables.plot_path((128, 128))])
        self.assertNotIn("cuDNN e4m3", charts[bench_tables.plot_path((192, 128))])

    def test_another_operation_shows_what_differs(self):
        self.assertEqual(bench_tables_other.operation("mla_decode"), "")
        self.write([MLA, MLA | {"heads_q": 128, "sustained_ms": None, "gbps": None, "mfu": None,
                                "unsupported": "no kernel"}])
        text = bench_tables_other.operation("mla_decode")
        self.assertIn("The same in all rows: library fp8attn, cache e4m3, batch 128.", text)
        self.assertIn("| heads_q | sustained, us | MFU | GB/s |", text)
        self.assertIn("| 16 | 133.1 | 0.12 | 2273 |", text)
        self.assertIn("| 128 | no | no | no |", text)

    def test_quantisers_are_compared_with_a_copy(self):
        self.write([{"op": "quantize", "granularity": name, "gbps": 2000.0, "ratio": 0.5, "copy_gbps": 4000.0}
                    for name in ("head", "token")])
        text = bench_tables_other.operation("quantize")
        self.assertIn("| granularity | of a copy | GB/s |", text)
        self.assertIn("| token | 0.50 | 2000 |", text)

    def test_recipes_within_the_call_have_columns_of_their_own(self):
        bf16 = prefill_row(dtype="bf16", v_layout="row-major", p_mode=None, sustained_tflops=500.0)
        self.write([bf16, bf16 | {"recipe": "smooth-k", "p_mode": "default", "sustained_tflops": 650.0}])
        text = bench_tables.prefill()
        self.assertIn("| mask | tokens | bf16 | bf16 in, smooth-k |", text)
        self.assertIn("| none | 1024 | 500 (0.50) | 650 (0.50) |", text)

    def test_rows_of_batches_are_in_no_other_table(self):
        before = bench_tables.prefill(), bench_tables.grouped_heads()
        new = [prefill_row(sustained_tflops=123.0, date="2026-02-01T00:00:00Z") | fields for fields in (
            {"layout": "ragged", "lengths": "equal"}, {"layout": "paged", "page_size": 64, "lengths": "equal"},
            {"window_left": 128, "causal": True}, {"kv_dtype": "e4m3", "dtype": "bf16"},
            {"heads_q": 32, "heads_kv": 8, "layout": "ragged", "lengths": "log-uniform"},
            {"heads_q": 32, "heads_kv": 8, "seqlen_q": 1})]
        self.write(ROWS + new)
        self.assertEqual(before, (bench_tables.prefill(), bench_tables.grouped_heads()))
        self.write(ROWS)
        self.write([prefill_row(sustained_tflops=123.0)], bench_tables.BATCHES)
        self.assertEqual(before, (bench_tables.prefill(), bench_tables.grouped_heads()))
        self.assertIn(bench_tables.BATCHES, bench_tables.runs())

    def test_batches_show_their_share_of_the_dense_case(self):
        self.assertEqual(bench_tables_other.batches(), "")
        figures = {"sustained_ms": 2.0, "gbps": 1234.4}
        paged = prefill_row(layout="paged", page_size=24, lengths="equal", sustained_tflops=600.0, sustained_ms=2.668,
                            gbps=900.0, ratio=0.375)
        self.write([prefill_row(**figures), prefill_row(v_layout="row-major", sustained_tflops=500.0, **figures), paged,
                    paged | {"v_layout": "row-major"},
                    paged | {"heads_q": 32, "heads_kv": 8, "lengths": "log-uniform", "causal": True},
                    prefill_row(window_left=128, causal=True, **figures),
                    paged | {"dtype": "bf16", "kv_dtype": "e4m3", **UNSUPPORTED, "sustained_ms": None, "gbps": None}],
                   bench_tables.BATCHES)
        text = bench_tables_other.batches()
        self.assertIn("| e4m3, packed V | dense | 16 | 16/16 | 1024 | 1024 | none | 800 | 0.50 | - | 1234 |", text)
        self.assertIn("| e4m3, packed V | paged 24 | 16 | 16/16 | 1024 | 1024 | none | 600 | 0.38 | 0.75 | 900 |", text)
        # 1.6 times the work of the dense row.
        self.assertIn("| e4m3, row-major V | paged 24 | 16 | 16/16 | 1024 | 1024 | none | 600 | 0.38 | - | 900 |", text)
        self.assertIn("| 16 | 32/8 | up to 1024 | up to 1024 | causal | 600 | 0.38 | - | 900 |", text)
        self.assertIn("| causal, window 128 | 800 | 0.50 | - | 1234 |", text)
        self.assertIn("| bf16, e4m3 keys, packed V | paged 24 | 16 | 16/16 | 1024 | 1024 | none | no | no | no | no |",
                      text)
        self.assertIn("* no: no kernel", text)

    def test_our_column_beside_the_peers(self):
        text = bench_tables_other.peers_prefill()
        self.assertIn("| 128 | none | 1024 | 633 | 477 | 708 | 549 | 900 |", text)
        self.assertIn("| 128 | none | 4096 | 868 | 616 | 938 | 685 | - |", text)


if __name__ == "__main__":
    unittest.main()
