"""Binaries that read a uniform register before it is written, as text."""

from __future__ import annotations

from torchweld.runtime import sass

PROLOGUE = """
.section .text.kernel,"ax",@progbits
        /*0000*/                   S2UR UR7, SR_CgaCtaId ;
        /*0010*/                   UMOV UR6, 0x400 ;
        /*0020*/                   ULDC.64 UR8, c[0x0][0x218] ;
        /*0030*/                   ULEA UR6, UR7, UR6, 0x18 ;
        /*0040*/              @!P0 LEA R63, P2, R70, UR9, 0x1 ;
"""
FAULT = "        /*0050*/                   UIADD3 UR26, UP1, UR26, 0x40, URZ ;\n"
IN_REGISTERS = """
        /*0060*/                   UMOV UR22, 0x1 ;
        /*0070*/                   UMOV UR23, 0x2 ;
        /*0080*/                   HGMMA.64x128x16.F32.BF16 R24, R100, gdesc[UR20], R24, gsb0 ;
"""
SHARED = "        /*0090*/                   HGMMA.64x32x16.F32.BF16 R24, gdesc[UR20], R24 ;\n"


def test_what_is_written_first_may_be_read():
    assert sass.unset_read(PROLOGUE + IN_REGISTERS) is None


def test_a_read_of_nothing_is_told():
    assert sass.unset_read(PROLOGUE + FAULT) == "UIADD3 UR26, UP1, UR26, 0x40, URZ"
    assert sass.unset_read(PROLOGUE + IN_REGISTERS + SHARED).startswith("HGMMA.64x32")


def test_each_kernel_starts_with_none():
    assert sass.unset_read(PROLOGUE + PROLOGUE.replace("S2UR", "NOP ;").replace("UMOV", "NOP ;"))


def test_kernels_with_right_factors_in_both_directions_are_looked_at():
    columns = "wgmma.mma_async.sync.aligned.m64n32k16 {%r1}, %rd1, %rd2, %p1, 1, 1, 0, 1;"
    depth = columns.replace(", 1;", ", 0;")
    assert not sass.is_suspect(columns + columns) and not sass.is_suspect("")
    assert sass.is_suspect(f"{columns}\n{depth}")
