"""Binaries that add to a register before it is written, as text."""

from __future__ import annotations

from torchweld.runtime import sass

PROLOGUE = """
.section .text.kernel,"ax",@progbits
        /*0000*/                   S2UR UR7, SR_CgaCtaId ;
        /*0010*/                   UMOV UR6, 0x400 ;
        /*0020*/                   ULDC.64 UR8, c[0x0][0x218] ;
        /*0030*/                   ULEA UR6, UR7, UR6, 0x18 ;
        /*0040*/              @!P0 LDG.E.128 R4, desc[UR36][R2.64] ;
        /*0050*/                   ISETP.GE.AND P1, PT, R4, 0x41, PT ;
        /*0060*/                   IADD3 R8, P1, R7, 0x1, RZ ;
        /*0070*/                   IADD3.X R9, R6, UR9, RZ, P1, !PT ;
"""
UNIFORM = "        /*0080*/                   UIADD3 UR26, UP1, UR26, 0x40, URZ ;\n"
ORDINARY = "        /*0080*/                   IADD3 R58, P1, R58, 0x1, RZ ;\n"


def test_what_is_written_first_may_be_read():
    assert sass.unset_read(PROLOGUE) is None
    assert sass.unset_read(PROLOGUE + UNIFORM.replace("UR26", "UR9")) is None


def test_an_addition_to_nothing_is_told():
    assert sass.unset_read(PROLOGUE + UNIFORM) == "UIADD3 UR26, UP1, UR26, 0x40, URZ"
    assert sass.unset_read(PROLOGUE + ORDINARY) == "IADD3 R58, P1, R58, 0x1, RZ"


def test_each_kernel_starts_with_none():
    again = PROLOGUE.replace("LDG.E.128 R4", "LDG.E R4")
    assert sass.unset_read(PROLOGUE + again) == "IADD3 R8, P1, R7, 0x1, RZ"


PTX = """
wgmma.mma_async.sync.aligned.m64n32k16 {%r1}, %rd121, %rd181, %p1, 1, 1, 0, 1;
or.b64 \t%rd121, %rd74, 4611686293305294848;
add.s64 \t%rd123, %rd74, 4611686293305294850;
or.b64 \t%rd181, %rd73, -9223371899415822336;
"""


def test_memory_that_is_described_in_two_ways_is_looked_at():
    assert not sass.is_suspect(PTX) and not sass.is_suspect("")
    assert sass.is_suspect(PTX.replace("%rd73", "%rd74"))
