// Rows of integers in ascending order, as many at a time as a vector has elements: a network compares the same two
// places of all of them. Batcher's odd-even merge sort (1968), for any length.
template <class T> struct tw_abreast {
  enum { ROWS = TW_BYTES / sizeof(T) };
  typedef typename tw_some<T, ROWS>::type row_of_each;
};
template <class T> TW void tw_sort_abreast(typename tw_abreast<T>::row_of_each* at, int64_t length) {
  for (int64_t merged = 1; merged < length; merged *= 2)
    for (int64_t step = merged; step >= 1; step /= 2)
      for (int64_t first = step % merged; first + step < length; first += 2 * step) {
        const int64_t left = length - first - step, end = first + (step < left ? step : left);
        for (int64_t i = first; i < end; ++i) {
          if ((i ^ (i + step)) & -(2 * merged)) continue;  // of different stretches
          auto a = at[i], b = at[i + step];
          at[i] = b < a ? b : a;
          at[i + step] = b < a ? a : b;
        }
      }
}
template <class T> static void tw_sort_rows(const T* from, T* to, int64_t rows, int64_t length) {
  const int64_t each = tw_abreast<T>::ROWS, blocks = (rows + each - 1) / each;
#pragma omp parallel if (rows * length > 4096)
  {
    const int64_t parts = omp_get_num_threads(), part = omp_get_thread_num();
    char* memory = (char*)malloc(length * TW_BYTES + TW_BYTES);
    T* side_by_side = (T*)(((uintptr_t)memory + TW_BYTES - 1) / TW_BYTES * TW_BYTES);
    for (int64_t i = 0; i < each * length; ++i) side_by_side[i] = 0;  // rows that the last block lacks
    for (int64_t block = blocks * part / parts; block < blocks * (part + 1) / parts; ++block) {
      const int64_t first = block * each, count = rows - first < each ? rows - first : each;
      for (int64_t r = 0; r < count; ++r)
        for (int64_t i = 0; i < length; ++i) side_by_side[i * each + r] = from[(first + r) * length + i];
      tw_sort_abreast<T>((typename tw_abreast<T>::row_of_each*)side_by_side, length);
      for (int64_t r = 0; r < count; ++r)
        for (int64_t i = 0; i < length; ++i) to[(first + r) * length + i] = side_by_side[i * each + r];
    }
    free(memory);
  }
}
