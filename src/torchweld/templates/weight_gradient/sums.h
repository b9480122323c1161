// Gradients of the weights of convolutions in groups,
//   dw[r, c, k, i, j] = sum over n, z, h, w of points[n, r, z, h, w] * image[n, g * channels + c, z', h', w'],
// g the group of r. A vector has the same pixel of WIDTH results, and those of the image that their groups have there:
//
//   for units of a thread's share (some rows of an image), for its blocks of WIDTH results:
//     turn the rows of the points to vectors
//     for channels of a group, for planes of the window:
//       turn the rows of the image, with zeros around them
//       for rows, for tiles of the window: a tile of sums in registers, along a row
//   add the shares of each block, in order
//
// Sums are chains of up to TW_TERMS along a row, of these in a unit, and of units.
#pragma GCC push_options
#pragma GCC optimize("fp-contract=fast")
struct tw_layout {
  int64_t start, image, channel, plane, row, pixel;  // strides
};
struct tw_weight_sums {
  const float *points, *image;
  float* result;
  int64_t groups, images, channels, results;  // channels and results of one group
  tw_layout points_at, image_at;
  int64_t result_row, result_channel, result_plane, result_h, result_w;  // strides
  tw_side d, h, w;
};
// Vectors of the image in a unit: 128 KB; vectors of sums in registers, of which AVX-512 has 32; terms of a chain.
enum { TW_UNIT = 2048, TW_SUMS_IN_REGISTERS = TW_WIDTH == 16 ? 28 : 14, TW_TERMS = 64 };

// `across`, `shares`: threads that share the blocks, and the units. `sums`: vectors of a block.
struct tw_units {
  int64_t rows, inputs, pitch, count, blocks, across, shares, sums;  // rows of points and image; columns of an image
};
// The fewest blocks of units for the busiest thread. Of equals, shares of the units: with channels innermost, the
// blocks of a unit lie side by side.
static void tw_share_units(tw_units& u, int64_t threads) {
  int64_t least = 0;
  for (int64_t across = 1; across <= threads && across <= u.blocks; ++across) {
    int64_t shares = threads / across < u.count ? threads / across : u.count;
    int64_t busiest = (u.blocks + across - 1) / across * ((u.count + shares - 1) / shares);
    if (across == 1 || busiest < least) least = busiest, u.across = across, u.shares = shares;
  }
}
static tw_units tw_units_of(const tw_weight_sums& a, int64_t threads) {
  tw_units u;
  int64_t high = (a.h.taps - 1) * a.h.dilation + 1;
  u.pitch = (a.w.out - 1) * a.w.stride + (a.w.taps - 1) * a.w.dilation + 1;
  u.rows = (TW_UNIT / u.pitch - high) / a.h.stride + 1;
  if (a.image_at.pixel != 1) {  // all channels of a unit's rows stay in cache for the blocks after the first
    int64_t row = (a.w.size * a.h.stride + a.w.out) * a.image_at.pixel * (int64_t)sizeof(float);
    if (u.rows > TW_CACHE / 2 / row) u.rows = TW_CACHE / 2 / row;
  }
  if (u.rows < 1) u.rows = 1;
  if (u.rows > a.h.out) u.rows = a.h.out;
  u.inputs = (u.rows - 1) * a.h.stride + high;
  u.count = a.images * a.d.out * ((a.h.out + u.rows - 1) / u.rows);
  u.blocks = (a.groups * a.results + TW_WIDTH - 1) / TW_WIDTH;
  u.sums = a.channels * a.d.taps * a.h.taps * a.w.taps;
  tw_share_units(u, threads);
  return u;
}
static int64_t tw_weight_room(const tw_weight_sums& a, int64_t threads) {
  tw_units u = tw_units_of(a, threads);
  return u.shares * u.blocks * u.sums * TW_WIDTH;
}

// The channels of a vector's lanes, of which those behind the last result are not there. `apart`: from one to the
// next, 0 if that differs.
struct tw_channels {
  int64_t count, first, apart, channel[TW_WIDTH];
};
static tw_channels tw_channels_of(int64_t first, int64_t all, int64_t results, int64_t channels, int64_t channel) {
  tw_channels to = {all - first < TW_WIDTH ? all - first : TW_WIDTH, first / results * channels + channel, 0, {}};
  for (int64_t l = 0; l < to.count; ++l) to.channel[l] = (first + l) / results * channels + channel;
  int64_t apart = to.count > 1 ? to.channel[1] - to.channel[0] : 1;
  bool equal = apart > 0;
  for (int64_t l = 1; l < to.count; ++l) equal = equal && to.channel[l] - to.channel[l - 1] == apart;
  to.apart = equal ? apart : 0;
  return to;
}
// to[column][lane] = from[channel][column]; lanes that are not there become zero.
TW void tw_turn_row(const float* from, const tw_layout& at, const tw_channels& lanes, int64_t columns, float* to) {
  alignas(64) float lines[TW_WIDTH * TW_WIDTH], square[TW_WIDTH * TW_WIDTH];
  int64_t column = 0;
  if (at.pixel == 1 && lanes.apart && lanes.count == TW_WIDTH)
    for (; column + TW_WIDTH <= columns; column += TW_WIDTH)
      tw_turn(from + lanes.first * at.channel + column, lanes.apart * at.channel, to + column * TW_WIDTH,
              (int64_t)TW_WIDTH);
  for (; at.pixel == 1 && column < columns; column += TW_WIDTH) {
    int64_t some = columns - column < TW_WIDTH ? columns - column : TW_WIDTH;
    for (int64_t l = 0; l < TW_WIDTH; ++l)
      tw_write(lines + l * TW_WIDTH, tw_lanes_of(from + lanes.channel[l] * at.channel + column, 1,
                                                 l < lanes.count ? (1ull << some) - 1 : 0, (tw_vector){}));
    if (some == TW_WIDTH) tw_turn(lines, (int64_t)TW_WIDTH, to + column * TW_WIDTH, (int64_t)TW_WIDTH);
    else {
      tw_turn(lines, (int64_t)TW_WIDTH, square, (int64_t)TW_WIDTH);
      __builtin_memcpy(to + column * TW_WIDTH, square, some * TW_WIDTH * sizeof(float));
    }
  }
  bool beside = lanes.apart * at.channel == 1 && lanes.count == TW_WIDTH;
  for (; column < columns; ++column)
    if (beside) tw_write(to + column * TW_WIDTH, tw_read(from + lanes.first * at.channel + column * at.pixel));
    else
      for (int64_t l = 0; l < TW_WIDTH; ++l)
        to[column * TW_WIDTH + l] = l < lanes.count ? from[lanes.channel[l] * at.channel + column * at.pixel] : 0;
}
// Rows [top, top + rows) of the image, from `padding` columns before the first on; zero where there is none.
static void tw_turn_rows(const float* from, const tw_layout& at, const tw_channels& lanes, const tw_side& h,
                         const tw_side& w, int64_t top, int64_t rows, int64_t pitch, float* to) {
  int64_t right = pitch - w.padding < w.size ? pitch - w.padding : w.size, left = w.padding < pitch ? w.padding : pitch;
  if (right < 0) right = 0;
  for (int64_t r = 0; r < rows; ++r, to += pitch * TW_WIDTH) {
    bool inside = (uint64_t)(top + r) < (uint64_t)h.size;
    int64_t begin = inside ? left : pitch, end = inside ? left + right : pitch;
    __builtin_memset(to, 0, begin * TW_WIDTH * sizeof(float));
    if (inside && right) tw_turn_row(from + (top + r) * at.row, at, lanes, right, to + left * TW_WIDTH);
    __builtin_memset(to + end * TW_WIDTH, 0, (pitch - end) * TW_WIDTH * sizeof(float));
  }
}

// A window of H x W. I x J elements of it, over `count` pixels of a row. PLAIN: neighbouring pixels and elements.
template <int W, int I, int J, bool PLAIN>
TW void tw_row_sums(const tw_weight_sums& a, const float* points, const float* x, int64_t pitch, int64_t count,
                    float* sums) {
  const int64_t step = (PLAIN ? 1 : a.w.stride) * TW_WIDTH, next = (PLAIN ? 1 : a.w.dilation) * TW_WIDTH;
  const int64_t line = a.h.dilation * pitch * TW_WIDTH;
  tw_vector found[I][J];
#pragma GCC unroll 32
  for (int i = 0; i < I; ++i)
#pragma GCC unroll 32
    for (int j = 0; j < J; ++j) found[i][j] = (tw_vector){};
  for (int64_t w = 0; w < count; ++w, x += step) {
    tw_vector point = tw_read(points + w * TW_WIDTH);
#pragma GCC unroll 32
    for (int i = 0; i < I; ++i)
#pragma GCC unroll 32
      for (int j = 0; j < J; ++j) found[i][j] += point * tw_read(x + i * line + j * next);
  }
#pragma GCC unroll 32
  for (int i = 0; i < I; ++i)
#pragma GCC unroll 32
    for (int j = 0; j < J; ++j) {
      float* to = sums + (i * W + j) * TW_WIDTH;
      tw_write(to, tw_read(to) + found[i][j]);
    }
}
// All J columns from the first on of a window, I rows of it at a time.
template <int H, int W, int I, int J, bool PLAIN>
TW void tw_column_sums(const tw_weight_sums& a, const float* points, const float* x, int64_t pitch, int64_t count,
                       float* sums) {
  constexpr int ROWS = H / I * I;
  int64_t line = a.h.dilation * pitch * TW_WIDTH;
  for (int i = 0; i < ROWS; i += I)
    tw_row_sums<W, I, J, PLAIN>(a, points, x + i * line, pitch, count, sums + i * W * TW_WIDTH);
  if constexpr (ROWS < H)
    tw_row_sums<W, H - ROWS, J, PLAIN>(a, points, x + ROWS * line, pitch, count, sums + ROWS * W * TW_WIDTH);
}
template <int H, int J> constexpr int tw_rows_abreast() {
  return TW_SUMS_IN_REGISTERS / J < H ? TW_SUMS_IN_REGISTERS / J : H;
}
template <int H, int W, bool PLAIN>
static void tw_window_sums(const tw_weight_sums& a, const float* points, const float* x, int64_t pitch, int64_t count,
                           float* sums) {
  constexpr int J = W <= 8 ? W : 8, COLUMNS = W / J * J;
  int64_t next = a.w.dilation * TW_WIDTH;
  for (int j = 0; j < COLUMNS; j += J)
    tw_column_sums<H, W, tw_rows_abreast<H, J>(), J, PLAIN>(a, points, x + j * next, pitch, count, sums + j * TW_WIDTH);
  if constexpr (COLUMNS < W) {
    constexpr int REST = W - COLUMNS;
    tw_column_sums<H, W, tw_rows_abreast<H, REST>(), REST, PLAIN>(
        a, points, x + COLUMNS * next, pitch, count, sums + COLUMNS * TW_WIDTH);
  }
}

// Adds the sums of a unit for one block of results to `total`: [channel, k, i, j][WIDTH].
template <int H, int W>
static void tw_unit_sums(const tw_weight_sums& a, const tw_units& u, int64_t unit, int64_t block, float* room,
                         float* total) {
  const int64_t all = a.groups * a.results, taps = H * W, parts = (a.h.out + u.rows - 1) / u.rows;
  float *x = room, *points = x + u.inputs * u.pitch * TW_WIDTH, *sums = points + u.rows * a.w.out * TW_WIDTH;
  const tw_side rows = {a.h.out, 0, 0, 0, 0, 0}, columns = {a.w.out, 0, 0, 0, 0, 0};
  const bool plain = a.w.stride == 1 && a.w.dilation == 1;
  int64_t top = unit % parts * u.rows, z = unit / parts % a.d.out, n = unit / (parts * a.d.out);
  int64_t height = a.h.out - top < u.rows ? a.h.out - top : u.rows;
  int64_t inputs = (height - 1) * a.h.stride + (a.h.taps - 1) * a.h.dilation + 1;
  const tw_channels results = tw_channels_of(block * TW_WIDTH, all, 1, 1, 0);
  const float* from = a.points + a.points_at.start + n * a.points_at.image + z * a.points_at.plane;
  tw_turn_rows(from, a.points_at, results, rows, columns, top, height, a.w.out, points);
  for (int64_t c = 0; c < a.channels; ++c) {
    const tw_channels lanes = tw_channels_of(block * TW_WIDTH, all, a.results, a.channels, c);
    for (int64_t k = 0; k < a.d.taps; ++k, total += taps * TW_WIDTH) {
      int64_t plane = z * a.d.stride + k * a.d.dilation - a.d.padding;
      if ((uint64_t)plane >= (uint64_t)a.d.size) continue;
      from = a.image + a.image_at.start + n * a.image_at.image + plane * a.image_at.plane;
      tw_turn_rows(from, a.image_at, lanes, a.h, a.w, top * a.h.stride - a.h.padding, inputs, u.pitch, x);
      __builtin_memset(sums, 0, taps * TW_WIDTH * sizeof(float));
      for (int64_t r = 0; r < height; ++r)
        for (int64_t w = 0; w < a.w.out; w += TW_TERMS) {
          const float *row = points + (r * a.w.out + w) * TW_WIDTH;
          const float *window = x + (r * a.h.stride * u.pitch + w * a.w.stride) * TW_WIDTH;
          int64_t count = a.w.out - w < TW_TERMS ? a.w.out - w : TW_TERMS;
          if (plain) tw_window_sums<H, W, true>(a, row, window, u.pitch, count, sums);
          else tw_window_sums<H, W, false>(a, row, window, u.pitch, count, sums);
        }
      for (int64_t t = 0; t < taps * TW_WIDTH; t += TW_WIDTH)
        tw_write(total + t, tw_read(total + t) + tw_read(sums + t));
    }
  }
}
// What the shares have of a block, `apart` from each other, to where the weight's gradient lies.
static void tw_add_shares(const tw_weight_sums& a, const tw_units& u, int64_t block, const float* first,
                          int64_t apart) {
  int64_t count = a.groups * a.results - block * TW_WIDTH, taps = a.d.taps * a.h.taps * a.w.taps;
  if (count > TW_WIDTH) count = TW_WIDTH;
  for (int64_t t = 0; t < u.sums; ++t) {
    tw_vector sum = {};
    for (int64_t s = 0; s < u.shares; ++s) sum += tw_read(first + s * apart + t * TW_WIDTH);
    int64_t c = t / taps, k = t / (a.h.taps * a.w.taps) % a.d.taps, i = t / a.w.taps % a.h.taps, j = t % a.w.taps;
    float* to = a.result + c * a.result_channel + k * a.result_plane + i * a.result_h + j * a.result_w;
    for (int64_t l = 0; l < count; ++l) to[(block * TW_WIDTH + l) * a.result_row] = sum[l];
  }
}
// One of `parts` threads; `sums`: tw_weight_room floats for `threads`, at least so many, which the threads share.
template <int H, int W>
static void tw_weight_gradient(const tw_weight_sums& a, int64_t tid, int64_t parts, int64_t threads, float* sums) {
  const tw_units u = tw_units_of(a, threads);
  int64_t vectors = u.inputs * u.pitch + u.rows * a.w.out + H * W, each = u.sums * TW_WIDTH;
  float* room = (float*)malloc(vectors * TW_WIDTH * sizeof(float));
  for (int64_t t = tid; t < u.across * u.shares; t += parts) {
    int64_t share = t / u.across, nth = t % u.across;
    int64_t begin = u.blocks * nth / u.across, end = u.blocks * (nth + 1) / u.across;
    float* total = sums + (share * u.blocks + begin) * each;
    __builtin_memset(total, 0, (end - begin) * each * sizeof(float));
    for (int64_t unit = u.count * share / u.shares; unit < u.count * (share + 1) / u.shares; ++unit)
      for (int64_t b = begin; b < end; ++b) tw_unit_sums<H, W>(a, u, unit, b, room, total + (b - begin) * each);
  }
  free(room);
#pragma omp barrier
  for (int64_t b = u.blocks * tid / parts; b < u.blocks * (tid + 1) / parts; ++b)
    tw_add_shares(a, u, b, sums + b * each, u.blocks * each);
}
#pragma GCC pop_options
