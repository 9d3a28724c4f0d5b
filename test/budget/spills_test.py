#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Tests of what spills.py reads, and of what it refuses: spills_test.py."""
import contextlib
import io
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import spills

LOG = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'entry<giwa::v0_3::archs_900::detail::op<float> >(int)' for 'sm_90a'
ptxas info    : Function properties for entry
    {local} bytes stack frame, {spilled} bytes spill stores, 8 bytes spill loads
ptxas info    : Used {registers} registers, used 1 barriers
{more}"""
NOTE = "ptxas info    : (C7513) Potential Performance Loss in the function 'entry<giwa::v0_3::archs_900::detail::op<float> >(int)'\n"


class Check(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        spills.OTHERS = Path(self.folder.name) / "others.txt"
        spills.kernels_of_table = lambda arch: self.found(100, 16, 8)["1.0", "90a", "table"]

    def found(self, registers=100, local=16, spilled=8, more="", version="1.0"):
        return {(version, "90a", "table"): spills.kernels_of(LOG.format(registers=registers, local=local, spilled=spilled, more=more))}

    def checked(self, *of, update=False, **more):
        with contextlib.redirect_stdout(io.StringIO()) as self.said:
            return spills.checked(self.found(*of, **more), update)

    def test_what_is_read(self):
        (name, kernel), = self.found(101, 24, 9, NOTE)["1.0", "90a", "table"].items()
        self.assertEqual(name, "entry<op<float> >")
        self.assertEqual((kernel.registers, kernel.local, kernel.spilled, dict(kernel.notes)), (101, 24, 9, {"C7513": 1}))

    def test_what_is_more_than_in_the_table(self):
        spills.OTHERS.write_text("1.0 sm_90a 1 registers, 0 local, 0 spilled, -: entry<another_op>\n")
        self.assertEqual(self.checked(104, 20, 12), 0)
        for of in ((105, 16, 8), (100, 21, 8), (100, 16, 13), (100, 16, 8, NOTE)):
            self.assertEqual(self.checked(*of), 1)

    def test_lines_of_this_nvcc(self):
        self.assertEqual(self.checked(128, 32, 40, NOTE, update=True), 0)
        self.assertEqual(spills.OTHERS.read_text(), "1.0 sm_90a 128 registers, 32 local, 40 spilled, C7513: entry<op<float> >\n")
        self.assertEqual(self.checked(132, 36, 44, NOTE), 0)
        self.assertEqual(self.checked(128, 32, 45, NOTE), 1)
        self.assertEqual(self.checked(128, 32, 40, NOTE.replace("C7513", "C7510")), 1)

    def test_another_nvcc_may_spill_but_not_serialise(self):
        self.checked(100, 16, 8, NOTE, update=True)
        self.assertEqual(self.checked(255, 999, 999, NOTE, version="2.0"), 0)
        self.assertIn("another nvcc", self.said.getvalue())
        self.assertEqual(self.checked(more=NOTE.replace("C7513", "C7510"), version="2.0"), 1)

    def test_a_kernel_that_no_table_has(self):
        spills.kernels_of_table = lambda arch: {}
        self.assertEqual(self.checked(), 1)


if __name__ == "__main__":
    unittest.main()
