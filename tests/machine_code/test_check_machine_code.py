"""The check itself: it must find each fault that it is there for. Needs no CUDA tools."""

import unittest

from check_machine_code import opcodes_by_function, problems


def sass(name, *instructions):
    lines = [f"\t\tFunction : {name}", '\t.headerflags\t@"EF_CUDA_SM90"']
    for i, instruction in enumerate(instructions):
        lines.append(f"        /*{16 * i:04x}*/                   {instruction} ;   /* 0x00000a00ff017b82 */")
        lines.append("                                                          /* 0x000ff00000000800 */")
    return "\n".join(lines) + "\n"


FP8 = "_ZN7fp8attn4cuda14prefill_kernelINS0_13PrefillTraitsINS0_11ElementE4M3ELi64EEEEEvv"
BF16 = "_ZN7fp8attn4cuda14prefill_kernelINS0_13PrefillTraitsINS0_11ElementBF16ELi64EEEEEvv"
Q = "QGMMA.64x128x32.F32.E4M3.E4M3 R24, R8, gdesc[UR4], R24"
H = "HGMMA.64x128x16.F32.BF16 R24, gdesc[UR4], R24"


def found(text, *elements):
    return problems(opcodes_by_function(text), elements)


class CheckMachineCode(unittest.TestCase):
    def test_right_code_passes(self):
        text = sass(FP8, "LDC R1, c[0x0][0x28]", Q) + sass(BF16, "@!P0 " + H)
        self.assertEqual(found(text, "ElementE4M3", "ElementBF16"), [])

    def test_missing_tensor_instruction(self):
        self.assertEqual(found(sass(FP8, H)), [f"{FP8}: no QGMMA"])
        self.assertEqual(found(sass(BF16, Q)), [f"{BF16}: no HGMMA"])

    def test_local_memory(self):
        self.assertEqual(found(sass(FP8, Q, "@P1 STL.64 [R1+0x8], R4", "@!UP2 LDL R4, [R1]")),
                         [f"{FP8}: 1 LDL (local memory)", f"{FP8}: 1 STL (local memory)"])

    def test_missing_kernels(self):
        self.assertEqual(found("", "ElementE4M3"), ["no prefill kernel of ElementE4M3 in the library"])
        self.assertEqual(len(found(sass("_Z14prefill_kernelv", Q))), 1)

    def test_other_kernels_are_left_alone(self):
        self.assertEqual(found(sass("_Z15quantize_kernelv", "STL [R1], R4")), [])


if __name__ == "__main__":
    unittest.main()
