// Products with a factor whose terms are made as they are multiplied (schedule.py). After product.h.
//
//   fill(column, chunk, to)    STEP terms of one column, in the order of `rows`
#pragma GCC push_options
#pragma GCC optimize("fp-contract=fast")
// What becomes of 64 adjacent terms that are looked up: bytes are taken out of words by shifts, and widening them
// would take the unit that also looks up. Term 4 * l + j of 64 goes to place 16 * j + l.
enum { TW_SPAN = 64 };
TW void tw_in_code_order(float* terms, int64_t count) {
  float span[TW_SPAN];
  for (int64_t i = 0; i + TW_SPAN <= count; i += TW_SPAN) {
    __builtin_memcpy(span, terms + i, sizeof span);
    for (int k = 0; k < TW_SPAN; ++k) terms[i + k % 4 * (TW_SPAN / 4) + k / 4] = span[k];
  }
}
// to[i] = table[codes[i]], of 16, in that order
TW void tw_look_up(const float* table, const uint8_t* codes, int64_t count, float* to) {
  int64_t i = 0;
#if defined(__AVX512F__)
  const tw_vector known = tw_read(table);
  for (tw_order words; i + TW_SPAN <= count; i += TW_SPAN) {
    __builtin_memcpy(&words, codes + i, sizeof words);
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j)  // the low four bits count
      tw_write(to + i + j * TW_WIDTH, __builtin_shuffle(known, words >> (8 * j)));
  }
#endif
  for (; i < count; ++i) to[i] = table[codes[i]];
}
// totals[i] += the sum of rows[i] * terms, lane by lane: chains of STEP / WIDTH terms at most.
template <int ROWS, int STEP>
TW void tw_add_terms(const float* rows, int64_t row, const float* terms, tw_vector* totals) {
  enum { ABREAST = ROWS == 1 ? 4 : ROWS == 2 ? 2 : 1 };
  tw_vector sums[ROWS][ABREAST] = {};
  for (int64_t k = 0; k < STEP; k += ABREAST * TW_WIDTH)
#pragma GCC unroll 4
    for (int v = 0; v < ABREAST; ++v) {
      tw_vector some = tw_read(terms + k + v * TW_WIDTH);
#pragma GCC unroll 8
      for (int i = 0; i < ROWS; ++i) sums[i][v] += some * tw_read(rows + i * row + k + v * TW_WIDTH);
    }
#pragma GCC unroll 8
  for (int i = 0; i < ROWS; ++i)
#pragma GCC unroll 4
    for (int v = 0; v < ABREAST; ++v) totals[i] += sums[i][v];
}
// Few rows: each column's terms are made once, and multiplied with all rows.
template <int ROWS, int STEP, class Fill, class Finish>
static void tw_multiply_filled(const float* rows, int64_t chunks, int64_t columns, int64_t tid, int64_t parts,
                               Fill fill, Finish finish) {
  enum { FIRST = ROWS < 8 ? ROWS : 8, REST = ROWS - FIRST };
  alignas(64) float c[ROWS * TW_COLUMNS], terms[STEP];
  const int64_t row = chunks * STEP;
  tw_range mine = tw_share(columns, TW_WIDTH, tid, parts);
  for (int64_t column = mine.from; column < mine.end; column += TW_COLUMNS) {
    int64_t some = tw_least(TW_COLUMNS, mine.end - column);
    for (int64_t j = 0; j < some; ++j) {
      tw_vector totals[ROWS] = {};
      for (int64_t n = 0; n < chunks; ++n) {
        fill(column + j, n, terms);
        tw_add_terms<FIRST, STEP>(rows + n * STEP, row, terms, totals);
        if constexpr (REST > 0) tw_add_terms<REST, STEP>(rows + FIRST * row + n * STEP, row, terms, totals + FIRST);
      }
      for (int i = 0; i < ROWS; ++i) c[i * TW_COLUMNS + j] = tw_total(totals[i]);
    }
    finish(0, ROWS, column, some, c, TW_COLUMNS);
  }
}
// As tw_pack, of terms that are made here. `from_depth` and `stretch` are multiples of STEP.
template <int STEP, class Fill>
static void tw_pack_filled(float* packed, int64_t column, int64_t columns, int64_t from_depth, int64_t stretch,
                           int64_t tid, int64_t parts, Fill fill) {
  alignas(64) float terms[TW_WIDTH * STEP];
  tw_range mine = tw_share(columns, TW_WIDTH, tid, parts);
  for (int64_t i = mine.from; i < mine.end; i += TW_WIDTH)
    for (int64_t k = 0, p = i / TW_PANEL * TW_PANEL; k < stretch; k += STEP) {
      int64_t width = tw_least(TW_PANEL, (columns - p + TW_WIDTH - 1) / TW_WIDTH * TW_WIDTH);
      for (int64_t j = 0; j < TW_WIDTH; ++j)
        if (i + j < columns) fill(column + i + j, (from_depth + k) / STEP, terms + j * STEP);
        else __builtin_memset(terms + j * STEP, 0, STEP * sizeof(float));
      tw_pack_panel(terms, STEP, 1, TW_WIDTH, STEP, packed + p * stretch + k * width + i - p, width);
    }
}
#pragma GCC pop_options
