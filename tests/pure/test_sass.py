"""A fault of ptxas, told from the text of binaries, and PTX that avoids it."""

from __future__ import annotations

import pytest

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
HALVES = """
        /*0080*/                   UIADD3 UR22, UP0, UR7, 0x2, URZ ;
        /*0090*/                   UIADD3.X UR23, UR6, -0x80000000, URZ, UP0, !UPT ;
"""


def test_what_is_written_first_may_be_read():
    assert sass.faulty_addition(PROLOGUE) is None
    assert sass.faulty_addition(PROLOGUE + UNIFORM.replace("UR26", "UR9")) is None


def test_an_addition_to_nothing_is_told():
    assert sass.faulty_addition(PROLOGUE + UNIFORM) == "UIADD3 UR26, UP1, UR26, 0x40, URZ"
    assert sass.faulty_addition(PROLOGUE + ORDINARY) == "IADD3 R58, P1, R58, 0x1, RZ"


def test_halves_of_one_address_are_in_two_registers():
    assert sass.faulty_addition(PROLOGUE + HALVES) is None
    found = sass.faulty_addition(PROLOGUE + HALVES.replace("UR6", "UR7"))
    assert found == "UIADD3.X UR23, UR7, -0x80000000, URZ, UP0, !UPT"
    moved = HALVES.replace("UR6", "UR7").replace("\n", "\n        /*0080*/ UMOV UR7, URZ ;\n")
    assert sass.faulty_addition(PROLOGUE + moved) is None  # it holds the upper half by then
    other = HALVES.replace("UR6", "UR7").replace("UP0, !UPT", "UP1, !UPT")
    assert sass.faulty_addition(PROLOGUE + other) is None


def test_each_kernel_starts_with_none():
    again = PROLOGUE.replace("LDG.E.128 R4", "LDG.E R4")
    assert sass.faulty_addition(PROLOGUE + again) == "IADD3 R8, P1, R7, 0x1, RZ"


PTX = """
wgmma.mma_async.sync.aligned.m64n32k16 {%r1}, %rd121, %rd181, %p1, 1, 1, 0, 1;
wgmma.mma_async.sync.aligned.m64n32k16 {%r1}, %rd123, %rd183, %p1, 1, 1, 0, 1;
or.b64 \t%rd121, %rd74, 4611686293305294848;
add.s64 \t%rd123, %rd74, 4611686293305294850;
or.b64 \t%rd181, %rd73, -9223371899415822336;
add.s64 \t%rd183, %rd73, -9223371899415822334;
"""
ONE_ADDRESS = PTX.replace("%rd73", "%rd74")


def test_memory_that_is_described_in_two_ways_is_looked_at():
    assert not sass.is_suspect(PTX) and not sass.is_suspect("")
    assert sass.is_suspect(ONE_ADDRESS)


def test_descriptors_are_made_in_two_steps():
    added = [line for line in ONE_ADDRESS.splitlines() if line.startswith("add")]
    made = sass.in_two_steps(ONE_ADDRESS)
    assert not any(line in made for line in added)
    for result, high in (("123", 4611686293305294848), ("183", -9223371899415822336)):
        steps = f"add.s64 \t%rd{result}, %rd74, 2;\n\tor.b64 \t%rd{result}, %rd{result}, {high};"
        assert steps in made


@pytest.mark.parametrize("text", [
    "add.s64 \t%rd9, %rd74, 4611686293305294850;",  # no descriptor
    "add.s64 \t%rd123, %rd8, 4611686293305294850;",  # to no address
    "add.s64 \t%rd123, %rd74, 32;",
])
def test_other_additions_stay(text):
    assert text in sass.in_two_steps(PTX + text)
