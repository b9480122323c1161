"""Products of float32 matrices on tensor cores, as exact as with float32 arithmetic.

A float32 number is the sum of three bfloat16 numbers, or of two TF32 numbers and a remainder below
2^-22 of it. Six products of the first, or three of the second, leave out only what float32 would
round away; sums are in float32. Infinities and NaN are kept. Numbers below 1e-31 lose digits: their
last part is no normal number any more.

Relative errors on an H100 (L2, against float64), beside the library's kernels, which use plain
multiply-adds: attention with heads of 64, 1024 keys, by "bf16x6" 2.2e-7, the library 6.2e-7; a
product of 4096 x 4096 x 4096 by "tf32x3" 2.4e-7, cuBLAS 1.1e-6.
"""

BF16X6 = 'input_precision="bf16x6"'  # fewer registers and less shared memory: beside a softmax
TF32X3 = 'input_precision="tf32x3"'  # faster: that product in 1.6 ms, the other 2.1, cuBLAS 2.7
BF16_PRODUCTS = 6  # on tensor cores, for each of float32
